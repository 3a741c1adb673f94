"""max_model_len: vllm/config/model.py, `_get_and_verify_max_len`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnfit.engines.vllm.launch.messages import value_error
from attnfit.engines.vllm.launch.read import whole
from attnfit.engines.vllm.launch.sizes import Sizes
from attnfit.engines.vllm.launch.state import Unknown
from attnfit.hf.config import HfConfig
from attnfit.hf.special import ALLOWED_LAYER_TYPES

#: rope types whose max_position_embeddings is already scaled
_ALREADY_SCALED = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
_CAUTION = (
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN must be used with extreme caution. If the model uses relative position encoding "
    "(RoPE), positions exceeding derived_max_model_len lead to nan. If the model uses absolute position encoding, "
    "positions exceeding derived_max_model_len will cause a CUDA array out-of-bounds error."
)


def rope_parts(text: HfConfig) -> Iterator[dict[str, Any]]:
    """The rope parameters, one dict per layer type where they are nested."""
    rope = text.get("rope_parameters")
    if not isinstance(rope, dict) or not rope:
        return
    if set(rope) <= {*ALLOWED_LAYER_TYPES, "sparse", "dense", "main", "compress"}:
        yield from (p for p in rope.values() if isinstance(p, dict) and p)
    else:
        yield rope


def resolve_max_model_len(
    text: HfConfig,
    sizes: Sizes,
    asked: int | None,
    sliding_window: int | None,
    disable_sliding_window: bool,
    allow_long: bool,
    target_len: int | None = None,
    model: str = "ModelConfig",
) -> int:
    """The length the engine will serve. Raises Refusal where the user asks for more than the model has.

    `target_len` is the target model's length where `text` is its draft. Lengths are tokens.
    """
    derived, key = sizes.max_len, sizes.max_len_key
    if disable_sliding_window and sliding_window is not None and sliding_window < derived:
        derived, key = sliding_window, "sliding_window"
    if derived == float("inf"):
        if asked is not None:
            return asked
        if target_len is not None:
            return target_len
        derived = 2048
    parts = list(rope_parts(text))
    if parts and "gemma3" not in str(text.get("model_type")):
        factor: Any = 1.0
        for part in parts:
            if part.get("rope_type") not in _ALREADY_SCALED:
                factor = part.get("factor", factor)
        if factor is None:
            factor = 1.0
        if isinstance(factor, bool) or not isinstance(factor, int | float):
            raise Unknown(f"rope factor is {factor!r} in config.json, not a number")
        derived = derived * factor
        if derived != derived or derived == float("inf"):
            raise Unknown("the rope factor in config.json makes the length endless")
    if asked is None or asked == -1:
        if any(p.get("rope_type") == "longrope" for p in parts):
            original = text.get("original_max_position_embeddings")
            return int(whole(original, "original_max_position_embeddings") if original is not None else derived)
        return int(derived)
    if asked > derived:
        longest = text.get("model_max_length")
        if (longest is None or asked > longest) and not allow_long:
            raise value_error(
                model,
                f"User-specified max_model_len ({asked}) is greater than the derived max_model_len ({key}={derived} "
                f"or model_max_length={longest} in model's config.json). To allow overriding this maximum, set the "
                f"env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1. {_CAUTION}",
                "vllm/config/model.py",
            )
    return int(asked)
