"""The numbers of a model as vLLM reads them from its config: vllm/transformers_utils/model_arch_config_convertor.py."""

from __future__ import annotations

from typing import Any

import msgspec

from attnfit.engines.vllm.launch.read import first_of, read_int, read_list, read_number, read_words, whole
from attnfit.engines.vllm.launch.state import Unknown
from attnfit.hf.config import HfConfig

_KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
_EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
_EXPERTS_PER_TOKEN = (
    "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "top_k",
)  # fmt: skip
_LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "max_target_positions", "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
#: hf_config.model_type -> the attribute that counts a draft's layers
_DRAFT_LAYERS: dict[str, tuple[str, int]] = {
    "deepseek_mtp": ("num_nextn_predict_layers", 0),
    "mimo_mtp": ("num_nextn_predict_layers", 0),
    "mimo_v2_mtp": ("num_nextn_predict_layers", 0),
    "glm4_moe_mtp": ("num_nextn_predict_layers", 0),
    "glm_ocr_mtp": ("num_nextn_predict_layers", 0),
    "ernie_mtp": ("num_nextn_predict_layers", 0),
    "qwen3_next_mtp": ("num_nextn_predict_layers", 0),
    "bailing_hybrid_mtp": ("num_nextn_predict_layers", 0),
    "bailing_hybrid_v3_mtp": ("num_nextn_predict_layers", 0),
    "qwen3_5_mtp": ("mtp_num_hidden_layers", 0),
    "step3p5_mtp": ("num_nextn_predict_layers", 0),
    "pangu_ultra_moe_mtp": ("num_nextn_predict_layers", 0),
    "longcat_flash_mtp": ("num_nextn_predict_layers", 1),
}
_NO_HEADS = ("falcon_mamba", "mamba", "timm_wrapper")
_GEMMA4 = (
    "diffusion_gemma", "diffusion_gemma_text", "gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text",
)  # fmt: skip
#: convertors that need files or remote classes we do not read
_NOT_DERIVED = ("cohere_asr", "nemotron-nas", "moss_audio", "gemma4_mtp", "qwen4_exp_mtp", "mimo_v2_omni_mtp")


class Sizes(msgspec.Struct, kw_only=True):
    """vLLM's ModelArchitectureConfig, field names as there."""

    architectures: list[str]
    model_type: str
    text_model_type: str | None
    hidden_size: int
    total_num_hidden_layers: int
    total_num_attention_heads: int
    head_size: int
    vocab_size: int
    total_num_kv_heads: int
    num_experts: int
    num_experts_per_token: int
    is_deepseek_mla: bool
    is_mm_prefix_lm: bool
    rswa_window: int | None
    max_len: float
    max_len_key: str | None


def compress_ratios(text: HfConfig) -> list[Any]:
    """DeepSeek-V4's per-layer compression (vllm/transformers_utils/deepseek_v4_utils.py)."""
    ratios = read_list(text, "compress_ratios")
    if ratios is not None:
        return ratios
    rates = text.get("compress_rates")
    if not isinstance(rates, dict):
        return []
    return [rates.get(k, 0) for k in read_words(text, "layer_types") or []]


def sizes_of(
    facts: dict[str, Any], node: HfConfig, text: HfConfig, mla_disabled: bool, multimodal: bool = True
) -> Sizes:
    """Every size the later stages read. Raises Unknown, naming the key that is missing."""
    model_type, text_type = node.get("model_type"), text.get("model_type")
    if not isinstance(model_type, str) or not isinstance(text_type, str):
        raise Unknown("model_type in config.json is not a word")
    if model_type in _NOT_DERIVED:
        raise Unknown(f"sizes of model_type {model_type} are not derived here")
    heads = read_int(text, "num_attention_heads", 0)
    mla = is_mla(facts, text)
    max_len, key = _max_len(text)
    kv_heads = kv_heads_of(model_type, text, heads)
    head_size = head_size_of(model_type, text, heads, mla, mla_disabled)
    if model_type in _GEMMA4 and "full_attention" in (read_words(text, "layer_types") or []):
        # layers differ: the whole-model value is the largest one
        head_size = max(head_size, read_int(text, "global_head_dim", 0))
        if text.get("attention_k_eq_v", True):
            kv_heads = max(kv_heads, read_int(text, "num_global_key_value_heads", 0))
    return Sizes(
        architectures=read_words(node, "architectures") or [],
        model_type=model_type,
        text_model_type=text_type,
        hidden_size=read_int(text, "hidden_size", 0),
        total_num_hidden_layers=layers_of(model_type, text),
        total_num_attention_heads=heads,
        head_size=head_size,
        vocab_size=read_int(text, "vocab_size", 0),
        total_num_kv_heads=kv_heads,
        num_experts=experts_of(text),
        num_experts_per_token=experts_per_token_of(text),
        is_deepseek_mla=mla,
        is_mm_prefix_lm=multimodal and _mm_prefix(facts, node, text),
        rswa_window=None if node.get("rswa_window") is None else whole(node.get("rswa_window"), "rswa_window"),
        max_len=max_len,
        max_len_key=key,
    )


