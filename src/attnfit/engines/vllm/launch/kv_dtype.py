"""The KV cache dtype: flag, checkpoint, architecture.

vllm/utils/torch_utils.py `resolve_kv_cache_dtype_string`, vllm/model_executor/models/config.py.
"""

from __future__ import annotations

from typing import Any

from attnfit.core import Capability
from attnfit.engines.vllm.launch.messages import plain, value_error
from attnfit.engines.vllm.launch.read import read_list
from attnfit.engines.vllm.launch.state import Unknown
from attnfit.hf.config import HfConfig

_MODELOPT = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}


def from_checkpoint(quant: dict[str, Any] | None) -> str:
    """What the checkpoint's own settings make of `auto`. `quant` is the top-level quantization_config."""
    if quant is None or not str(quant.get("quant_method", "")).startswith("modelopt"):
        return "auto"
    inner = quant.get("quantization", quant)
    if not isinstance(inner, dict):
        raise Unknown("quantization_config.quantization in config.json is not an object")
    algo = (
        inner.get("kv_cache_scheme")
        or quant.get("kv_cache_scheme")
        or inner.get("kv_cache_quant_algo")
        or quant.get("kv_cache_quant_algo")
    )
    if isinstance(algo, dict):
        number, kind = algo.get("num_bits"), algo.get("type")
        if algo.get("dynamic") is False and number == 8 and kind == "float":
            algo = "fp8"
        elif number == 4 and kind == "float":
            algo = "nvfp4"
        else:
            return "auto"
    return _MODELOPT.get(algo.lower(), "auto") if isinstance(algo, str) else "auto"


def architecture_edit(
    facts: dict[str, Any], architecture: str, node: HfConfig, text: HfConfig, now: str, capability: Capability
) -> str:
    """The KV dtype after the architecture's own hook."""
    hook = facts["kv_hooks"].get(architecture)
    for edit in (hook or {}).get("edits", ()):
        before = edit["from"]
        if before == "?":
            raise Unknown(f"how {architecture} edits the KV cache dtype in this release")
        hit = now.startswith(before[:-1]) if before.endswith("*") else now == before
        if not hit or (edit.get("sm100") and capability.major != 10):
            continue
        if "needs" in edit and text.get(edit["needs"]) is None:
            continue
        return str(edit["to"])
    return now


def reject_mismatch(now: str, dtype: str) -> None:
    """An explicit float16/bfloat16 KV dtype must be the model's. Raises Refusal."""
    if now not in ("float16", "bfloat16") or now == dtype:
        return
    allowed = f"`auto` or `{dtype}`" if dtype in ("float16", "bfloat16") else "`auto`"
    raise value_error(
        "VllmConfig",
        f'kv_cache_dtype="{now}" is incompatible with dtype="{dtype}". Please set `--kv-cache-dtype` to {allowed}.',
        "vllm/config/vllm.py:1505",
    )


def reject_nvfp4_mla(now: str, use_mla: bool) -> None:
    """Plain NVFP4 pages do not fit MLA. Raises Refusal."""
    if now.startswith("nvfp4") and not now.endswith("_ds_mla") and use_mla:
        raise value_error(
            "VllmConfig",
            "nvfp4 KV cache is not supported with MLA (Multi-head Latent Attention) backends. Please use a different "
            "--kv-cache-dtype (e.g., 'fp8', 'auto', or 'nvfp4_ds_mla' with a sparse MLA backend) for MLA models such "
            "as DeepSeek.",
            "vllm/config/vllm.py:3432",
        )


def packed(now: str) -> bool:
    """TurboQuant and UltraQuant: boundary layers stay at the model's dtype, FlashAttention 2 only."""
    return now.startswith("turboquant_") or now == "ultraquant_4bit"


def boundary_layers(text: HfConfig, node: HfConfig, is_hybrid: bool) -> list[str]:
    """The layers TurboQuant leaves alone, as strings. Raises NotImplementedError's text as Refusal."""
    if is_hybrid:
        if not _full_attention(text, node):
            raise plain(
                "NotImplementedError",
                "TurboQuant KV cache requires identifiable full-attention layers, but none were found in the hybrid "
                "model config.",
                "vllm/model_executor/layers/quantization/turboquant/config.py:197",
            )
        return []
    n = text.get("num_hidden_layers")
    if not isinstance(n, int) or n <= 0:
        return []
    k = min(2, n // 2)
    return [str(i) for i in sorted({*range(k), *range(n - k, n)})]


def _full_attention(text: HfConfig, node: HfConfig) -> list[int]:
    kinds = read_list(text, "layer_types")
    if kinds is not None:
        return [i for i, t in enumerate(kinds) if t in ("full_attention", "attention")]
    kinds = read_list(text, "layers_block_type")
    if kinds is not None:
        return [i for i, t in enumerate(kinds) if t in ("attention", "hybrid")]
    kinds = read_list(node, "attn_type_list")
    return [i for i, t in enumerate(kinds) if t == 1] if kinds is not None else []
