"""Typed reading of config values: what is not what it should be becomes Unknown, never a traceback."""

from __future__ import annotations

from typing import Any

from attnfit.engines.vllm.launch.state import Unknown
from attnfit.hf.config import HfConfig

_LIMIT = 2**63


def read_int(node: HfConfig, key: str, default: int | None = None) -> int:
    """A whole number. Raises Unknown for anything else, or where it is missing and there is no default."""
    value = node.get(key)
    if value is None:
        if default is None:
            raise Unknown(f"{key} is missing in config.json")
        return default
    return whole(value, key)


def whole(value: Any, key: str) -> int:
    """`value` as a whole number of a size an engine can use: not negative, within 63 bits. Raises Unknown."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unknown(f"{key} is {value!r} in config.json, not a whole number")
    if not 0 <= value < _LIMIT:
        raise Unknown(f"{key} is out of range in config.json")
    return value


def read_number(node: HfConfig, key: str) -> float | int | None:
    """A finite number, or None where it is missing. Raises Unknown for anything else."""
    value = node.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == float("inf"):
        raise Unknown(f"{key} is {value!r} in config.json, not a number")
    return value


def read_list(node: HfConfig, key: str) -> list[Any] | None:
    """A list, or None where it is missing. Raises Unknown for anything else."""
    value = node.get(key)
    if value is not None and not isinstance(value, list):
        raise Unknown(f"{key} is {type(value).__name__} in config.json, not a list")
    return value


def read_words(node: HfConfig, key: str) -> list[str] | None:
    """A list of words, or None where it is missing. Raises Unknown for anything else."""
    value = read_list(node, key)
    if value is not None and not all(isinstance(x, str) for x in value):
        raise Unknown(f"{key} in config.json holds something that is not a word")
    return value


def first_of(node: HfConfig, names: tuple[str, ...], default: Any = None) -> Any:
    """The first of these attributes that the config has (even where its value is null)."""
    for name in names:
        if node.has(name):
            return node.get(name)
    return default
