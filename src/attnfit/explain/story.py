"""A log as a story: its starts one after the other, and of each what was raised, what it shows, how it ended.

Everything kept of a log is bounded: what a start shows first is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from attnfit.engines.log import log_words
from attnfit.explain import consequences, survived
from attnfit.explain.commands import Commands
from attnfit.explain.quoted import Quoted, quotes_before
from attnfit.explain.said import Of, said, shows
from attnfit.hazards import Hit
from attnfit.inputs.log import Count, Line
from attnfit.inputs.log.tracebacks import HEADER, Raised, Read, Tracebacks

MOST = 64  # of each thing that is kept of a start
_MOST_STARTS = 256  # starts kept one by one: of a longer restart loop the last
EXCERPT = 12  # lines: what is longer is a log, and a line that only warns is no cause in it
_MESSAGE = 12  # lines of an exception's message
_OWN_WORDS = 3  # lines that a collector writes itself at the beginning
_AT_ONCE = 8  # lines between those that the ranks of one start print
_GOES_ON = 3  # times that a server says it is at work, until what went wrong before is known not to have ended it
QUIET = ("INFO", "WARNING", "DEBUG")
_GPU = re.compile(
    r"\b(NVIDIA (?:GeForce |RTX |Tesla |Quadro |DGX )?[A-Z][\w-]*(?: (?!with|compute|and|has)[\w-]+){0,4})"
)
_CAPABILITY = re.compile(r"(?i)compute capability[ :=]*\(?(\d{1,2})[., ]+(\d)\b")


@dataclass
class Found:
    """A line that shows a hazard."""

    hits: tuple[Hit, ...]  # the one that says most of the line first
    line: Line
    raised: Raised | None
    firm: bool  # said of a failure: not on a line that only informs or warns
    passing: bool = False  # an error that says itself that nothing ended with it

    def hit(self, engine: str) -> Hit:
        """The record that is meant: one of another engine only where no other shows it."""
        return next((hit for hit in self.hits if hit.record.engine in ("", engine)), self.hits[0])


@dataclass
class Start:
    """One start of the server."""

    first: int  # line
    ready: int = 0  # line in which it said that it serves; 0: it did not
    died: int = 0  # line in which it said that it does not, or will not
    found: list[Found] = field(default_factory=list)  # since it was ready or last seen at work, else since it began
    raised: list[Raised] = field(default_factory=list)
    errors: list[Line] = field(default_factory=list)
    follows: list[Line] = field(default_factory=list)
    at_work: int = 0  # times that it said so since anything went wrong
    seen: set[str] = field(default_factory=set)
    begun: dict[tuple[str, str], int] = field(default_factory=dict)  # (mark of a start, worker) -> line
    engine: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    full: int = 0  # the line since which no more that was raised is kept; 0: there is room

    @property
    def failed(self) -> bool:
        return bool(self.died or any(f.firm for f in self.found) or (not self.ready and self.raised))

    def keep(self, kept: list[Any], thing: Any) -> None:
        self.at_work = 0
        if len(kept) < MOST:
            kept.append(thing)
        elif kept is self.raised and not self.full:
            self.full = thing.number

    def serves(self, line: Line) -> None:
        """What went wrong before did not keep it from serving."""
        self.ready, self.died, self.full = self.ready or line.number, 0, 0
        for kept in (self.found, self.raised, self.errors, self.follows):
            kept.clear()

    def goes_on(self, line: Line) -> None:
        """What was only logged before did not end the start."""
        if not self.died:
            self.found = survived.ended(self.found, line)
            self.errors = survived.ended_lines(self.errors, line)


@dataclass
class Story:
    starts: list[Start]
    engine: str = ""
    lines: int = 0  # that were looked at
    last: int = 0  # number of the last of them
    program: str = ""  # whose log it is, where that is another program
    commands: Commands = field(default_factory=Commands)
    facts: dict[str, Any] = field(default_factory=dict)  # of all starts
    foreign: list[str] = field(default_factory=list)  # source files of nobody's package
    ours: int = 0  # lines that only an engine writes
    own: int = 0  # lines in the form of an engine's logger, which is hardly another's
    mentions: int = 0  # lines that hold an engine's name, or look like its logger's
    quiet: int = 0  # lines of a logger that only inform
    few: list[Line] = field(default_factory=list)  # the first ones
    open_tracebacks: list[str] = field(default_factory=list)
    source: str = ""  # pod or container, where the log mixes several
    sources: int = 1

    def facts_of(self, at: int) -> dict[str, Any]:
        """What the log says up to the end of a start: later starts may be of something else."""
        found = dict(self.facts)
        for start in self.starts[: at + 1]:
            if start.engine in ("", self.engine_of(at)):
                found |= start.facts
        return found

    def engine_of(self, at: int) -> str:
        return self.starts[at].engine or self.engine


def follow(lines: Iterable[Line], count: Count | None = None) -> list[Story]:
    """Reads a log to its end: a story for each pod or container that a collector mixed into it, in their order.

    count: that of the reader, which passes over what would not be kept.
    """
    count = count or Count()
    tellers: dict[str, _Teller] = {}
    mixed = False  # a collector names every line, but for a few words of its own
    for place, line in enumerate(lines):
        mixed = mixed or bool(line.source and place <= _OWN_WORDS)
        source = line.source if mixed else ""
        teller = tellers.get(source)
        if teller is None and len(tellers) < MOST:
            teller = tellers[source] = _Teller(source)
        if teller is None:
            continue
        teller.read(line)
        count.full = teller.start.full if len(tellers) == 1 else 0
    stories = [teller.end() for teller in tellers.values()] or [Story([Start(1)])]
    for story in stories:
        story.sources = len(stories)
    return stories


class _Teller:
    def __init__(self, source: str) -> None:
        self.tracebacks = Tracebacks()
        self.quoted = Quoted()
        self.start = Start(1)
        self.seen: frozenset[str] = frozenset()  # of the start, as a key
        self.story = Story([self.start], source=source)

    def read(self, line: Line) -> None:
        story = self.story
        story.lines += 1
        story.last = max(story.last, line.number)
        story.few += [line][: story.lines <= EXCERPT]
        text = line.text
        what = None if text[:1] in (" ", "") else said(text)
        if self.quoted.open or (what is not None and what.quotes):
            own = self.quoted.read(line)
            if not own:
                return
            if own is not text:
                text, what = own, said(own)
        read = self.tracebacks.read(line)
        if read.code:
            self._frame(read.frame)
            return
        if not text or text.isspace():
            return
        what = what or said(text)
        story.quiet += line.level in QUIET
        own_form = line.own and (line.level != "LOG" or bool(line.worker))
        story.mentions, story.own = story.mentions + own_form, story.own + own_form
        story.program = story.program or what.program
        if what.restarted and (self.start.raised or self.start.found or self.start.died):
            self._again(line)
        if what.command or story.commands.open:
            story.commands.read(line)
        for engine in what.engines:
            self._of_engine(engine, line, text)
        if what.served and line.level and (what.served == "work" or not self.start.died):
            self._at_work(line)
        if what.earlier:
            self.start.seen.update(what.earlier)
            self.seen = frozenset(self.start.seen)
        self._facts(text)
        self._judge(line, read, text, what.follows)

    def _of_engine(self, what: Of, line: Line, own: str) -> None:
        story, log = self.story, what.log
        if what.traces or what.starts or what.at_work:
            story.mentions += 1
            story.ours += bool(line.own or what.starts or what.at_work)
            story.engine = story.engine or log.engine
        for word in what.starts:
            story.engine = log.engine
            if self._begins_again(word, line, log.engine):
                self._again(line)
            self.start.begun.setdefault((word, line.worker), line.number)
            self.start.engine = log.engine
        if story.engine in ("", log.engine):
            if what.ready:
                if self.start.ready and self.start.died:
                    self._again(line)  # where its first lines are not printed
                if not self.start.ready:
                    self.start.serves(line)
            if what.at_work and line.level:
                self._at_work(line)
            if what.goes_on and line.level in ("INFO", "LOG"):
                self.start.goes_on(line)
        # What ends an engine is not said at a level that only informs, nor within a quote, nor, once a server serves
        # whose lines have levels, in a line without one.
        plain = not line.level and self.start.ready and story.quiet
        if what.died >= 0 and line.level not in QUIET and not plain and not quotes_before(own, what.died):
            self.start.died, self.start.at_work = self.start.died or line.number, 0
        self.start.facts.update(what.facts)

    def _begins_again(self, word: str, line: Line, engine: str) -> bool:
        """Whether that is another start: not what the ranks of one each print, one behind the other."""
        start = self.start
        if start.engine not in ("", engine):
            return True
        before = start.begun.get((word, line.worker))
        at_once = before is not None and line.number - before <= _AT_ONCE and not (start.ready or start.died)
        return before is not None and not at_once

    def _at_work(self, line: Line) -> None:
        start = self.start
        start.at_work += 1
        if start.at_work >= _GOES_ON or not (start.ready or start.died):
            start.serves(line)

    def _facts(self, text: str) -> None:
        facts = self.story.facts
        if "NVIDIA" in text:
            gpus = facts.setdefault("gpu", [])
            gpus += [name for name in dict.fromkeys(_GPU.findall(text)) if name not in gpus][: 16 - len(gpus)]
        if "apability" in text and (match := _CAPABILITY.search(text)):
            facts.setdefault("capability", f"{match[1]}.{match[2]}")

    def _judge(self, line: Line, read: Read, own: str, follows: bool) -> None:
        start, raised = self.start, read.raised
        level = raised.level if raised is not None else read.level or line.level
        firm = level not in QUIET and line.level not in QUIET
        if line.level == "LOG" and raised is None and not read.above:
            firm = False  # a logger that prints no levels, informing or warning: what it raises is a traceback
        passing = firm and raised is None and not read.above and survived.passing(own)
        firm = firm and not passing
        if raised is not None and firm:
            start.keep(start.raised, raised)
        killed = bool(start.died) and survived.killed(own)  # by the engine itself
        if follows or killed:
            start.keep(start.follows, line)
        hits = () if killed else shows(own, read.above, self.seen)
        if hits:
            of = raised or _goes_on(start, line)
            start.keep(start.found, Found(hits, line, of, firm and not hits[0].signature.weak, passing))
        elif firm and (line.level in ("ERROR", "CRITICAL") or raised is not None) and HEADER not in line.text:
            start.keep(start.errors, line)

    def _frame(self, file: str) -> None:
        """Whose source file a traceback goes through."""
        story = self.story
        if not file:
            return
        if any(mark in file for log in log_words() for mark in log.frames):
            story.ours += 1
        elif len(story.foreign) < MOST and consequences.somebodys(file):
            story.foreign.append(file)

    def _again(self, line: Line) -> None:
        self.start, self.seen = Start(line.number), frozenset()
        self.story.starts.append(self.start)
        if len(self.story.starts) > _MOST_STARTS:
            del self.story.starts[1]

    def end(self) -> Story:
        self.story.open_tracebacks = list(self.tracebacks.left_open())
        self.story.commands.end()
        last = self.start
        if len(self.story.starts) > 1 and not (last.begun or last.ready or last.died or last.raised or last.errors):
            self.story.starts.pop()  # it was announced, and nothing came of it any more
        return self.story


def _goes_on(start: Start, line: Line) -> Raised | None:
    """The exception whose message a line goes on with."""
    last = start.raised[-1] if start.raised else None
    near = last is not None and last.worker == line.worker and line.number - last.number <= _MESSAGE
    return last if near else None
