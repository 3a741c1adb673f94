"""Tracebacks put together again from lines that several workers write between each other's.

A line belongs to the worker its prefix names. Lines without a prefix belong to the traceback that was written last.
What is remembered is bounded, whatever the log does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from attnfit.inputs.log.lines import Line

HEADER = "Traceback (most recent call last)"
_FRAME = re.compile(r'\s*File "([^"]{1,1000})", line (\d+)(?:, in (.{1,200}))?')
_CELL = re.compile(  # as a notebook prints them
    r"(?:File ([^\s\"]{1,1000}\.py):(\d+)(?:, in (.{1,200}))?|(Cell In ?\[\d+\]), line (\d+))$"
)
_CELL_CODE = re.compile(r"\s*(?:-+> ?)?\d+ ")
_EXCEPTION = re.compile(
    r"(?:(?:\[?rank\d+\]?|\w+Error in \w+|ray\.exceptions\.RayTaskError\(\w+\)):\s*)?"
    r"((?:[A-Za-z_]\w*\.)*(?:[A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt|Warning|Resources|Failed|Failure|Timeout"
    r"|Timedout|Invalid)|Exception|Empty|Full|StopIteration|AbortWorkflow))(?::\s?(.*)|$)"
)
_DIRECT = "The above exception was the direct cause of the following exception:"
_CONTEXT = "During handling of the above exception, another exception occurred:"
_QUOTED = 2  # lines between a source line and the exception that it raised: itself, and what underlines it
_MOST_WORKERS, _MOST_FRAMES, _MOST_MESSAGE, _MOST_CODE = 256, 200, 4000, 8000


class Raised(NamedTuple):
    """An exception with the traceback above it."""

    type: str
    message: str
    worker: str
    level: str
    number: int  # of the line that names it
    frames: tuple[str, ...]  # "FILE:LINE in FUNCTION", outermost first
    above: str  # files, functions and source lines of the traceback, as text
    link: str = ""  # "cause": of the exception before it; "context": raised while that one was handled

    @property
    def text(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


class _Open:
    """A traceback that is being written."""

    def __init__(self, level: str) -> None:
        self.level = level
        self.frames: list[str] = []
        self.code: list[str] = []
        self.size = 0
        self.after_frame = False

    def keep(self, text: str) -> None:
        if self.size < _MOST_CODE:
            self.code.append(text)
            self.size += len(text)


class Read(NamedTuple):
    """What a line is to the traceback it stands in."""

    code: bool  # a source line or frame: what it holds was not printed by anybody
    above: str  # the traceback above it
    raised: Raised | None = None
    level: str = ""  # of the traceback
    frame: str = ""  # the file, where it names one


def _parts(frame: re.Match[str]) -> tuple[str, str, str]:
    """File, line and function of a frame."""
    groups = frame.groups()
    return groups[0] or groups[3], groups[1] or groups[4], groups[2] or "?"


def _is_code(text: str) -> bool:
    return text.strip(" ^~|+-.") == "" or _CELL_CODE.match(text) is not None


class Tracebacks:
    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._links: dict[str, str] = {}
        self._last = ""  # the worker that wrote a traceback's line last
        self._code: tuple[str, int, str] = ("", 0, "")  # worker, number and text of a line that is indented like code

    def read(self, line: Line) -> Read:
        """Takes the next line."""
        worker = line.worker or (self._last if self._open else "")
        text = line.text
        if HEADER in text:
            self._start(line.worker, line.level)
            return Read(False, "")
        if _DIRECT in text or _CONTEXT in text:
            self._links[worker] = "cause" if _DIRECT in text else "context"
            return Read(True, "")
        frame = _FRAME.match(text) or (_CELL.match(text) if text[:5] in ("File ", "Cell ") else None)
        open_ = self._open.get(worker)
        if frame is not None:
            if open_ is None or (not line.worker and line.level and not open_.level):
                open_ = self._start(line.worker, line.level)
            file, number, function = _parts(frame)
            if len(open_.frames) >= _MOST_FRAMES:
                del open_.frames[_MOST_FRAMES // 2]
            open_.frames.append(f"{file}:{number} in {function.strip()}")
            open_.keep(f"{file} {function}")
            open_.after_frame = True
            self._last = worker
            return Read(True, "", frame=file)
        if open_ is None:
            if text.startswith("    "):
                if not _is_code(text):
                    self._code = line.worker, line.number, text.strip()
                return Read(False, "")
            raised = self._bare(line)
            return Read(False, raised.above if raised is not None else "", raised)
        if open_.after_frame and (not text or text.startswith("    ") or _is_code(text)):
            open_.keep(text.strip())
            return Read(True, "")
        above = "\n".join(open_.code)
        found = _EXCEPTION.match(text)
        if found is None:
            if open_.frames and text and not text.startswith(" ") and not line.level:
                return Read(False, above, level=open_.level)
            return Read(False, above, level=open_.level)
        del self._open[worker]
        raised = Raised(
            found[1], (found[2] or "")[:_MOST_MESSAGE], line.worker or worker, open_.level or line.level, line.number,
            tuple(open_.frames), above, self._links.pop(worker, ""),
        )  # fmt: skip
        return Read(False, above, raised, open_.level)

    def _start(self, worker: str, level: str) -> _Open:
        if len(self._open) >= _MOST_WORKERS:
            del self._open[next(iter(self._open))]
        found = self._open[worker] = _Open(level)
        self._last = worker
        return found

    def _bare(self, line: Line) -> Raised | None:
        """An exception named on a line of its own, with no more of a traceback above than a source line."""
        found = _EXCEPTION.match(line.text)
        worker, number, code = self._code
        above = code if worker == line.worker and line.number - number <= _QUOTED else ""
        if found is None or (found[2] is None and "." not in found[1] and not above):
            return None
        link = self._links.pop(line.worker, "")
        return Raised(
            found[1], (found[2] or "")[:_MOST_MESSAGE], line.worker, line.level, line.number, (), above, link
        )  # fmt: skip

    def left_open(self) -> Iterator[str]:
        """The workers whose traceback the log ends in."""
        yield from self._open
