"""What a release makes of a model: its ModelConfig's own words, from a plain launch on a Hopper GPU."""

from __future__ import annotations

from collections.abc import Callable

from attnfit.core import Capability, Gpu, Model
from attnfit.engines.sglang.answers import Answer, Case
from attnfit.engines.sglang.case import case_of
from attnfit.engines.traits import Trait, Traits

# What the witness says of a model -> the name `attnfit model` shows, and the key that says so where there is one.
_NAMES = (
    ("architecture", "architecture", "architectures"),
    ("model_type", "model_type", "model_type"),
    ("attention_arch", "attention", ""),
    ("head_dim", "head_size", "head_dim"),
    ("num_attention_heads", "attention_heads", "num_attention_heads"),
    ("num_key_value_heads", "kv_heads", "num_key_value_heads"),
    ("kv_lora_rank", "kv_lora_rank", "kv_lora_rank"),
    ("num_hidden_layers", "hidden_layers", "num_hidden_layers"),
    ("linear_attention", "linear_attention", ""),
    ("full_attention_layers", "full_attention_layers", ""),
    ("context_len", "max_model_len", "max_position_embeddings"),
    ("dtype", "dtype", "dtype"),
    ("quantization", "quantization", "quantization_config"),
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
    named = [Trait(name, found[key], source) for key, name, source in _NAMES if key in found]
    return Traits(release=version, traits=tuple(named))
