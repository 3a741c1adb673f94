"""Gated delta net: which prefill kernel runs, and the token grid it lays on prefix-cache blocks.

Source (0.33.0): vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py:148, mamba/abstract.py:98.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from attnfit.core import Capability
from attnfit.engines.vllm.launch.state import EngineConfig, KvLayer

FLASHINFER_CHECKPOINT_TOKENS = 64  # v1/attention/backends/gdn_attn.py:34


def prefill_backend(cfg: EngineConfig, capability: Capability) -> str:
    """ "flashinfer", "cutedsl" or "triton". Assumes CUDA 13 or newer, which the release's torch brings."""
    requested = str(cfg.flags.get("gdn_prefill_backend") or "auto").strip().lower()
    key_dim = cfg.text.get("linear_key_head_dim")
    blackwell = capability.major in (10, 12) and key_dim == 128
    if requested in ("flashinfer", "auto") and (capability == (9, 0) or blackwell):
        return "flashinfer"
    if requested == "cutedsl" and blackwell and capability.major == 10:
        return "cutedsl"
    return "triton"


def prefill_checkpoint_alignment(cfg: EngineConfig, kv_layers: Sequence[KvLayer], capability: Capability) -> int | None:
    """Common alignment of the recurrent layers' mid-prefill checkpoints; None if one of them takes none."""
    alignment = 1
    for layer in kv_layers:
        if layer.mamba_type is None:
            continue
        exports = (
            layer.layer_class == "QwenGatedDeltaNetAttention"
            and cfg.mamba_cache_mode == "align"
            and prefill_backend(cfg, capability) == "flashinfer"
        )
        if not exports:
            return None
        alignment = lcm(alignment, FLASHINFER_CHECKPOINT_TOKENS)
    return alignment
