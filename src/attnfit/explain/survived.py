"""What was logged as an error and did not end a start: it was tried again, it is normal, or loading went on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol, TypeVar

from attnfit.inputs.log import Line

_RETRIED = re.compile(
    r"(?i)\bretry(?:ing)? (?:attempt )?\(?\d+(?: of |/)\d+|\bretrying in \d|\bwill (?:be )?retr(?:y|ied)\b"
)
_NORMAL = re.compile(
    r"(?i)\bthis is (?:normal|expected|harmless)\b|\b(?:can|may) be (?:safely )?ignored\b|safe to ignore"
)
_KILLED = re.compile(r"(?:\S*: line \d+: +\d+ )?Killed(?: +\S.*)?$")  # as a shell says it
_NUMBERS = re.compile(r"\d+")


def passing(text: str) -> bool:
    """Whether a line that is logged as an error says itself that nothing ended with it."""
    return bool(_RETRIED.search(text) or _NORMAL.search(text))


def killed(text: str) -> bool:
    """What a shell prints of a process that was killed. Behind an engine that said it ends, that is how it ends."""
    return _KILLED.match(text) is not None


class _Kept(Protocol):
    @property
    def line(self) -> Line: ...

    @property
    def raised(self) -> object: ...


K = TypeVar("K", bound=_Kept)


def ended(kept: Iterable[K], by: Line) -> list[K]:
    """What `by`, a line of a start that goes on, does not show to be survived: whatever was raised, and what a
    process logged that is another's equal, since one rank goes on loading when the other has failed."""
    return [each for each in kept if each.raised is not None or not _survived(each.line, by)]


def ended_lines(kept: Iterable[Line], by: Line) -> list[Line]:
    return [each for each in kept if not _survived(each, by)]


def _survived(line: Line, by: Line) -> bool:
    if line.level not in ("ERROR", "CRITICAL"):
        return False
    return line.worker in ("", by.worker) or _NUMBERS.sub("", line.worker) != _NUMBERS.sub("", by.worker)
