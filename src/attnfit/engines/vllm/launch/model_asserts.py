"""Asserts of the model classes themselves: what tensor parallelism must divide, what a class does not support.

Sources (0.33.0): vllm/distributed/utils.py:51, model_executor/layers/{vocab_parallel_embedding,mamba/mamba_mixer2}.py,
models/kimi_k3/nvidia/mla.py, and the attention class of each model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from attnfit.core import Capability
from attnfit.engines.vllm.launch import kernel_facts
from attnfit.engines.vllm.launch.state import EngineConfig, Refusal, Unknown

STAGE = "model_init"
_VOCAB_PADDING = 64  # vocab_parallel_embedding.py: DEFAULT_VOCAB_PADDING_SIZE
# vision towers that fall back to whole copies where their heads do not divide (models/vision.py:141)
_REPLICATES = ("KimiK25ForConditionalGeneration", "KimiK3ForConditionalGeneration")
# towers that split their attention heads over the ranks, and build attention before anything else that is split
_SPLITS = (
    "Qwen2_5_VLForConditionalGeneration", "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration", "Gemma3ForConditionalGeneration",
    "Llama4ForConditionalGeneration", "Mistral3ForConditionalGeneration",
)  # fmt: skip
_KIMI = ("KimiK3ForConditionalGeneration", "KimiLinearForCausalLM")

LayerCheck = tuple[int, int, Callable[[], None]]


def not_divisible(value: int, by: int, where: str) -> Refusal:
    return Refusal(STAGE, f"AssertionError: {value} is not divisible by {by}", where)


def early_checks(cfg: EngineConfig, capability: Capability) -> None:
    """What is built before the first decoder layer: vision tower, token embedding."""
    _vision(cfg)
    vocab = cfg.text.get("vocab_size")
    if isinstance(vocab, int):
        padded = -(-vocab // _VOCAB_PADDING) * _VOCAB_PADDING
        if padded % cfg.tp:
            raise not_divisible(padded, cfg.tp, "vllm/model_executor/layers/vocab_parallel_embedding.py:293")


def _vision(cfg: EngineConfig) -> None:
    """A vision tower split over tensor-parallel ranks must divide by their number."""
    if not cfg.is_multimodal or cfg.flags.get("mm_encoder_tp_mode") == "data" or no_vision(cfg):
        return
    vision = cfg.config.get("vision_config")
    if not isinstance(vision, dict):
        return
    heads = _named(vision, "num_attention_heads", "num_heads", "vt_num_attention_heads")
    inner = _named(vision, "intermediate_size", "vt_intermediate_size")
    if heads is not None and heads % cfg.tp:
        if cfg.architecture in _REPLICATES:
            return
        if cfg.architecture in _SPLITS:
            raise not_divisible(heads, cfg.tp, "vllm/distributed/utils.py:53")
    elif inner is None or inner % cfg.tp == 0:
        return
    elif cfg.architecture in _REPLICATES:
        raise not_divisible(inner, cfg.tp, "vllm/distributed/utils.py:53")
    raise Unknown(f"what the vision tower's class says to {heads} heads and {inner} inner units on {cfg.tp} ranks")


def _named(node: dict[str, Any], *keys: str) -> int | None:
    return next((node[key] for key in keys if isinstance(node.get(key), int)), None)


def no_vision(cfg: EngineConfig) -> bool:
    if cfg.flags.get("language_model_only"):
        return True
    limits = cfg.flags.get("limit_mm_per_prompt")
    return isinstance(limits, dict) and bool(limits) and all(limits.get(kind) == 0 for kind in ("image", "video"))


def layer_checks(cfg: EngineConfig, capability: Capability) -> Iterator[LayerCheck]:
    """Checks of the layers' own classes, with the decoder layer and place where they run (see construct.Step)."""
    first_attention, first_state = _first_kinds(cfg)
    if cfg.architecture in _KIMI and cfg.pcp > 1:
        yield first_attention, 2, _kimi_pcp
    if not cfg.use_mla:
        yield first_attention, 0, lambda: _kv_heads(cfg)
    if cfg.is_hybrid:
        yield first_state, 0, lambda: _state_layers(cfg)


