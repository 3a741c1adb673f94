"""The words of a command, as far as the compact form knows the flags. argparse's own rules, and nothing guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_WHOLE = re.compile(r"[0-9]{1,12}")
_DECIMAL = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")


class Flag(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the form knows of one field's flag."""

    use: str  # "profile": it decides; "inert": it does not; "model", "tensor_parallel"
    kind: str = ""  # of its values: "" none (a bare flag), "list", "whole", "decimal", "word", "path"
    values: list[Any] = []  # for "list" those it was run with; for numbers the least and the greatest
    withdraws: list[str] = []  # fields that are not given beside it


class Read(NamedTuple):
    odd: str  # the first word that the form does not know; "" if it knows all
    profile: tuple[tuple[str, Any], ...] = ()
    tensor_parallel: int = 1
    bare: frozenset[str] = frozenset()  # inert flags that stand there
    withdrawn: tuple[str, ...] = ()
    model: str = ""


def read(options: Mapping[str, str], flags: Mapping[str, Flag], argv: Sequence[str]) -> Read:
    """A command in canonical form. Of a flag that is repeated the last counts, as for argparse."""
    found: dict[str, Any] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        field = _field(options, name)
        flag = flags.get(field)
        if flag is None:
            return Read(f"{name} is not among the flags it was run with")
        if flag.kind:
            if not equals:
                if not words or words[0].startswith("-"):
                    return Read(f"{name} has no plain value")
                value = words.pop(0)
            known = _value(flag, value)
            if known is None:
                return Read(f"{name} {value} is not among the values it was run with")
            found[field] = known
        elif equals:
            return Read(f"{word} gives a value to a flag that takes none")
        else:
            found[field] = True
    decide = sorted((field, value) for field, value in found.items() if flags[field].use == "profile")
    sizes = [value for field, value in found.items() if flags[field].use == "tensor_parallel"]
    inert = frozenset(field for field in found if flags[field].use == "inert")
    withdrawn = tuple(dict.fromkeys(each for field in sorted(inert) for each in flags[field].withdraws))
    return Read("", tuple(decide), sizes[0] if sizes else 1, inert, withdrawn, found.get("model_path", ""))


def _field(options: Mapping[str, str], name: str) -> str:
    """The field a flag sets, in full or by a beginning that no other flag has."""
    if name in options:
        return options[name]
    if not name.startswith("--"):
        return ""
    beginning = [option for option in options if option.startswith(name)]
    return options[beginning[0]] if len(beginning) == 1 else ""


def _value(flag: Flag, text: str) -> Any:
    """The value as the parser would make it, None where it was not run."""
    if flag.kind == "list":
        return next((value for value in flag.values if str(value) == text), None)
    if flag.kind == "path":
        return text or None
    if flag.kind == "word":
        return text if _WORD.fullmatch(text) else None
    if flag.kind == "whole":
        number: float | None = int(text) if _WHOLE.fullmatch(text) else None
    else:
        number = float(text) if _DECIMAL.fullmatch(text) else None
    return number if number is not None and flag.values[0] <= number <= flag.values[1] else None
