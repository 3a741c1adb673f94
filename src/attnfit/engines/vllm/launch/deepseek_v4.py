"""DeepSeek-V4 picks its own attention class and never asks the selector.

Sources (0.33.0): vllm/models/deepseek_v4/nvidia/model.py:537, attention.py:92, nvidia/flashinfer_sparse.py:619.
"""

from __future__ import annotations

from attnfit.core import Capability
from attnfit.engines.vllm.launch.state import EngineConfig, Refusal, Unknown

IS_V4 = ("DeepseekV4ForCausalLM",)
#: majors its kernels exist for (v1/attention/backends/mla/flashmla_sparse.py, flashinfer_mla_sparse_sm120.py)
V4_KERNELS = (9, 10, 12)
_NOT_V4 = ("FLASHINFER_MLA_SPARSE", "FLASHINFER_MLA_SPARSE_SM120")


def attention_class(cfg: EngineConfig, capability: Capability) -> str:
    """The layer class of every attention layer. Raises Refusal for a backend that is not V4's."""
    backend = str(cfg.attention.get("backend") or "").rpartition(".")[2].upper()
    if backend in _NOT_V4:
        raise Refusal(
            "model_init",
            f"ValueError: {backend} is not a DeepSeek V4 attention backend. Use FLASHINFER_MLA_SPARSE_DSV4 for "
            "DeepSeek V4 FlashInfer sparse MLA.",
            "vllm/models/deepseek_v4/nvidia/model.py:551",
        )
    sm120 = capability.major == 12
    if backend == "FLASHINFER_MLA_SPARSE_DSV4":
        return "DeepseekV4FlashInferSM120Attention" if sm120 else "DeepseekV4FlashInferMLAAttention"
    if backend in ("FLASHMLA_SPARSE", "FLASHMLA_SPARSE_DSV4"):
        return "DeepseekV4FlashMLAAttention"
    return "DeepseekV4FlashInferSM120Attention" if sm120 else "DeepseekV4FlashMLAAttention"


def check_v4(cfg: EngineConfig, capability: Capability) -> None:
    """Raise Refusal if the attention layers cannot be built."""
    if str(cfg.flags.get("moe_backend") or "").lower().replace("-", "_") == "deep_gemm_mega_moe":
        if not cfg.expert_parallel:
            raise Refusal(
                "model_init",
                "NotImplementedError: DeepSeek V4 MegaMoE currently requires expert parallel. Enable it with "
                "--enable-expert-parallel, or pick a different moe backend.",
                "vllm/models/deepseek_v4/nvidia/model.py:830",
            )
        raise Unknown("whether the DeepGEMM MegaMoE takes this launch")
    v4_kv_cache_dtype(cfg, capability, strict=True)


def v4_kv_cache_dtype(cfg: EngineConfig, capability: Capability, *, strict: bool = False) -> str:
    """The KV dtype after construction: every class but one packs the cache as fp8_ds_mla."""
    try:
        name = attention_class(cfg, capability)
    except Refusal:
        if strict:
            raise
        return cfg.kv_cache_dtype
    kv = cfg.kv_cache_dtype
    if name == "DeepseekV4FlashInferMLAAttention":
        return kv
    if kv != "auto" and not kv.startswith("fp8"):
        if strict:
            raise Refusal(
                "model_init",
                f"ValueError: DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got {kv}. Please set "
                "`--kv-cache-dtype fp8` or select a backend that supports bfloat16 KV cache.",
                "vllm/models/deepseek_v4/attention.py:112",
            )
        return kv
    return "fp8_ds_mla"
