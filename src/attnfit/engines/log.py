"""What each engine says of its own logs: how its lines begin, what a start, its end and its follow-on noise look like.

One table per engine, in `engines/ENGINE/log.py`, beside the judges of its hazards (`JUDGES`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from attnfit.engines import ENGINES


class Edit(NamedTuple):
    """A change of a server's arguments and variables, in an engine's own flags."""

    set: Mapping[str, str] = {}  # flag -> value; "" for one that stands bare
    drop: Sequence[str] = ()
    variables: Mapping[str, str | None] = {}  # None takes it away


class LogWords(NamedTuple):
    engine: str
    prefixes: tuple[re.Pattern[str], ...]  # of its logger; groups `worker`, `level`
    starts: tuple[str, ...]  # each stands once in one start
    ready: tuple[str, ...]  # it serves
    goes_on: tuple[str, ...]  # a start has come so far: what was only logged before did not end it
    at_work: tuple[str, ...]  # what it prints again and again while it serves
    died: tuple[str, ...]  # it does not any more, or will not
    follows: tuple[str, ...]  # said because something else went wrong before: never a cause
    frames: tuple[str, ...]  # in the path of its source files
    traces: tuple[str, ...]  # anything else that only its own logs hold
    facts: Callable[[str], Mapping[str, Any]]  # what a line tells, by the names of explain.facts
    words: tuple[str, ...]  # literals, one of which stands in every line that `facts` reads
    command: Callable[[Mapping[str, Any]], Sequence[str] | None]  # the plainest command with those arguments
    edited: Callable[[Sequence[str], str, str | None, Edit], tuple[str, ...]]  # (argv, form, release, edit) -> argv
    # (edit, release) -> the same in what that release has, or why it has nothing of the kind; release None: not known
    spelt: Callable[[Edit, str | None], Edit | str]


def log_words() -> Sequence[LogWords]:
    return [import_module(f"attnfit.engines.{name}.log").LOG for name in ENGINES]


_KEY = re.compile(r"\s*(?:'(\w+)'|\"(\w+)\"|(\w+))\s*[:=]\s*")
_PART = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[\[({<]|[\])}>]|,|[^'\"\[({<\])}>,]+|.", re.DOTALL)
_ENUM = re.compile(r"<[\w.]+: ([^<>]*)>$")


def fields(text: str) -> tuple[dict[str, Any], list[str]]:
    """`{'a': 1, ...}` or `Name(a=1, ...)` as it is printed: the values, and the names of those that are none.

    What is cut off at the end is left out.
    """
    found: dict[str, Any] = {}
    unread: list[str] = []
    at = re.match(r"[^({\[]*[({]", text)
    place = at.end() if at is not None else len(text)
    while (key := _KEY.match(text, place)) is not None:
        start = place = key.end()
        depth = 0
        while (part := _PART.match(text, place)) is not None:
            token = part[0]
            if depth == 0 and token in (",", ")", "}"):
                break
            depth += (token in "[({<") - (token in "])}>")
            place = part.end()
        else:
            break  # cut off
        name, value = key[1] or key[2] or key[3], text[start:place].strip()
        enum = _ENUM.match(value)
        plain = literal(enum[1] if enum is not None else value)
        if plain is not None or value == "None":
            found[name] = plain
        elif re.fullmatch(r"[\w./-]+", value):
            found[name] = value.removeprefix("torch.")  # a name that is printed without quotes
        else:
            unread.append(name)
        if part[0] != ",":
            break
        place += 1
    return found, unread


def literal(text: str) -> Any:
    """A Python value as an engine prints it; None for one that is cut off or no plain value."""
    import ast
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a path that was printed, D:\\models, is no escape
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None
