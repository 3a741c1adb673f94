"""From a checkpoint's quantisation to the scheme its experts ask for.

Sources (0.33.0): vllm/model_executor/layers/quantization/{fp8,modelopt,mxfp4}.py, compressed_tensors/, online/,
vllm/models/deepseek_v4/quant_config.py.
"""

from __future__ import annotations

from fnmatch import fnmatch
from math import gcd
from typing import Any

import msgspec

from attnfit.engines.vllm.launch.moe import MoeLayer, Oracle
from attnfit.engines.vllm.launch.moe_layers import MoeSite
from attnfit.engines.vllm.launch.moe_select import Scheme
from attnfit.engines.vllm.launch.state import EngineConfig, Refusal, Unknown

_FP8_UTILS = "vllm/model_executor/layers/quantization/utils/fp8_utils.py"
UNQUANTISED = Scheme("unquantized")


def experts_scheme(cfg: EngineConfig, site: MoeSite, oracle_of: Any, stage: str) -> tuple[Scheme, MoeLayer]:
    """The scheme of the model's experts, and the layer as the scheme has adapted it. Raises Refusal or Unknown."""
    method, quant = cfg.quantization, cfg.quant_config or {}
    layer = site.layer
    if method is None or experts_excluded(cfg, site):
        return UNQUANTISED, layer
    if method in _ONLINE and not quant:
        return _ONLINE[method], layer
    if method == "fp8":
        return _fp8(quant, layer, oracle_of, stage)
    if method == "deepseek_v4_fp8":
        if str(cfg.config.get("expert_dtype", "fp4")) != "fp4":
            return _fp8(quant, layer, oracle_of, stage)
        return Scheme("mxfp4", "kMxfp4Static", deepseek_v4=True), layer
    if method == "mxfp4":
        return Scheme("mxfp4", "kMxfp4Static", deepseek_v4=True), layer
    if method == "gpt_oss_mxfp4":
        return Scheme("mxfp4", "kMxfp4Static"), layer
    if method in _FIXED:
        return _FIXED[method], layer
    if method in ("awq", "awq_marlin", "auto_awq", "gptq", "gptq_marlin", "auto_gptq"):
        return _awq_or_gptq(quant, layer), layer
    if method == "compressed-tensors":
        return _compressed_tensors(quant, layer), layer
    if method == "modelopt_mixed":
        raise Unknown("which algorithm the mixed-precision checkpoint uses for its experts")
    raise Unknown(f"how {method} runs the experts")


# `--quantization` on an unquantised checkpoint (vllm/config/quantization.py:195); "fp8" is fp8_per_tensor
_ONLINE: dict[str, Scheme] = {
    "fp8": Scheme("fp8", "kFp8StaticTensorSym", "kFp8DynamicTensorSym"),
    "fp8_per_tensor": Scheme("fp8", "kFp8StaticTensorSym", "kFp8DynamicTensorSym"),
    "fp8_per_block": Scheme("fp8", "kFp8Static128BlockSym", "kFp8Dynamic128Sym"),
    "mxfp8": Scheme("mxfp8", "kMxfp8Static", "kMxfp8Dynamic"),
    "mxfp4": Scheme("mxfp4", "kMxfp4Static", "kMxfp4Dynamic"),
    "experts_int8": Scheme("int8", "kInt8StaticChannelSym", "kInt8DynamicTokenSym"),
    "int8_per_channel_weight_only": Scheme("int8", "kInt8StaticChannelSym", "kInt8DynamicTokenSym"),
}
_FIXED: dict[str, Scheme] = {
    "modelopt": Scheme("fp8", "kFp8StaticTensorSym", "kFp8StaticTensorSym"),
    "modelopt_fp4": Scheme("nvfp4", "kNvfp4Static", "kNvfp4Dynamic"),
    "modelopt_mxfp8": Scheme("mxfp8", "kMxfp8Static", "kMxfp8Dynamic"),
    "mxfp8": Scheme("mxfp8", "kMxfp8Static", "kMxfp8Dynamic"),
}


