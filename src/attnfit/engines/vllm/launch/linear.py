"""Linear layers whose block scales tensor parallelism cannot cut.

Source (0.33.0): vllm/model_executor/layers/quantization/utils/fp8_utils.py:1296. Only FP8 checkpoints with block scales
test their shapes; which linear layers a model has is derived from its dimensions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from attnfit.core import Capability
from attnfit.engines.vllm.launch import kernel_facts
from attnfit.engines.vllm.launch.expert_blocks import one_group
from attnfit.engines.vllm.launch.model_asserts import LayerCheck
from attnfit.engines.vllm.launch.moe import in_capabilities
from attnfit.engines.vllm.launch.moe_layers import first_moe
from attnfit.engines.vllm.launch.quant_scheme import excluded_modules
from attnfit.engines.vllm.launch.state import EngineConfig, Refusal, Unknown

STAGE = "model_init"
_WHERE = "vllm/model_executor/layers/quantization/utils/fp8_utils.py"


_BLOCKED = ("fp8", "deepseek_v4_fp8", "compressed-tensors")
_TOWERS = ("Qwen3_5", "Qwen3VL", "Qwen2_5_VL", "Qwen2VL")  # quantised with the rest unless the checkpoint says no


class Projection(NamedTuple):
    """One linear layer on one rank. `outputs` are the merged matrices; `split` says which side is cut."""

    name: str  # path in the decoder layer, as checkpoints name its first part: "self_attn.q_proj"
    inputs: int
    outputs: tuple[int, ...]
    split: str  # "column" | "row" | "none"


def linear_steps(cfg: EngineConfig, capability: Capability) -> Iterator[LayerCheck]:
    """(decoder layer, place, check) of every linear layer kind that tests its shape."""
    quant = cfg.quant_config or {}
    block, group = quant.get("weight_block_size"), group_size(cfg)
    skipped, merged = excluded_modules(quant), False
    if cfg.quantization == "compressed-tensors":
        # Its configuration has no weight_block_size of its own, so that merged matrices are tested as well
        block, merged = (one_group(quant).get("weights") or {}).get("block_structure"), True
    if (
        cfg.quantization in ("fp8", "deepseek_v4_fp8", "compressed-tensors")
        and isinstance(block, list)
        and len(block) == 2
    ):
        rows, cols = int(block[0]), int(block[1])
        if cfg.architecture.startswith(_TOWERS) and cfg.tp > 1 and not any("vis" in name for name in skipped):
            yield -1, 0, _quantised_tower
        for index, place, projection in _projections(cfg):
            if not is_skipped(index, projection, skipped):
                yield index, place, partial(check_blocks, projection, rows, cols, cfg.tp, merged=merged)
    elif group is not None and group > 0:
        for index, place, projection in _projections(cfg):
            if projection.split == "row" and projection.inputs % group and not is_skipped(index, projection, skipped):
                yield index, place, partial(_ragged_groups, projection, group, cfg)


def check_linear_backend(cfg: EngineConfig, capability: Capability) -> None:
    """Raise Unknown if `--linear-backend` names a kernel whose support is not known here. Automatic selection always
    finds one from capability 7.5 (Marlin, Humming)."""
    asked = str(cfg.flags.get("linear_backend") or "auto").lower().replace("-", "_")
    scheme = _linear_scheme(cfg)
    if asked == "auto" or scheme is None:
        return
    named = kernel_facts.load("linear_kernels")["schemes"][scheme].get(asked)
    block = (cfg.quant_config or {}).get("weight_block_size") or [128, 128]
    own = scheme == "fp8_block" and asked == "cutlass" and block != [128, 128]  # not its activation groups
    if named is not None and (own or not in_capabilities(capability, named)):
        raise Unknown(f"whether --linear-backend {asked} takes {scheme} layers on compute capability {capability}")


def _linear_scheme(cfg: EngineConfig) -> str | None:
    quant, method = cfg.quant_config or {}, cfg.quantization
    if method in ("fp8", "deepseek_v4_fp8"):
        return "fp8_block" if quant.get("weight_block_size") else "fp8"
    if method in ("awq", "awq_marlin", "auto_awq", "gptq", "gptq_marlin", "auto_gptq"):
        return "mixed_precision"
    if method == "compressed-tensors" and "'strategy': 'block'" in str(quant.get("config_groups")):
        return "fp8_block"
    if str(method).startswith("modelopt") and "W4A16" in str(quant):  # weight-only NVFP4 has a list of its own
        return "nvfp4_a16"
    return {
        "modelopt": "fp8", "modelopt_fp4": "nvfp4", "modelopt_mixed": "nvfp4", "modelopt_mxfp8": "mxfp8",
        "mxfp8": "mxfp8", "compressed-tensors": "mixed_precision" if group_size(cfg) else "fp8",
    }.get(method or "")  # fmt: skip


def group_size(cfg: EngineConfig) -> int | None:
    """Input channels that share one integer scale; None where weights have no such groups."""
    quant = cfg.quant_config or {}
    if cfg.quantization in ("awq", "awq_marlin", "auto_awq", "gptq", "gptq_marlin", "auto_gptq"):
        size = quant.get("group_size", quant.get("q_group_size"))
        return size if isinstance(size, int) else None
    groups = quant.get("config_groups")
    if cfg.quantization == "compressed-tensors" and isinstance(groups, dict):
        weights = [group.get("weights") or {} for group in groups.values() if isinstance(group, dict)]
        sizes = [w.get("group_size") for w in weights if w.get("type") == "int" and w.get("strategy") == "group"]
        return next((size for size in sizes if isinstance(size, int)), None)
    return None


def _quantised_tower() -> None:
    raise Unknown("whether the vision tower's quantised layers split into whole blocks")


def _ragged_groups(p: Projection, group: int, cfg: EngineConfig) -> None:
    raise Unknown(f"which kernel takes {p.name} with {p.inputs} inputs per rank in groups of {group}")


def is_skipped(index: int, p: Projection, patterns: list[str]) -> bool:
    """Whether the checkpoint keeps this layer unquantised."""
    for root in ("model.layers", "model.language_model.layers", "language_model.model.layers", "backbone.layers"):
        full = f"{root}.{index}.{p.name}"
        for pattern in patterns:
            if pattern.startswith("re:"):
                if _matches(pattern[3:], full):
                    return True
            elif full == pattern or full.startswith(pattern.rstrip("*").rstrip(".") + ".") or pattern == p.name:
                return True
    return False


def _matches(pattern: str, name: str) -> bool:
    """A checkpoint's own regular expression, only if it is short and free of nested repetition."""
    if len(pattern) > 200 or re.search(r"[*+}]\)?[*+{]", pattern):
        raise Unknown(f"whether {pattern!r} in the checkpoint's ignore list names {name}")
    try:
        return re.match(pattern, name) is not None
    except re.error:
        return False


