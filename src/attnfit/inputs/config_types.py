"""Are the values that decide of a type any engine could use?

A config may be valid JSON and still say `"num_attention_heads": "64"`. The engine would fail somewhere with a message
about something else; we name the key, what is expected and what was found. Keys that are absent are not our concern
here (the engine has defaults), nor is whether a value of the right type is a good one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

_MOST = 2**28  # no dimension of a real model comes near

# Where the same keys may lie one level down, as engines look for them.
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config", "vision_config", "audio_config")


def validate_types(config: dict[str, Any]) -> list[str]:
    """A sentence for each key of wrong type, in the order of the config; empty if there is none.

    Looks at the top level and, for the keys that decide, into the nested configs (`text_config`, ...).
    """
    found = list(_level(config, ""))
    for name in _NESTED:
        if isinstance(nested := config.get(name), dict):
            found += _level(nested, f"{name}.")
            if isinstance(inner := nested.get("text_config"), dict):  # thinker_config.text_config
                found += _level(inner, f"{name}.text_config.")
    return found


def _level(config: dict[str, Any], prefix: str) -> list[str]:
    found = []
    for key, value in config.items():
        if (rule := _RULES.get(key)) is not None and not rule[1](value):
            found.append(f"{prefix}{key} is {_shown(value)}, but must be {rule[0]}")
    return found


def _integer(low: int) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and low <= v < _MOST


def _number(v: Any) -> bool:
    if isinstance(v, int):  # JSON has integers that no float holds
        return not isinstance(v, bool) and abs(v) <= sys.float_info.max
    return isinstance(v, float) and math.isfinite(v)


def _text(v: Any) -> bool:
    return isinstance(v, str)


def _object(v: Any) -> bool:
    return isinstance(v, dict)


def _optional(rule: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda v: v is None or rule(v)


def _or_list(rule: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """One value, or one for each layer."""
    return lambda v: rule(v) or (isinstance(v, list) and bool(v) and all(item is None or rule(item) for item in v))


def _texts(v: Any) -> bool:
    return isinstance(v, list) and all(isinstance(item, str) for item in v)


_COUNT = ("a positive whole number", _or_list(_integer(1)))
_COUNT_OR_NULL = ("a positive whole number or null", _optional(_or_list(_integer(1))))
_SIZE_OR_NULL = ("a whole number of 0 or more, or null", _optional(_or_list(_integer(0))))
_NUMBER = ("a finite number", _or_list(_number))
_OBJECT_OR_NULL = ("an object or null", _optional(_object))
_DTYPE = ("the name of a dtype or null", _optional(_text))

# key -> (what it must be, test). Only keys that decide a verdict, and only what no engine could use otherwise.
_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("num_hidden_layers",), ("a whole number of 0 or more", _integer(0))),
    **dict.fromkeys(("hidden_size", "num_attention_heads"), _COUNT),
    **dict.fromkeys(
        ("num_key_value_heads", "head_dim", "global_head_dim", "vocab_size", "max_position_embeddings"),
        _COUNT_OR_NULL,
    ),
    **dict.fromkeys(
        (
            "kv_lora_rank",
            "q_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
            "index_topk",
            "index_head_dim",
            "index_n_heads",
            "intermediate_size",
            "n_routed_experts",
            "num_experts",
            "num_local_experts",
            "num_nextn_predict_layers",
            "linear_num_key_heads",
            "linear_num_value_heads",
            "linear_key_head_dim",
            "linear_value_head_dim",
            "linear_conv_kernel_dim",
            "mamba_num_heads",
            "mamba_head_dim",
            "mamba_n_heads",
            "mamba_d_state",
            "mamba_d_conv",
            "mamba_expand",
            "mamba_n_groups",
            "n_groups",
            "moe_intermediate_size",
            "first_k_dense_replace",
            "full_attention_interval",
            "num_experts_per_tok",
            "num_heads",
            "ssm_state_size",
        ),
        _SIZE_OR_NULL,
    ),
    "sliding_window": (
        "a whole number or null",
        _optional(_or_list(lambda v: isinstance(v, int) and not isinstance(v, bool) and abs(v) < _MOST)),
    ),
    "rope_theta": _NUMBER,
    **dict.fromkeys(("topk_method", "hybrid_override_pattern"), ("a text or null", _optional(_text))),
    "mlp_only_layers": ("a list or null", _optional(lambda v: isinstance(v, list))),
    "model_type": ("a text", _text),
    "architectures": ("a list of texts or null", _optional(_texts)),
    "layer_types": ("a list of texts or null", _optional(_texts)),
    "torch_dtype": _DTYPE,
    "dtype": _DTYPE,
    **dict.fromkeys(
        (
            "quantization_config",
            "rope_scaling",
            "rope_parameters",
            "linear_attn_config",
            "text_config",
            "vision_config",
        ),
        _OBJECT_OR_NULL,
    ),
    "tie_word_embeddings": ("true, false or null", _optional(lambda v: isinstance(v, bool))),
}


def _shown(value: Any) -> str:
    """A value in a few characters, with its kind where that is what is wrong."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text {_short(repr(value.encode('utf-8', 'replace').decode()))}"
    if isinstance(value, list):
        return "an empty list" if not value else f"a list ({_short(repr(value[:4]))})"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, int) and abs(value) >= _MOST:
        return f"{value:.3g}" if abs(value) < 10**300 else "a number of hundreds of digits"
    return repr(value)


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
