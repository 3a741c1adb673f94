"""A log as a story: its starts one after the other, and of each what was raised, what it shows, how it ended.

Everything kept of a log is bounded: what a start shows first is kept, and of the rest how much there was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from attnfit.engines.log import LogWords, log_words
from attnfit.explain import consequences
from attnfit.hazards import Catalogue, Hit, Near, catalogue, matches
from attnfit.hazards.match import earlier
from attnfit.inputs.log import Line, Marks
from attnfit.inputs.log.tracebacks import HEADER, Raised, Read, Tracebacks

MOST = 64  # of each thing that is kept of a start
_MOST_STARTS = 256  # starts kept one by one: of a longer restart loop the last
_MESSAGE = 12  # lines of an exception's message
_QUIET = ("INFO", "WARNING", "DEBUG")
_REQUEST = re.compile(r"Received request|Receive: obj=|Finish: obj=|GenerateReqInput|prompt: ['\"]")
_GPU = re.compile(
    r"\b(NVIDIA (?:GeForce |RTX |Tesla |Quadro |DGX )?[A-Z][\w-]*(?: (?!with|compute|and|has)[\w-]+){0,4})"
)
_CAPABILITY = re.compile(r"(?i)compute capability[ :=]*\(?(\d{1,2})[., ]+(\d)\b")

# What a line that speaks of an error holds. The first lines of a log and of each start are read whatever they hold, and
# so are those behind a traceback's: further on, a hazard that prints none of these words would not be seen.
GENERAL = (b"rror", b"ERROR", b"xception", b"raceback", b"atal", b"FATAL", b"CRITICAL", b"ailed", b"ssert", b"Killed")


@dataclass
class Found:
    """A line that shows a hazard."""

    hits: tuple[Hit, ...]  # the one that says most of the line first
    line: Line
    raised: Raised | None
    firm: bool  # said of a failure: not on a line that only informs or warns

    def hit(self, engine: str) -> Hit:
        """The record that is meant: one of another engine only where no other shows it."""
        return next((hit for hit in self.hits if hit.record.engine in ("", engine)), self.hits[0])


@dataclass
class Start:
    """One start of the server."""

    first: int  # line
    ready: int = 0  # line in which it said that it serves; 0: it did not
    died: int = 0  # line in which it said that it does not, or will not
    found: list[Found] = field(default_factory=list)  # since it was ready, else since it began
    raised: list[Raised] = field(default_factory=list)
    errors: list[Line] = field(default_factory=list)
    follows: list[Line] = field(default_factory=list)
    more: int = 0  # that were not kept
    seen: set[str] = field(default_factory=set)
    begun: set[str] = field(default_factory=set)

    @property
    def failed(self) -> bool:
        return bool(self.died or any(f.firm for f in self.found) or (not self.ready and self.raised))


@dataclass
class Story:
    starts: list[Start]
    facts: dict[str, Any]
    engine: str = ""
    lines: int = 0  # that were looked at
    last: int = 0  # number of the last of them
    program: str = ""  # whose log it is, where that is another program
    commands: list[str] = field(default_factory=list)  # lines that may be the command
    frames: int = 0
    foreign: list[str] = field(default_factory=list)  # source files of nobody's package
    ours: int = 0  # lines that only an engine writes
    open_tracebacks: list[str] = field(default_factory=list)


@cache
def marks() -> Marks:
    """What the log is searched for."""
    words = log_words()
    opens = [word.encode() for log in words for word in log.starts]
    others = [word.encode() for log in words for word in (*log.ready, *log.died)]
    triggers = dict.fromkeys((*GENERAL, *opens, *others))
    fewest = [word for word in triggers if not any(other in word for other in triggers if other != word)]
    return Marks(tuple(fewest), tuple(opens), tuple(form for log in words for form in log.prefixes))


def follow(lines: Iterable[Line]) -> Story:
    """Reads a log to its end."""
    teller = _Teller()
    for line in lines:
        teller.read(line)
    return teller.end()


class _Teller:
    def __init__(self) -> None:
        self.words = log_words()
        self.known: Catalogue = catalogue()
        self.earlier = tuple(earlier(self.known))
        self.tracebacks = Tracebacks()
        self.start = Start(1)
        self.story = Story([self.start], {})

    def read(self, line: Line) -> None:
        story, start, text = self.story, self.start, line.text
        story.lines += 1
        story.last = max(story.last, line.number)
        for log in self.words:
            self._of_engine(log, line)
        start = self.start
        if not text.strip():
            self.tracebacks.read(line)
            return
        if story.program == "" and (program := consequences.program(text)):
            story.program = program
        if consequences.restarted(text) and (start.raised or start.found or start.died):
            start = self._again(line)
        for word in self.earlier:
            if word in text:
                start.seen.add(word)
        self._facts(text)
        read = self.tracebacks.read(line)
        if not read.code:
            self._judge(line, read)

    def _of_engine(self, log: LogWords, line: Line) -> None:
        story, text = self.story, line.text
        if any(word in text for word in log.traces):
            story.ours += 1
            story.engine = story.engine or log.engine
        for word in log.starts:
            if word in text:
                story.engine = log.engine
                if word in self.start.begun:
                    self._again(line)
                self.start.begun.add(word)
        if any(word in text for word in log.ready) and (not story.engine or story.engine == log.engine):
            self._ready(line)
        # A request that is logged may quote anything; what ends an engine is not said at a level that only informs.
        if line.level not in _QUIET and not _REQUEST.search(text) and any(word in text for word in log.died):
            self.start.died = self.start.died or line.number
        if any(word in text for word in log.words):
            found = dict(log.facts(text))
            if found:
                story.facts.update(found)

    def _facts(self, text: str) -> None:
        facts = self.story.facts
        if match := _GPU.search(text):
            gpus = facts.setdefault("gpu", [])
            for name in _GPU.findall(text):
                if name not in gpus and len(gpus) < 16:
                    gpus.append(name)
        if match := _CAPABILITY.search(text):
            facts.setdefault("capability", f"{match[1]}.{match[2]}")
        if consequences.command_like(text) and len(self.story.commands) < MOST:
            self.story.commands.append(text)

    def _judge(self, line: Line, read: Read) -> None:
        start, raised = self.start, read.raised
        level = raised.level if raised is not None else read.level or line.level
        firm = level not in _QUIET and line.level not in _QUIET
        if line.level == "LOG" and raised is None and not read.above:
            firm = False  # a logger that prints no levels, informing or warning: what it raises is a traceback
        if raised is not None:
            self._frames(raised)
            if firm:
                _keep(start.raised, raised, start)
        if consequences.follows(line.text, self.words):
            _keep(start.follows, line, start)
        hits = matches(line.text, self.known, Near(read.above, start.seen))
        if hits:
            of = raised or _goes_on(start, line)
            _keep(start.found, Found(tuple(hits), line, of, firm and not hits[0].signature.weak), start)
        elif firm and (line.level in ("ERROR", "CRITICAL") or raised is not None) and HEADER not in line.text:
            _keep(start.errors, line, start)

    def _frames(self, raised: Raised) -> None:
        story = self.story
        story.frames += len(raised.frames)
        for frame in raised.frames:
            file = frame.partition(":")[0]
            if any(mark in frame for log in self.words for mark in log.frames):
                story.ours += 1
            elif consequences.somebodys(file) and len(story.foreign) < MOST:
                story.foreign.append(file)

    def _ready(self, line: Line) -> None:
        """What went wrong before did not keep it from serving."""
        start = self.start
        if not start.ready:
            start.ready, start.died = line.number, 0
            for kept in (start.found, start.raised, start.errors, start.follows):
                kept.clear()

    def _again(self, line: Line) -> Start:
        self.start = Start(line.number, seen=set())
        self.story.starts.append(self.start)
        if len(self.story.starts) > _MOST_STARTS:
            del self.story.starts[1]
        return self.start

    def end(self) -> Story:
        self.story.open_tracebacks = list(self.tracebacks.left_open())
        return self.story


def _goes_on(start: Start, line: Line) -> Raised | None:
    """The exception whose message a line goes on with."""
    last = start.raised[-1] if start.raised else None
    near = last is not None and last.worker == line.worker and line.number - last.number <= _MESSAGE
    return last if near else None


def _keep(kept: list[Any], thing: Any, start: Start) -> None:
    if len(kept) < MOST:
        kept.append(thing)
    else:
        start.more += 1


def said(starts: Iterable[Start]) -> Iterator[Found]:
    for start in starts:
        yield from start.found
