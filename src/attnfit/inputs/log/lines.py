"""The lines of a log that may matter, in order. The rest is never decoded: it is searched as bytes, and counted.

A line matters where it holds one of `Marks.triggers`, or stands close behind such a line or a line of a traceback. Of
what lies between, a few lines are read that show a server at work, and those that a line without a logger's prefix
goes on with: whether it is a failure or part of a prompt is seen there.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from attnfit.inputs.log.prefixes import plain
from attnfit.inputs.log.source import Count, blocks
from attnfit.inputs.log.wrapped import unwrap, wrapped

_AFTER = 4  # lines read behind one that matters
_IN_TRACEBACK = 60  # and behind a line of a traceback: those of other workers stand between
_HEAD = 1000  # lines read at the start, and behind a mark that opens one, whatever they hold
_AT_WORK = 4  # lines read of each stretch between, that show a server at work
_BEFORE, _BEFORE_BYTES = 200, 1 << 14  # lines looked at for the beginning of what a line goes on with
_MOST_SHAPES = 8192  # lines remembered, of those that are not read again
_BAR = 64  # states of a progress bar that are looked at, the last
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_PASTED = re.compile(r" ?\[0(?:;0)?m|\[\d{1,2}(?:;\d{1,3})+m")  # colours that lost their escape when copied
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_LONGEST = 1 << 16  # characters of a line that are looked at


class Line(NamedTuple):
    number: int  # in the log, from 1
    text: str
    worker: str = ""
    level: str = ""  # "": no logger's
    own: bool = False  # an engine's logger wrote it
    source: str = ""  # pod or container, where a collector mixes several
    head: str = ""  # what stood in front of the text


class Marks(NamedTuple):
    """What to look for."""

    triggers: Sequence[bytes]  # no quotes and no backslash in them: those are escaped in JSON logs
    opens: Sequence[bytes] = ()  # of them, what stands at the start of a run
    own: Sequence[re.Pattern[str]] = ()  # prefixes of the engines' own loggers
    at_work: Sequence[bytes] = ()  # what a server prints that serves
    turns: Sequence[bytes] = ()  # of the triggers, those that every time change what is thought of the server


def read_lines(file: BinaryIO, marks: Marks, count: Count | None = None) -> Iterator[Line]:
    """Lines without prefixes, colours and control characters; what a carriage return parts are several."""
    count = count or Count()
    reader: _Reader | None = None
    for block in blocks(file, count):
        reader = reader or _Reader(marks, wrapped(block))
        yield from reader.read(block, count)
    if count.cut:
        count.cut = count.cut.format(count.lines)


class _Reader:
    def __init__(self, marks: Marks, form: str) -> None:
        self.marks, self.form = marks, form
        self.left = _HEAD  # lines still to be read whatever they hold
        self.passed = b""  # the end of what was passed over before this block
        self.learnt: dict[str, str] = {}  # prefixes of this log
        self.full, self.shapes = 0, set[bytes]()
        self.goes_on = False  # the block before ended within a line
        extra = (b'"MESSAGE":[', b'"MESSAGE" : [') if form else ()  # journald, where a line holds colours
        self.triggers = tuple(dict.fromkeys((*marks.triggers, *extra)))

    def read(self, block: bytes, count: Count) -> Iterator[Line]:
        count.bytes += len(block)
        block = _without_bars(block)
        starts = _starts(block, self.triggers, 0, len(block))
        at, n, turn = 0, count.lines - self.goes_on, 0
        while at < len(block):
            passed, first = b"", n
            if not self.left:
                while turn < len(starts) and starts[turn] < at:
                    turn += 1
                to = starts[turn] if turn < len(starts) else len(block)
                if to > at:
                    first = yield from self._at_work(block, at, to, n)
                    passed = (self.passed if not at else b"") + block[max(at, to - _BEFORE_BYTES) : to]
                    if to == len(block):
                        self.passed = passed[-_BEFORE_BYTES:]
                        break
                    n += block.count(b"\n", at, to)
                    at = to
            end = block.find(b"\n", at)
            raw, matters = block[at : end if end >= 0 else len(block)], turn < len(starts) and starts[turn] == at
            at = end + 1 if end >= 0 else len(block)
            n += 1
            turn += matters
            more = 0
            if count.full and self._known(raw, count.full):
                self.left -= self.left > 0
                continue
            if passed:
                yield from self._before(passed, raw, n - 1, first)
            if matters or self.left:
                more = _IN_TRACEBACK if _traces(raw) else _AFTER if matters else 0
                if matters and any(mark in raw for mark in self.marks.opens):
                    more = _HEAD
            self.left = max(self.left - 1, more)
            yield from self._lines(raw, n)
        else:
            self.passed = b""
        count.lines += block.count(b"\n") - self.goes_on
        self.goes_on = not block.endswith(b"\n")
        count.lines += self.goes_on

    def _known(self, raw: bytes, full: int) -> bool:
        """Whether such a line, but for its figures, was read since nothing more is kept."""
        if self.full != full:
            self.full = full
            self.shapes.clear()
        shape = raw.translate(None, b"0123456789")
        if shape in self.shapes:
            return True
        if len(self.shapes) < _MOST_SHAPES and not any(mark in raw for mark in self.marks.turns):
            self.shapes.add(shape)
        return False

    def _at_work(self, block: bytes, start: int, to: int, n: int) -> Generator[Line, None, int]:
        """Yields a few lines of a stretch that show a server at work; returns the number of the last."""
        places = _starts(block, self.marks.at_work, start, to, _AT_WORK)
        last = 0
        for place in places[:_AT_WORK]:
            last = n + block.count(b"\n", start, place) + 1
            end = block.find(b"\n", place)
            yield from self._lines(block[place : end if end >= 0 else len(block)], last)
        return last

    def _before(self, passed: bytes, raw: bytes, n: int, seen: int) -> Iterator[Line]:
        """What a line without a logger's prefix goes on with: from the last that has one, if that was not read yet."""
        if any(line.level for line in self._lines(raw, n + 1)):
            return
        found: list[list[Line]] = []
        for number, text in enumerate(reversed(passed.split(b"\n")[:-1][-_BEFORE:])):
            if n - number <= seen:
                return
            lines = list(self._lines(text, n - number))
            found.append(lines)
            if any(line.level for line in lines):
                break
        for lines in reversed(found):
            yield from lines

    def _lines(self, raw: bytes, number: int) -> Iterator[Line]:
        messages, level = unwrap(raw, self.form) if self.form else ((raw,), "")
        for message in messages:
            for piece in message.split(b"\r") if b"\r" in message else (message,):
                part = _decoded(piece)
                part = _ANSI.sub("", part) if "\x1b" in part else _PASTED.sub("", part) if "m" in part else part
                clean = (part if part.isprintable() else _CONTROL.sub("", part))[:_LONGEST]
                found = plain(clean, self.marks.own, self.learnt)
                if clean or not part:
                    yield Line(number, found.text.rstrip(), found.worker, found.level or level, *found[3:])


