"""The lines of a log that may matter, in order. The rest is never decoded: it is searched as bytes, and counted.

A line matters where it holds one of `Marks.triggers`, or stands close behind such a line or a line of a traceback.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from attnfit.inputs.log.prefixes import plain
from attnfit.inputs.log.source import blocks
from attnfit.inputs.log.wrapped import unwrap, wrapped

_AFTER = 4  # lines read behind one that matters
_IN_TRACEBACK = 60  # and behind a line of a traceback: those of other workers stand between
_HEAD = 1000  # lines read at the start, and behind a mark that opens one, whatever they hold
_TRACE = (b"Traceback (most", b'  File "', b'  File \\"')  # the last as JSON writes it
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_PASTED = re.compile(r" ?\[0(?:;0)?m|\[\d{1,2}(?:;\d{1,3})+m")  # colours that lost their escape when copied
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_LONGEST = 1 << 16  # characters of a line that are looked at


class Line(NamedTuple):
    number: int  # in the log, from 1
    text: str
    worker: str = ""
    level: str = ""


class Marks(NamedTuple):
    """What to look for."""

    triggers: Sequence[bytes]  # no quotes and no backslash in them: those are escaped in JSON logs
    opens: Sequence[bytes] = ()  # of them, what stands at the start of a run
    own: Sequence[re.Pattern[str]] = ()  # prefixes of the engines' own loggers


class Count:
    """How much was read, for those who ask afterwards."""

    lines = 0
    bytes = 0


def read_lines(file: BinaryIO, marks: Marks, count: Count | None = None) -> Iterator[Line]:
    """Lines without prefixes, colours and control characters; what a carriage return parts are several."""
    count = count or Count()
    reader: _Reader | None = None
    for block in blocks(file):
        reader = reader or _Reader(marks, wrapped(block))
        yield from reader.read(block, count)


class _Reader:
    def __init__(self, marks: Marks, form: str) -> None:
        self.marks, self.form = marks, form
        self.left = _HEAD  # lines still to be read whatever they hold
        extra = (b'"MESSAGE":[', b'"MESSAGE" : [') if form else ()  # journald, where a line holds colours
        self.triggers = tuple(dict.fromkeys((*marks.triggers, *extra)))

    def read(self, block: bytes, count: Count) -> Iterator[Line]:
        starts = self._starts(block)
        count.bytes += len(block)
        at, n, turn = 0, count.lines, 0
        while at < len(block):
            if not self.left:
                while turn < len(starts) and starts[turn] < at:
                    turn += 1
                if turn == len(starts):
                    break
                n += block.count(b"\n", at, starts[turn])
                at = starts[turn]
            end = block.find(b"\n", at)
            raw, matters = block[at : end if end >= 0 else len(block)], turn < len(starts) and starts[turn] == at
            at = end + 1 if end >= 0 else len(block)
            n += 1
            more = 0
            if matters or self.left:
                more = _IN_TRACEBACK if any(mark in raw for mark in _TRACE) else _AFTER if matters else 0
                if matters and any(mark in raw for mark in self.marks.opens):
                    more = _HEAD
            self.left = max(self.left - 1, more)
            yield from self._lines(raw, n)
        count.lines += block.count(b"\n") + (not block.endswith(b"\n"))

    def _starts(self, block: bytes) -> list[int]:
        """Where lines start that hold a trigger."""
        found: set[int] = set()
        for trigger in self.triggers:
            at = block.find(trigger)
            while at >= 0:
                found.add(block.rfind(b"\n", 0, at) + 1)
                end = block.find(b"\n", at)
                at = block.find(trigger, end) if end >= 0 else -1
        return sorted(found)

    def _lines(self, raw: bytes, number: int) -> Iterator[Line]:
        for message in unwrap(raw, self.form) if self.form else (raw,):
            text = _decoded(message)
            for part in text.split("\r") if "\r" in text else (text,):
                part = _ANSI.sub("", part) if "\x1b" in part else _PASTED.sub("", part) if "m" in part else part
                clean = _CONTROL.sub("", part)[:_LONGEST]
                found = plain(clean, self.marks.own)
                if clean or not part:
                    yield Line(number, found.text.rstrip(), found.worker, found.level)


def _decoded(raw: bytes) -> str:
    """UTF-8, and what is not, byte for byte: one bad byte must not hide the rest of the line."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")