def method_without_eplb(cfg: EngineConfig, scheme: Scheme) -> str | None:
    """The engine's method class, if it does not take expert load balancing; None if it does."""
    if scheme is UNQUANTISED:
        return None
    named = {
        "gpt_oss_mxfp4": "GptOssMxfp4MoEMethod",
        "modelopt": "ModelOptFp8MoEMethod",
        "modelopt_mxfp8": "ModelOptMxFp8FusedMoE",
        "mxfp8": "ModelOptMxFp8FusedMoE",
    }
    method = cfg.quantization or ""
    if method in named and cfg.quant_config:
        return named[method]
    if scheme.oracle == "int8" and method == "compressed-tensors":
        return "CompressedTensorsW8A8Int8MoEMethod"
    if scheme.oracle == "wna16" and method != "compressed-tensors":
        awq = (cfg.quant_config or {}).get("quant_method") == "awq"
        return "AutoAWQMoEMethod" if awq else "AutoGPTQMoEMethod"
    return None


def excluded_modules(quant: dict[str, Any]) -> list[str]:
    inner = quant.get("quantization")
    inner = inner if isinstance(inner, dict) else {}
    for source in (quant, inner):
        for key in ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"):
            value = source.get(key)
            if isinstance(value, list):
                return [str(each) for each in value]
    return []


def experts_excluded(cfg: EngineConfig, site: MoeSite) -> bool:
    """Whether the checkpoint keeps the first MoE layer's experts unquantised."""
    names = [
        f"{root}.{site.index}.{mlp}.experts"
        for root in ("model.layers", "model.language_model.layers", "language_model.model.layers", "backbone.layers")
        for mlp in ("mlp", "block_sparse_moe", "mixer", "feed_forward")
    ]
    for pattern in excluded_modules(cfg.quant_config or {}):
        if pattern.startswith("re:"):
            continue  # regular expressions name linear layers of shared experts and attention
        bare = pattern.rstrip("*").rstrip(".")
        if any(name == bare or fnmatch(name, pattern) for name in names):
            return True
    return False


def _fp8(quant: dict[str, Any], layer: MoeLayer, oracle_of: Any, stage: str) -> tuple[Scheme, MoeLayer]:
    block = quant.get("weight_block_size")
    if not block:
        static = quant.get("activation_scheme", "dynamic") == "static"
        dynamic = "kFp8DynamicTokenSym" if layer.batch_invariant else "kFp8DynamicTensorSym"
        return Scheme("fp8", "kFp8StaticTensorSym", "kFp8StaticTensorSym" if static else dynamic), layer
    rows, cols = int(block[0]), int(block[1])
    refined = refined_block(layer, rows, cols)
    if layer.moe_backend != "auto" and not _can_refine(layer, refined, oracle_of):
        layer = _pad_to_blocks(layer, rows, cols, stage)
        refined = None if layer.per_rank % rows == 0 else refined
    weight = "kFp8Static128BlockSym" if (rows, cols) == (128, 128) else f"fp8block:{rows}"
    if refined is not None:
        weight = f"fp8block:{refined}"
    return Scheme("fp8", weight, "kFp8Dynamic128Sym"), layer


def refined_block(layer: MoeLayer, rows: int, cols: int) -> int | None:
    """A finer block that fits the shard where the checkpoint's does not (oracle/fp8.py:292)."""
    shard = layer.per_rank
    if shard % rows == 0 and (layer.parallel.tp_size == 1 or shard % cols == 0):
        return None
    refined = gcd(rows, cols, shard, layer.hidden)
    return refined if refined >= 32 else None


def _can_refine(layer: MoeLayer, refined: int | None, oracle_of: Any) -> bool:
    if refined is None:
        return False
    oracle: Oracle = oracle_of("fp8")
    backend = oracle.rules["map"].get(layer.moe_backend)
    if backend is None:
        return True  # the oracle itself refuses the name
    parts = [
        [oracle.experts[part] for part in oracle.experts[name].get("all_of", [name])]
        for name in oracle.rules["backends"][backend]
    ]
    return any(
        all(oracle._scheme(part, f"fp8block:{refined}", "kFp8Dynamic128Sym") for part in some) for some in parts
    )


def _pad_to_blocks(layer: MoeLayer, rows: int, cols: int, stage: str) -> MoeLayer:
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
    block = quant.get("weight_block_size")
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