def check_blocks(p: Projection, rows: int, cols: int, tp: int, *, merged: bool = False) -> None:
    """Raise Refusal if the layer's shard is not made of whole blocks."""
    if p.split == "row" and tp > 1 and p.inputs % cols:
        raise Refusal(
            STAGE,
            f"ValueError: Weight input_size_per_partition = {p.inputs} is not divisible by weight quantization block_k "
            f"= {cols}.",
            f"{_WHERE}:1324",
        )
    if len(p.outputs) > 1 and not merged:
        return  # gate and up, q and k and v may be ragged together: vllm/model_executor/layers/linear.py:562
    cut = p.split == "column" and tp > 1
    for size in p.outputs if cut else p.outputs[:-1]:  # the last of merged, uncut matrices may be ragged
        if size % rows:
            raise Refusal(
                STAGE,
                f"ValueError: Weight output_partition_size = {size} is not divisible by weight quantization block_n = "
                f"{rows}.",
                f"{_WHERE}:1340",
            )


def _projections(cfg: EngineConfig) -> Iterator[tuple[int, int, Projection]]:
    if cfg.use_mla:
        yield from ((0, 0, p) for p in _mla(cfg))
    elif not cfg.is_hybrid:
        yield from ((0, 0, p) for p in _gqa(cfg))
    elif isinstance(cfg.text.get("linear_num_value_heads"), int):
        yield from ((_first_kind(cfg, "linear_attention", 0), 0, p) for p in _gated_delta(cfg))
        interval = cfg.text.get("full_attention_interval")
        full = _first_kind(cfg, "full_attention", interval - 1 if isinstance(interval, int) else 3)
        yield from ((full, 0, p) for p in _gqa(cfg))
    site = first_moe(cfg)
    dense = cfg.text.get("intermediate_size")
    if isinstance(dense, int) and cfg.architecture != "DeepseekV4ForCausalLM" and (site is None or site.number > 0):
        yield from ((0, 3, p) for p in _mlp(cfg, dense, "mlp"))
    shared = _shared_experts(cfg)
    if site is not None and shared and site.layer.parallel.sp_size == 1:
        yield from ((site.number, 3, p) for p in _mlp(cfg, shared, "mlp.shared_experts"))


