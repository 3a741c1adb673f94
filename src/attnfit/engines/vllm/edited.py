"""Flags of a `vllm serve` command set or dropped where they stand: bare, dotted (`-ac.backend=X`), or a key of JSON.

A dotted flag beside the JSON of the same group replaces it (utils/argparse_utils.py of 0.12.0 to 0.33.0), so a key that
is set goes into the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from attnfit.engines import Given
from attnfit.engines.log import Edit
from attnfit.engines.vllm.flags.table import Flag
from attnfit.engines.vllm.moves_flags import Flags, name_of
from attnfit.engines.vllm.spelt import nearest

# Flags that are a key of a group as well (engine/arg_utils.py of 0.13.0 to 0.33.0).
_KEY_OF = {
    "--attention-backend": ("--attention-config", "backend"),
    "--moe-backend": ("--kernel-config", "moe_backend"),
    "--linear-backend": ("--kernel-config", "linear_backend"),
}


def edited(argv: Sequence[str], form: str, release: str | None, edit: Edit) -> tuple[str, ...]:
    words = tuple(argv)
    book, _ = nearest(release)
    for flag in (*edit.drop, *edit.set):
        words = _Change(words, form, book, flag).made(edit.set.get(flag))
    return words


class _Place(NamedTuple):
    """Where one setting stands: a flag with its words, or a key in the JSON of one."""

    span: range
    group: dict[str, Any] | None = None


class _Change:
    def __init__(self, words: tuple[str, ...], form: str, book: str, flag: str) -> None:
        self.words, self.flag = words, flag
        self.flags = Flags(Given(words, form, book, {}, None, 0))
        base, _, dotted = flag.partition(".")
        self.option = self.flags.options.get(flag)
        base, dotted = _KEY_OF.get(flag, (base, dotted))
        self.group = self.flags.options.get(base) if dotted else None
        self.key = dotted.replace("-", "_")

    def made(self, value: str | None) -> tuple[str, ...]:
        """The words with the setting at that value, None: without it."""
        places = [place for span in self.flags.spans if (place := self._place(span)) is not None]
        words = self.words
        for number, place in reversed([*enumerate(places, 1)]):
            last = value is not None and number == len(places)  # of several the last counts
            put = self._put(place, value) if last else self._left(place)
            words = (*words[: place.span.start], *put, *words[place.span.stop :])
        if value is None or places:
            return words
        group = next((p for span in reversed(self.flags.spans) if (p := self._json(span)) is not None), None)
        if group is not None and self.option is None:
            put = self._put(group, value)
            return (*words[: group.span.start], *put, *words[group.span.stop :])
        return (*words, self.flag, value) if value else (*words, self.flag)

    def _place(self, span: range) -> _Place | None:
        name = name_of(self.words[span.start])
        if name == self.flag or (self.option is not None and self._of(name) is self.option):
            return _Place(span)
        base, _, dotted = name.partition(".")
        if self.group is None or self._of(base) is not self.group:
            return None
        if dotted:
            return _Place(span) if dotted.replace("-", "_") == self.key else None
        place = self._json(span)
        return place if place is not None and _has(place.group, self.key.split(".")) else None

    def _of(self, name: str) -> Flag | None:
        return self.flags.options.get(name)

    def _json(self, span: range) -> _Place | None:
        """The JSON that a flag of the group is given."""
        word = self.words[span.start]
        if self.group is None or self._of(name_of(word)) is not self.group:
            return None
        text = word.partition("=")[2] or " ".join(self.words[span.start + 1 : span.stop])
        try:
            group = json.loads(text)
        except ValueError:
            return None
        return _Place(span, group) if isinstance(group, dict) else None

    def _put(self, place: _Place, value: str | None) -> tuple[str, ...]:
        word = self.words[place.span.start]
        if place.group is not None and value is not None:
            return self._spelt(word, json.dumps(_set(place.group, self.key.split("."), _plain(value))))
        return self._spelt(word, value) if value else (word.partition("=")[0],)

    def _left(self, place: _Place) -> tuple[str, ...]:
        """What stays of it without the setting."""
        if place.group is None:
            return ()
        rest = _without(place.group, self.key.split("."))
        return self._spelt(self.words[place.span.start], json.dumps(rest)) if rest else ()

    @staticmethod
    def _spelt(word: str, value: str) -> tuple[str, ...]:
        name, equals, _ = word.partition("=")
        return (f"{name}={value}",) if equals else (name, value)


def _has(group: Any, keys: Sequence[str]) -> bool:
    inner = group.get(keys[0]) if isinstance(group, dict) else None
    return inner is not None and (len(keys) == 1 or _has(inner, keys[1:]))


def _set(group: dict[str, Any], keys: Sequence[str], value: Any) -> dict[str, Any]:
    inner = group.get(keys[0])
    new = value if len(keys) == 1 else _set(inner if isinstance(inner, dict) else {}, keys[1:], value)
    return {**group, keys[0]: new}


def _without(group: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    rest = {key: value for key, value in group.items() if key != keys[0]}
    if len(keys) > 1 and (inner := _without(group[keys[0]], keys[1:])):
        rest[keys[0]] = inner
    return rest


def _plain(value: str) -> Any:
    """As JSON has it: a flag's text is one of these, or a name."""
    return int(value) if value.isdecimal() else {"True": True, "False": False}.get(value, value)