def _compressed_tensors(quant: dict[str, Any], layer: MoeLayer) -> Scheme:
    groups = quant.get("config_groups")
    groups = groups if isinstance(groups, dict) else {}
    if len(groups) != 1:
        raise Unknown("which of the checkpoint's quantisation groups the experts belong to")
    group = next(iter(groups.values()))
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    kind, bits, strategy = weights.get("type"), weights.get("num_bits"), weights.get("strategy")
    form = group.get("format") or quant.get("format")
    if kind == "int" and inputs is None and strategy in ("group", "channel") and form == "pack-quantized":
        return _wna16(weights, layer)
    if kind == "float" and bits == 8 and isinstance(inputs, dict) and inputs.get("num_bits") == 8:
        if strategy == "block":
            return Scheme("fp8", "kFp8Static128BlockSym", "kFp8Dynamic128Sym", cutlass=True)
        weight = {"channel": "kFp8StaticChannelSym", "tensor": "kFp8StaticTensorSym"}.get(str(strategy))
        tensor = "kFp8Dynamic128Sym" if inputs.get("dynamic") else "kFp8StaticTensorSym"
        act = {"token": "kFp8DynamicTokenSym", "tensor": tensor}.get(str(inputs.get("strategy")))
        if weight and act:
            return Scheme("fp8", weight, act, cutlass=True)
    if kind == "float" and bits == 4 and strategy == "tensor_group":
        return Scheme("nvfp4", "kNvfp4Static", "kNvfp4Dynamic" if inputs else None)
    if kind == "float" and bits == 4 and weights.get("group_size") == 32 and inputs is None:
        return Scheme("mxfp4", "kMxfp4Static")
    if kind == "int" and bits == 8 and isinstance(inputs, dict) and inputs.get("strategy") == "token":
        return Scheme("int8", "kInt8StaticChannelSym", "kInt8DynamicTokenSym")
    raise Unknown(f"how compressed-tensors runs experts of {bits}-bit {kind} weights by {strategy}")


def _wna16(weights: dict[str, Any], layer: MoeLayer) -> Scheme:
    bits, size = weights.get("num_bits"), weights.get("group_size")
    if bits not in (4, 8):
        raise Unknown(f"how experts of {bits}-bit integer weights run")
    group = -1 if size is None else int(size)
    ordered = weights.get("actorder") == "group"
    return integer_scheme(bits, group, bool(weights.get("symmetric", True)), ordered=ordered, bias=False)


def integer_scheme(
    bits: int, group: int, symmetric: bool, *, ordered: bool, bias: bool, awq: bool = False
) -> Scheme:
    """4- or 8-bit integer experts; which backends cannot read the checkpoint is oracle/int_wna16.py:146."""
    compressed = not bias  # the AWQ and GPTQ integrations may carry an expert bias
    base = "kInt8Static" if bits == 8 else "kInt4Static32" if group == 32 and compressed else "kInt4Static"
    weight = base if symmetric or awq or not compressed else f"{base}Asym"

    def skip(backend: str, moe: MoeLayer) -> str | None:
        if backend == "FLASHINFER_TRTLLM" and (bias or not symmetric):
            return "zero points and bias are not supported"
        if backend == "RDNA3" and bias:
            return "only compressed-tensors checkpoints are supported"
        if backend == "RDNA3" and not symmetric:
            return "asymmetric checkpoints are not supported"
        if backend == "TRITON" and bias:
            return "expert bias is not supported"
        if backend in ("TRITON", "RDNA3") and ordered:
            return "group activation ordering is not supported"
        if backend in ("MARLIN", "BATCHED_MARLIN") and not marlin_fits(moe, group):
            return "Marlin not supported for this layer"
        return None

    return Scheme("wna16", weight, None, skip=skip)


def marlin_fits(moe: MoeLayer, group: int) -> bool:
    """utils/marlin_utils.py:356, tiles padded."""
    whole = moe.hidden % 128 == 0 and (group <= 0 or moe.per_rank % group == 0)
    return whole and group in (-1, 32, 64, 128)


def _awq_or_gptq(quant: dict[str, Any], layer: MoeLayer) -> Scheme:
    """quantization/auto_awq.py:337, auto_gptq.py:238. Layers that Marlin cannot take go another way."""
    awq = quant.get("quant_method") == "awq"
    bits = quant.get("bits", quant.get("w_bit", 4))
    group = quant.get("group_size", quant.get("q_group_size", -1))
    if not isinstance(bits, int) or not isinstance(group, int):
        raise Unknown("bits and group_size of the quantised checkpoint")
    if not marlin_fits(layer, group) or quant.get("dynamic"):
        raise Unknown("which kernel runs integer experts that Marlin cannot take")
    symmetric = not quant.get("zero_point", True) if awq else bool(quant.get("sym", True))
    return integer_scheme(bits, group, symmetric, ordered=False, bias=True, awq=awq)