def check_kda_dtype(cfg: EngineConfig, stage: str) -> None:
    """KDA's recurrent state is float32 or bfloat16 (mamba/mamba_utils.py:116)."""
    if cfg.mamba_ssm_cache_dtype not in ("auto", "float32", "bfloat16"):
        raise Refusal(
            stage,
            "ValueError: KDA recurrent state supports only auto, float32, and bfloat16; got "
            f"{cfg.mamba_ssm_cache_dtype}",
            "vllm/model_executor/layers/mamba/mamba_utils.py:132",
        )


def _first_kinds(cfg: EngineConfig) -> tuple[int, int]:
    """First attention layer and first state-space layer."""
    kinds = cfg.text.get("layer_types") or cfg.text.get("layers_block_type")
    pattern = cfg.text.get("hybrid_override_pattern")
    linear = cfg.text.get("linear_attn_config")
    if isinstance(linear, dict) and isinstance(linear.get("full_attn_layers"), list):
        full = [i - 1 for i in linear["full_attn_layers"] if isinstance(i, int)]  # counted from 1
        return (min(full) if full else 0), 0
    if isinstance(pattern, str):
        return max(pattern.find("*"), 0), max(pattern.find("M"), 0)
    if isinstance(kinds, list) and cfg.is_hybrid:
        attention = ("full_attention", "attention", "sliding_attention")
        first = next((i for i, kind in enumerate(kinds) if kind in attention), 0)
        state = next((i for i, kind in enumerate(kinds) if kind not in (*attention, "moe", "mlp")), 0)
        return first, state
    return 0, 0


def _kimi_pcp() -> None:
    raise Refusal(
        STAGE,
        "AssertionError: Kimi-K3 MultiHeadLatentAttention does not support prefill context parallelism.",
        "vllm/models/kimi_k3/nvidia/mla.py:370",
    )


def _kv_heads(cfg: EngineConfig) -> None:
    total = cfg.text.get("num_key_value_heads")
    if not isinstance(total, int) or total <= 0:
        return
    none_left = kernel_facts.load("model_asserts")["rounds_down_to_none"].get(cfg.architecture)
    if none_left is not None and cfg.tp > total:  # its heads per rank are total // tp, and are divided by later
        raise Refusal(STAGE, "ZeroDivisionError: integer modulo by zero", none_left)
    if cfg.architecture == "GptOssForCausalLM" and total < cfg.tp:  # gpt_oss.py:156 leaves no head to a rank
        raise Refusal(
            STAGE,
            "ZeroDivisionError: integer modulo by zero",
            "vllm/model_executor/layers/attention/attention.py:329",
        )
    if cfg.architecture == "Param2MoEForCausalLM" and total % cfg.tp:
        raise Refusal(
            STAGE,
            f"AssertionError: num_key_value_heads ({total}) must be divisible by tensor-parallel world size "
            f"({cfg.tp}).",
            "vllm/model_executor/models/param2moe.py:121",
        )
    fits = total % cfg.tp == 0 if total >= cfg.tp else cfg.tp % total == 0
    if not fits:
        where = kernel_facts.load("model_asserts")["kv_heads"].get(cfg.architecture)
        if where is None:
            raise Unknown(f"what {cfg.architecture} says to {total} key/value heads on {cfg.tp} ranks")
        raise Refusal(STAGE, "AssertionError: ", where)


def _state_layers(cfg: EngineConfig) -> None:
    rule = kernel_facts.load("mamba_state")["architectures"].get(cfg.architecture)
    if rule is None:
        return
    source = cfg.text if rule["scope"] == "text" else cfg.config
    source = source.get(rule["section"], {}) if "section" in rule else source
    if rule["kind"] == "mamba2":
        heads, groups = source.get(rule["heads"]), source.get(rule["groups"])
        where = "vllm/model_executor/layers/mamba/mamba_mixer2.py"
        if isinstance(heads, int) and heads % cfg.tp:
            raise Refusal(STAGE, "AssertionError: Tensor parallel world size must divide num heads.", f"{where}:316")
        if isinstance(groups, int) and groups % cfg.tp and groups != 1:
            raise Refusal(
                STAGE,
                "AssertionError: If tensor parallel world size does not divide num_groups, then num_groups must equal "
                "1.",
                f"{where}:320",
            )
        return
    if rule["kind"] == "kda" and rule.get("in_init"):
        check_kda_dtype(cfg, STAGE)
    for key in ("v_heads", "k_heads", "heads"):
        count = source.get(rule.get(key, ""))
        if isinstance(count, int) and count % cfg.tp:
            raise Unknown(f"what {cfg.architecture} says to {count} linear-attention heads on {cfg.tp} ranks")
