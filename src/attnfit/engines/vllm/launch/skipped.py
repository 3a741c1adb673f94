"""Which layers a checkpoint keeps unquantised: its ignore list, read as the quantisation method reads it.

Sources (0.33.0): quantization/utils/quant_utils.py `is_layer_skipped`, utils/config_utils.py `find_matching_patterns`,
modelopt.py `is_layer_excluded`, awq and moe_wna16 `modules_to_not_convert`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatch
from functools import lru_cache
from typing import Any

from attnfit.engines.vllm.launch.projections import Projection
from attnfit.engines.vllm.launch.state import Unknown

#: where checkpoints may put the decoder layers that the engine calls by its own name
ROOTS = ("model.layers", "model.language_model.layers", "language_model.model.layers", "backbone.layers")


def excluded_modules(quant: dict[str, Any]) -> list[str]:
    """The ignore list of a checkpoint's settings, whatever the method calls it."""
    inner = quant.get("quantization")
    inner = inner if isinstance(inner, dict) else {}
    keys = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers", "exclude")
    for source in (quant, inner):
        for key in keys:
            value = source.get(key)
            if isinstance(value, list):
                return [str(each) for each in value]
    return []


def names_of(p: Projection, part: str = "") -> list[str]:
    """What a layer (or one of its merged matrices) may be called in a checkpoint; the engine's own name first."""
    own = part or p.name
    if not p.root:  # a vision tower
        return [own, f"model.{own}"]
    number = p.root.rpartition(".")[2]
    return [f"{p.root}.{own}", *(f"{root}.{number}.{own}" for root in ROOTS)]


def is_skipped(p: Projection, patterns: Sequence[str], method: str | None) -> bool:
    """Whether the checkpoint keeps this layer unquantised. A merged matrix is skipped if all its parts are."""
    every = tuple(patterns)
    if _named(tuple(names_of(p)), every, method):
        return True
    return bool(p.parts) and all(_named(tuple(names_of(p, part)), every, method) for part in p.parts)


@lru_cache(maxsize=4096)  # a planner asks the same of one launch after another, and an ignore list can have 500 entries
def _named(names: tuple[str, ...], patterns: tuple[str, ...], method: str | None) -> bool:
    return any(_skips(pattern, name, method) for pattern in patterns for name in names)


def _skips(pattern: str, name: str, method: str | None) -> bool:
    if method in ("auto_awq", "awq", "awq_marlin", "moe_wna16"):
        return pattern in name
    if str(method).startswith("modelopt"):
        bare = pattern[:-1] if pattern.endswith("*") and not pattern.endswith(".*") else pattern
        wild = any(sign in pattern for sign in "*?[")
        return pattern in name or name.startswith(f"{bare}.") or name == bare or (wild and fnmatch(name, pattern))
    return matches(pattern, name)


def matches(pattern: str, name: str) -> bool:
    """Equal, or a match of the expression behind "re:". Raises Unknown for one that is not safe to run."""
    if not pattern.startswith("re:"):
        return pattern == name
    expression = pattern[3:]
    if len(expression) > 200 or re.search(r"[*+}]\)?[*+{]", expression):
        raise Unknown(f"whether {pattern!r} in the checkpoint's ignore list names {name}")
    try:
        return re.match(expression, name) is not None
    except re.error:
        return False
