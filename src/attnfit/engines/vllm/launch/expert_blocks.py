"""Block scales of FP8 experts that tensor parallelism cuts: refined, padded, or refused.

Sources (0.33.0): vllm/model_executor/layers/fused_moe/oracle/fp8.py:292-395, quantization/utils/fp8_utils.py:1344.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import gcd
from typing import Any

import msgspec

from attnfit.engines.vllm.launch.moe import MoeLayer, Oracle
from attnfit.engines.vllm.launch.moe_select import Scheme
from attnfit.engines.vllm.launch.state import Refusal

OracleOf = Callable[[str], Oracle]
_WNA16 = (
    "vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors_moe/compressed_tensors_moe_wna16.py"
)
_FP8_UTILS = "vllm/model_executor/layers/quantization/utils/fp8_utils.py"


def refined_block(layer: MoeLayer, rows: int, cols: int) -> int | None:
    """A finer block that fits the shard where the checkpoint's does not (oracle/fp8.py:292)."""
    shard = layer.per_rank
    if shard % rows == 0 and (layer.parallel.tp_size == 1 or shard % cols == 0):
        return None
    refined = gcd(rows, cols, shard, layer.hidden)
    return refined if refined >= 32 else None


def can_refine(layer: MoeLayer, refined: int | None, oracle_of: OracleOf) -> bool:
    if refined is None:
        return False
    oracle = oracle_of("fp8")
    backend = oracle.rules["map"].get(layer.moe_backend)
    if backend is None:
        return True  # the oracle itself refuses the name
    parts = [
        [oracle.experts[part] for part in oracle.experts[name].get("all_of", [name])]
        for name in oracle.rules["backends"][backend]
    ]
    return any(
        all(oracle.takes_scheme(part, f"fp8block:{refined}", "kFp8Dynamic128Sym") for part in some) for some in parts
    )


def pad_to_blocks(layer: MoeLayer, rows: int, cols: int, stage: str) -> MoeLayer:
    """An explicit backend pads the shard to whole blocks (oracle/fp8.py:324)."""
    tp = layer.parallel.tp_size
    if rows != cols or tp == 1 or layer.per_rank % rows == 0:
        return layer
    if layer.intermediate % rows or layer.hidden % rows or layer.parallel.ep_size != 1 or layer.lora or layer.has_bias:
        raise Refusal(
            stage,
            f"ValueError: Block-aligned FP8 TP sharding requires {rows}-aligned global expert dimensions, pure TP, and "
            "no LoRA or expert bias.",
            "vllm/model_executor/layers/fused_moe/oracle/fp8.py:343",
        )
    padded = -(-layer.per_rank // rows) * rows
    return msgspec.structs.replace(layer, intermediate=padded * tp)


def check_expert_blocks(quant: dict[str, Any], scheme: Scheme, layer: MoeLayer, tp: int, stage: str) -> None:
    """Block scales of the experts must cut evenly unless they were refined (fp8.py:550, fp8_utils.py:1344)."""
    if scheme.oracle == "mxfp8" and quant:
        _check_mxfp8(layer, stage)
    block = quant.get("weight_block_size") or scheme.block
    if scheme.oracle != "fp8" or not block or scheme.activation != "kFp8Dynamic128Sym":
        return
    rows, cols = int(block[0]), int(block[1])
    if (scheme.weight or "").startswith("fp8block:") and refined_block(layer, rows, cols) is not None:
        return
    shard = layer.per_rank
    if shard % rows:
        raise Refusal(
            stage,
            f"ValueError: The output_size of gate's and up's weight = {shard} is not divisible by weight quantization "
            f"block_n = {rows}.",
            f"{_FP8_UTILS}:1362",
        )
    if tp > 1 and shard % cols:
        raise Refusal(
            stage,
            f"ValueError: The input_size of down's weight = {shard} is not divisible by weight quantization block_k = "
            f"{cols}.",
            f"{_FP8_UTILS}:1369",
        )


def one_group(quant: dict[str, Any]) -> dict[str, Any]:
    """The group of a compressed-tensors checkpoint that has one, else nothing."""
    groups = quant.get("config_groups")
    found = list(groups.values()) if isinstance(groups, dict) else []
    return found[0] if len(found) == 1 and isinstance(found[0], dict) else {}


def check_groups(weights: dict[str, Any], layer: MoeLayer, stage: str) -> None:
    """Scale groups and zero points of compressed-tensors integer experts (compressed_tensors_moe_wna16.py:234)."""
    size, shard, hidden = weights.get("group_size"), layer.per_rank, layer.hidden
    if weights.get("strategy") != "channel" and isinstance(size, int):
        if hidden % size:
            text = (
                f"CompressedTensors WNA16 MoE requires hidden_size ({hidden}) to be divisible by group_size ({size})."
            )
            raise Refusal(stage, f"ValueError: {text}", f"{_WNA16}:239")
        if shard % size:
            raise Refusal(
                stage,
                "ValueError: CompressedTensors WNA16 MoE with static group scales requires the MoE intermediate size "
                f"per tensor-parallel partition ({shard}) to be divisible by group_size ({size}). Scale groups would "
                "otherwise cross TP shard boundaries; use a compatible TP size or enable expert parallelism.",
                f"{_WNA16}:245",
            )
    if weights.get("symmetric", True):
        return
    packed = Fraction(32, int(weights["num_bits"]))
    if 2 * shard % packed:
        raise Refusal(
            stage,
            "ValueError: CompressedTensors WNA16 MoE: gate+up output channels per TP rank (2 * "
            f"intermediate_size_per_partition = {2 * shard}) must be divisible by packed_factor ({packed}). Use a TP "
            f"size where 2 * intermediate_size is divisible by {packed}.",
            f"{_WNA16}:264",
        )
    if hidden % packed:
        raise Refusal(
            stage,
            f"ValueError: CompressedTensors WNA16 MoE: hidden_size ({hidden}) must be divisible by packed_factor "
            f"({packed}) for correct ZP unpacking.",
            f"{_WNA16}:272",
        )


def _check_mxfp8(layer: MoeLayer, stage: str) -> None:
    for name, size, line in (
        ("hidden_size", layer.hidden, 1321),
        ("intermediate_size_per_partition", layer.per_rank, 1326),
    ):
        if size % 32:
            raise Refusal(
                stage,
                f"ValueError: MXFP8 MoE requires {name} divisible by 32, got {size}.",
                f"vllm/model_executor/layers/quantization/modelopt.py:{line}",
            )