def is_mla(facts: dict[str, Any], text: HfConfig) -> bool:
    """Multi-head latent attention, by the release's list of model types and the latent rank."""
    model_type = text.get("model_type")
    if model_type not in facts["mla_model_types"]:
        return False
    if compress_ratios(text):
        return text.get("head_dim") is not None
    return text.get("kv_lora_rank") is not None


def layers_of(model_type: str, text: HfConfig) -> int:
    if model_type in _DRAFT_LAYERS:
        key, default = _DRAFT_LAYERS[model_type]
        return read_int(text, key, default)
    if model_type == "longcat_flash":
        return read_int(text, "num_layers")
    return read_int(text, "num_hidden_layers", 0)


def head_size_of(model_type: str, text: HfConfig, heads: int, mla: bool, mla_disabled: bool) -> int:
    if model_type in _NO_HEADS:
        return 0
    if model_type == "zamba2":
        return read_int(text, "attention_head_dim", 0)
    if mla:
        if compress_ratios(text):
            return read_int(text, "head_dim")
        rope = read_int(text, "qk_rope_head_dim", 0)
        if not mla_disabled:
            return read_int(text, "kv_lora_rank") + rope
        nope = read_int(text, "qk_nope_head_dim", 0)
        if rope and nope:
            return rope + nope
    head_dim = text.get("head_dim")
    if head_dim is not None and whole(head_dim, "head_dim") > 0:
        return whole(head_dim, "head_dim")
    per_head = text.get("hidden_size_per_head")
    if per_head is not None:
        return whole(per_head, "hidden_size_per_head")
    return read_int(text, "hidden_size", 0) // heads if heads else 0


def kv_heads_of(model_type: str, text: HfConfig, heads: int) -> int:
    if model_type in _NO_HEADS:
        return 0
    if model_type == "dbrx":
        attn = text.get("attn_config")
        if not isinstance(attn, HfConfig | dict):
            raise Unknown("attn_config is missing in config.json")
        return whole(attn.get("kv_n_heads", heads), "attn_config.kv_n_heads")
    if (
        model_type in ("falcon", "RefinedWeb", "RefinedWebModel")
        and not text.get("new_decoder_architecture", False)
        and text.get("multi_query", False)
    ):
        return 1
    value = first_of(text, _KV_HEADS, heads)
    if value is None:
        raise Unknown("num_key_value_heads is null in config.json")
    return whole(value, "num_key_value_heads")


def experts_of(text: HfConfig) -> int:
    value = first_of(text, _EXPERTS, 0)
    if isinstance(value, list):
        value = value[0] if value else 0
    if value:
        return whole(value, "num_experts")
    blocks = text.get("block_configs")
    if isinstance(blocks, list):
        counts = [b.get("n_routed_experts", 0) for b in blocks if isinstance(b, dict) and b.get("block_type") == "moe"]
        return max((whole(c, "block_configs") for c in counts), default=0)
    return 0


def experts_per_token_of(text: HfConfig) -> int:
    value = first_of(text, _EXPERTS_PER_TOKEN, 0)
    if isinstance(value, list):
        return max((whole(v, "num_experts_per_tok") for v in value), default=0)
    return whole(value, "num_experts_per_tok") if value else 0


def _mm_prefix(facts: dict[str, Any], node: HfConfig, text: HfConfig) -> bool:
    model_type = node.get("model_type")
    if model_type in _GEMMA4:
        return bool(text.get("use_bidirectional_attention") == "vision")
    if model_type == "deepseek_v4":
        return read_int(node, "vision_n_layers", 0) > 0
    if node.has("is_mm_prefix_lm"):
        return bool(node.get("is_mm_prefix_lm"))
    return model_type in facts["mm_prefix_model_types"]


def _max_len(text: HfConfig) -> tuple[float, str | None]:
    best, key = float("inf"), None
    for name in _LENGTHS:
        value = read_number(text, name)
        if value is not None and value < best:
            best, key = value, name
    override = read_number(text, "model_max_length")
    return (override, "model_max_length") if override else (best, key)
