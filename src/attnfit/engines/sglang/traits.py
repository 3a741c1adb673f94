"""What a release makes of a model: its ModelConfig's own words, from a plain launch on a Hopper GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnfit.core import Capability, Gpu, Model
from attnfit.engines.sglang.answers import Answer, Case
from attnfit.engines.sglang.case import case_of
from attnfit.engines.traits import Trait, Traits

# What the release's ModelConfig calls it, the name `attnfit model` shows, and the key that says so where there is one.
_NAMES = (
    ("architectures", "architecture", "architectures"),
    ("model_type", "model_type", "model_type"),
    ("attention_arch", "attention", ""),
    ("num_hidden_layers", "hidden_layers", "num_hidden_layers"),
    ("hidden_size", "hidden_size", "hidden_size"),
    ("num_attention_heads", "attention_heads", "num_attention_heads"),
    ("num_key_value_heads", "kv_heads", "num_key_value_heads"),
    ("head_dim", "head_size", "head_dim"),
    ("v_head_dim", "v_head_dim", ""),
    ("kv_lora_rank", "kv_lora_rank", "kv_lora_rank"),
    ("qk_nope_head_dim", "qk_nope_head_dim", "qk_nope_head_dim"),
    ("qk_rope_head_dim", "qk_rope_head_dim", "qk_rope_head_dim"),
    ("index_head_dim", "index_head_dim", "index_head_dim"),
    ("sliding_window_size", "sliding_window", "sliding_window"),
    ("attention_chunk_size", "attention_chunk_size", "attention_chunk_size"),
    ("vocab_size", "vocab_size", "vocab_size"),
    ("context_len", "max_model_len", ""),
    ("dtype", "dtype", ""),
    ("quantization", "quantization", ""),
    ("is_multimodal", "multimodal", ""),
)


def traits(version: str, model: Model, ask: Callable[[Case], Answer]) -> Traits:
    """Raises nothing; what cannot be had is in `unknown`."""
    gpu = Gpu(name="", capability=Capability(9, 0))
    case = case_of(model, gpu, ("--model-path", model.path), gpus=None, variables={}, facts={})
    answer = ask(case)
    found = answer.get("traits") or {}
    if not found:
        why = "; ".join(answer.get("unknown") or ()) or str(answer.get("message") or "no model config came of it")
        return Traits(release=version, unknown=(f"what SGLang makes of this model: {why}",))
    named = [Trait(name, _one(found[key]), source) for key, name, source in _NAMES if found.get(key) is not None]
    return Traits(release=version, traits=tuple(named))


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value