def _traces(raw: bytes) -> bool:
    """Whether that is a line of a traceback, as it is or as JSON writes it."""
    return b"Traceback (most" in raw or b'  File "' in raw or b'  File \\"' in raw


def _without_bars(block: bytes) -> bytes:
    """Of the states of a progress bar, parted by carriage returns, the last ones: those before were written over."""
    if b"\r" not in block or block.count(b"\r") - block.count(b"\r\n") <= _BAR:
        return block
    return b"\n".join(_last_states(line) if b"\r" in line else line for line in block.split(b"\n"))


def _last_states(line: bytes) -> bytes:
    cut = len(line)
    for _ in range(_BAR):
        cut = line.rfind(b"\r", 0, cut)
        if cut < 0:
            return line
    return line[cut + 1 :]


def _starts(block: bytes, marks: Sequence[bytes], start: int, to: int, most: int = 1 << 30) -> list[int]:
    """Where lines start that hold a mark, between two places; of each mark at most so many."""
    found: set[int] = set()
    find, before, add = block.find, block.rfind, found.add
    for mark in marks:
        at, left = find(mark, start, to), most
        while at >= 0 and left:
            add(before(b"\n", start, at) + 1 or start)
            left -= 1
            end = find(b"\n", at, to)
            at = find(mark, end, to) if end >= 0 else -1
    return sorted(found)


def _decoded(raw: bytes) -> str:
    """UTF-8, and what is not, byte for byte: one bad byte must not hide the rest of the line."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")
