"""Text to value, one function per kind of `type=` the flag tables name. Errors carry argparse's wording."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any


class BadValue(Exception):
    """The converter refuses with a message of its own (argparse.ArgumentTypeError)."""


class WrongType(Exception):
    """The converter raised ValueError or TypeError; `name` is how argparse calls the converter."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class RaisedTypeError(WrongType):
    """As WrongType, for a TypeError, which the release's own wrappers let through to argparse."""

    def __init__(self, optional: bool = False) -> None:
        super().__init__("_optional_type" if optional else "parse_dataclass")


class EngineError(Exception):
    """Any other exception: it leaves argparse as it is. `text` is "ExceptionName: message"."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


_SUFFIXED = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_JSON_INTS = re.compile(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b")
_QUOTED = re.compile(r'("(?:[^"\\]|\\.)*")')
_OBJECT = re.compile(r"(?s)^\s*{.*}\s*$")
_EXPONENT = {"k": 1, "m": 2, "g": 3, "t": 4}


def to_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise WrongType("int") from None


def to_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise WrongType("float") from None


def human_int(text: str, suffixes: str = "kmgt", name: str = "human_readable_int") -> int:
    """ "1k" is 1,000, "1K" is 1,024; a decimal is allowed before a lower-case suffix only."""
    text = text.strip()
    match = _SUFFIXED.fullmatch(text)
    if match and match[2].lower() in suffixes:
        number, suffix = match.groups()
        power = _EXPONENT[suffix.lower()]
        if suffix.islower():
            try:
                return int(float(number) * 1000.0**power)
            except OverflowError as e:
                raise EngineError(f"OverflowError: {e}") from None
        if "." in number:
            raise BadValue(
                f"Decimals are not allowed with binary suffixes like {suffix}. "
                f"Did you mean to use {number}{suffix.lower()} instead?"
            )
        return int(number) << (10 * power)
    try:
        return int(text)
    except ValueError:
        # 0.12 to 0.15 crash with a KeyError-free ValueError here as well: same outcome for the user
        raise WrongType(name) from None


def human_int_or_auto(text: str, suffixes: str = "kmgt") -> int:
    text = text.strip()
    if text == "-1" or text.lower() == "auto":
        return -1
    return human_int(text, suffixes, "human_readable_int_or_auto")


def to_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise WrongType("loads") from None
    except RecursionError:
        raise EngineError("RecursionError: maximum recursion depth exceeded") from None


def json_or_text(text: str) -> Any:
    """An object when it looks like one (`{...}`), else the text itself."""
    if not _OBJECT.match(text):
        return text
    return optional(to_json)(text)


def expand_json_ints(text: str) -> str:
    """`80m` outside quotes becomes 80000000, as releases with `json_ints` do before reading JSON."""
    parts = _QUOTED.split(text)
    for i in range(0, len(parts), 2):
        parts[i] = _JSON_INTS.sub(lambda m: str(human_int(m.group())), parts[i])
    return "".join(parts)


SHOWN = {"int": "<class 'int'>", "float": "<class 'float'>", "str": "<class 'str'>", "loads": "<function loads>"}


def optional(inner: Callable[[str], Any]) -> Callable[[str], Any]:
    """None for "" and "None"; the release words a failure itself."""

    def convert(text: str) -> Any:
        return None if text in ("", "None") else parsed(inner)(text)

    return convert


def parsed(inner: Callable[[str], Any]) -> Callable[[str], Any]:
    """The release words a failure itself."""

    def convert(text: str) -> Any:
        try:
            return inner(text)
        except RaisedTypeError:
            raise RaisedTypeError(optional=True) from None
        except WrongType as e:
            shown = SHOWN.get(e.name, f"<function {e.name}>")
            raise BadValue(f"Value {text} cannot be converted to {shown}.") from None

    return convert


def comma_ids(text: str) -> list[int | str]:
    return [int(p) if p.isdigit() else p for p in (part.strip() for part in text.split(","))]


PLAIN: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": to_int,
    "float": to_float,
    "json": to_json,
    "union_dict_and_str": json_or_text,
    "lower_underscore": lambda s: s.lower().replace("-", "_"),
    "lower": str.lower,
    "upper": str.upper,
    "comma_ids": comma_ids,
    "parse_reasoning_parser": lambda s: "" if s.lower() == "none" else s,
}
