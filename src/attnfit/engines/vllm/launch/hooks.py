"""What an architecture's own hook changes in the configuration (vllm/model_executor/models/config.py), other than
the KV cache dtype (`kv_dtype.architecture_edit`) and the quantisation method's name (`quant`)."""

from __future__ import annotations

from typing import Any

import msgspec

from attnfit.core import Capability
from attnfit.engines.vllm.launch.messages import assertion, plain
from attnfit.engines.vllm.launch.state import Unknown
from attnfit.hf.config import HfConfig

_WHERE = "vllm/model_executor/models/config.py"

#: hooks that change nothing this derivation carries
_HARMLESS = frozenset(
    {
        "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", "Glm5NextModelConfig", "DeepseekV4ForCausalLMConfig",
        "GptOssForCausalLMConfig", "KimiK3ForConditionalGenerationConfig", "LongcatFlashNgramForCausalLMConfig",
        "Ernie4_5_VLMoeForConditionalGenerationConfig", "MiniMaxM3SparseForConditionalGenerationConfig",
        "Qwen2ForProcessRewardModelConfig", "Qwen2ForRewardModelConfig", "JambaForSequenceClassificationConfig",
        "MambaModelConfig", "Qwen3ForSequenceClassificationConfig", "Qwen3VLForSequenceClassificationConfig",
        "JinaForRankingConfig", "JinaVLForSequenceClassificationConfig", "HybridAttentionMambaModelConfig",
        "Gemma3TextModelConfig",
    }
)  # fmt: skip
_MAMBA_SSM_NEMOTRON = ("NemotronHForCausalLMConfig", "NemotronHNanoVLV2Config")
_MAMBA_SSM_QWEN = (
    "Qwen3_5ForConditionalGenerationConfig", "Qwen3_5ForCausalLMConfig", "Qwen4ExpForConditionalGenerationConfig",
    "Qwen4ExpForCausalLMConfig",
)  # fmt: skip


class CacheState(msgspec.Struct):
    """The parts of CacheConfig that hooks change."""

    block_size: int
    enable_prefix_caching: bool
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    mamba_cache_mode: str = "none"
    mamba_block_size: int | None = None


def hook_of(facts: dict[str, Any], architecture: str, registered: str = "") -> str:
    """The name of the architecture's hook class (else of the class that stands for it), or an empty string."""
    entry = facts["kv_hooks"].get(architecture) or facts["kv_hooks"].get(registered)
    return str(entry["class"]) if entry else ""


def apply_hook(
    hook: str,
    node: HfConfig,
    text: HfConfig,
    cache: CacheState,
    attention: dict[str, Any],
    capability: Capability,
    kv: str,
    release: str,
) -> None:
    """The architecture's hook. Raises Refusal, or Unknown for hooks that are not derived here."""
    if hook == "DeepseekV32ForCausalLM" and not node.has("index_topk"):
        raise assertion("VllmConfig", "", _WHERE)
    if not hook or hook in _HARMLESS:
        return
    if hook in _MAMBA_SSM_NEMOTRON:
        source = text if hook == "NemotronHNanoVLV2Config" else node
        if cache.mamba_ssm_cache_dtype == "auto":
            cache.mamba_ssm_cache_dtype = str(source.get("mamba_ssm_cache_dtype", "float32"))
    elif hook in _MAMBA_SSM_QWEN:
        named = text.get("mamba_ssm_dtype")
        if cache.mamba_ssm_cache_dtype == "auto" and named is not None:
            cache.mamba_ssm_cache_dtype = str(named)
    elif hook == "Gemma4Config":
        _gemma4(text, attention, capability, kv, int(release.split(".")[1]) >= 24)
    elif hook == "AliceAIForCausalLMConfig":
        _alice(node)
    else:
        raise Unknown(f"what the hook {hook} of this architecture changes")


def mamba(cache: CacheState, chunked_prefill: bool, max_model_len: int) -> None:
    """MambaModelConfig: every hybrid and every pure state-space model. Raises Refusal."""
    if cache.enable_prefix_caching:
        if cache.mamba_cache_mode == "none":
            cache.mamba_cache_mode = "align"
        if not chunked_prefill:
            raise assertion("VllmConfig", "Chunked prefill is required for Mamba prefix caching.", _WHERE)
        if cache.mamba_block_size is None:
            cache.mamba_block_size = cache.block_size
    else:
        cache.mamba_cache_mode = "none"
        if cache.mamba_block_size is None:
            cache.mamba_block_size = max_model_len


def _gemma4(text: HfConfig, attention: dict[str, Any], capability: Capability, kv: str, has_fa4: bool) -> None:
    """Full and sliding layers with different head sizes: FlashAttention 4 on every layer, else Triton.

    FlashAttention 4 comes with the wheel and serves compute capability 9.x, 10.x and 11.x. Before 0.24.0 it is not
    considered, and Triton is set only where a head is larger than 256.
    """
    full, sliding = text.get("global_head_dim"), text.get("head_dim")
    if full is None or full == sliding:
        return
    if not isinstance(full, int) or not isinstance(sliding, int):
        raise Unknown("global_head_dim or head_dim is not a whole number")
    if not has_fa4 and max(full, sliding) <= 256:
        return
    if has_fa4 and capability.major in (9, 10, 11) and max(full, sliding) <= 512:
        free = attention.get("flash_attn_version") is None and attention.get("backend") in (None, "FLASH_ATTN")
        if free and not (capability.major == 9 and kv.startswith("fp8")):
            attention["flash_attn_version"] = 4
    elif attention.get("backend") is None:
        attention["backend"] = "TRITON_ATTN"


def _alice(node: HfConfig) -> None:
    if node.get("kda_allow_negative_eigenvalues") is not False:
        raise plain("NotImplementedError", "AliceAI requires kda_allow_negative_eigenvalues=false", _WHERE)