def _mla(cfg: EngineConfig) -> list[Projection]:
    t, tp = cfg.text, cfg.tp
    names = ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")
    if cfg.architecture == "DeepseekV4ForCausalLM" or not all(isinstance(t.get(name), int) for name in names):
        return []
    heads, nope, rope, v, rank = (int(t[name]) for name in names)
    q_rank = t.get("q_lora_rank")
    out = []
    if isinstance(q_rank, int):
        out.append(Projection("self_attn.q_a_proj", int(t["hidden_size"]), (q_rank, rank + rope), "none"))
        out.append(Projection("self_attn.q_b_proj", q_rank, (heads * (nope + rope) // tp,), "column"))
    else:
        out.append(Projection("self_attn.q_proj", int(t["hidden_size"]), (heads * (nope + rope) // tp,), "column"))
    out.append(Projection("self_attn.kv_b_proj", rank, (heads * (nope + v) // tp,), "column"))
    out.append(Projection("self_attn.o_proj", heads * v // tp, (int(t["hidden_size"]),), "row"))
    return out


def _first_kind(cfg: EngineConfig, kind: str, otherwise: int) -> int:
    kinds = cfg.text.get("layer_types")
    return kinds.index(kind) if isinstance(kinds, list) and kind in kinds else otherwise


def _gated_delta(cfg: EngineConfig) -> list[Projection]:
    """mamba/gdn/qwen_gdn_linear_attn.py:803: Qwen3-Next stores q, k, v, z and b, a interleaved, as one matrix each."""
    t, tp = cfg.text, cfg.tp
    keys = int(t.get("linear_num_key_heads") or 0) * int(t.get("linear_key_head_dim") or 0)
    values = int(t["linear_num_value_heads"]) * int(t.get("linear_value_head_dim") or 0)
    hidden = int(t.get("hidden_size") or 0)
    out = [Projection("linear_attn.out_proj", values // tp, (hidden,), "row")]
    if cfg.architecture != "Qwen3NextForCausalLM":
        return out
    return [
        Projection("linear_attn.in_proj_qkvz", hidden, ((2 * keys + 2 * values) // tp,), "column"),
        Projection("linear_attn.in_proj_ba", hidden, (2 * int(t["linear_num_value_heads"]) // tp,), "column"),
        *out,
    ]


def _gqa(cfg: EngineConfig) -> list[Projection]:
    q, kv = cfg.num_heads * cfg.head_size, cfg.num_kv_heads * cfg.head_size
    hidden = cfg.text.get("hidden_size")
    hidden = hidden if isinstance(hidden, int) else 0
    return [
        Projection("self_attn.q_proj", hidden, (q, kv, kv), "column"),
        Projection("self_attn.o_proj", q, (hidden,), "row"),
    ]


def _mlp(cfg: EngineConfig, size: int, name: str) -> list[Projection]:
    shard = size // cfg.tp
    hidden = cfg.text.get("hidden_size")
    hidden = hidden if isinstance(hidden, int) else 0
    return [
        Projection(f"{name}.gate_proj", hidden, (shard, shard), "column"),
        Projection(f"{name}.down_proj", shard, (hidden,), "row"),
    ]


def _shared_experts(cfg: EngineConfig) -> int | None:
    t = cfg.text
    if cfg.architecture == "DeepseekV4ForCausalLM":
        return None  # pads its shared experts to whole blocks (models/deepseek_v4/nvidia/model.py:143)
    for key in ("share_expert_dim", "shared_expert_intermediate_size"):
        if isinstance(t.get(key), int):
            return int(t[key])
    count, size = t.get("n_shared_experts"), t.get("moe_intermediate_size")
    return count * size if isinstance(count, int) and isinstance(size, int) and count else None
