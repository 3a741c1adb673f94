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
    """A change of a server's arguments, in an engine's own flags."""

    set: Mapping[str, str] = {}  # flag -> value; "" for one that stands bare
    drop: Sequence[str] = ()


class LogWords(NamedTuple):
    engine: str
    prefixes: tuple[re.Pattern[str], ...]  # of its logger; groups `worker`, `level`
    starts: tuple[str, ...]  # each stands once in one start
    ready: tuple[str, ...]  # it serves
    at_work: tuple[str, ...]  # what it prints again and again while it serves
    died: tuple[str, ...]  # it does not any more, or will not
    follows: tuple[str, ...]  # said because something else went wrong before: never a cause
    frames: tuple[str, ...]  # in the path of its source files
    traces: tuple[str, ...]  # anything else that only its own logs hold
    facts: Callable[[str], Mapping[str, Any]]  # what a line tells, by the names of explain.facts
    words: tuple[str, ...]  # literals, one of which stands in every line that `facts` reads
    command: Callable[[Mapping[str, Any]], Sequence[str] | None]  # the plainest command with those arguments
    edited: Callable[[Sequence[str], str, str | None, Edit], tuple[str, ...]]  # (argv, form, release, edit) -> argv


def log_words() -> Sequence[LogWords]:
    return [import_module(f"attnfit.engines.{name}.log").LOG for name in ENGINES]


def literal(text: str) -> Any:
    """A Python value as an engine prints it; None for one that is cut off or no plain value."""
    import ast

    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None
