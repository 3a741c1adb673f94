"""Which of everything that went wrong came first, and how sure that is. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from attnfit.explain import when
from attnfit.explain.cure import Launch, Way, launch_of, ways
from attnfit.explain.said import shows
from attnfit.explain.story import EXCERPT, QUIET, Found, Start, Story
from attnfit.explain.whose import NOBODY_S, other_program
from attnfit.hazards import Record, find
from attnfit.inputs.command import parse_command
from attnfit.inputs.log import Line
from attnfit.inputs.log.tracebacks import Raised

_BEGINS = re.compile(r"\s*(?:File \"|Traceback|\[|\(|(?:\w+\.)*\w*(?:Error|Exception)\b)")  # something else

Verdict = Literal["cause found", "cause unknown", "no failure", "no end", "no log of an engine", "empty"]
EXIT = {"cause found": 0, "no failure": 0}  # everything else: 3, none found


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    record: Record
    number: int  # of the line
    line: str
    worker: str = ""
    where: str = ""  # the innermost frame of the traceback
    figures: Mapping[str, str] = {}
    how_sure: str = "certain"


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """A failure that no hazard is known for."""

    chain: tuple[str, ...]  # exceptions, the first one raised in front
    frames: tuple[str, ...]  # of that one, innermost last
    earliest: str  # the first line that speaks of an error
    number: int


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Verdict
    cause: Cause | None = None
    unknown: Unknown | None = None
    why: str = ""  # of a verdict without a cause
    facts: Mapping[str, Any] = {}
    ways: tuple[Way, ...] = ()
    launch: Launch | None = None  # what the ways change
    follows: tuple[tuple[int, str], ...] = ()  # (line, what it says): only consequences
    others: tuple[str, ...] = ()  # records shown further on, and how sure that they are only consequences is not known
    notes: tuple[str, ...] = ()
    starts: int = 1
    start: int = 1  # the one that is answered
    lines: int = 0

    @property
    def exit_code(self) -> int:
        return EXIT.get(self.verdict, 3)


def explain(stories: Sequence[Story], command: Sequence[str] | str = (), cut: str = "") -> Answer:
    """stories: of the log's programs (`follow`). command: the launch command, where the user gives it. cut: why the
    log could not be read to its end.

    Raises UsageError for a command that starts no server.
    """
    given = parse_command(command) if command else None
    story = min(stories, key=_rank)
    notes = [cut] if cut else []
    if story.sources > 1:
        notes.append(
            f"the log is of {story.sources} programs; this is about {story.source or 'the one without a name'}"
        )
    starts = story.starts
    at = next((i for i in range(len(starts) - 1, -1, -1) if _failed(starts[i], story)), None)
    if at is not None and at < len(starts) - 1 and starts[-1].ready:
        at = None
    number = len(starts) - 1 if at is None else at
    facts, engine = story.facts_of(number), story.engine_of(number)
    facts = {"engine": engine, **facts} if engine else facts
    about: dict[str, Any] = {"facts": facts, "starts": len(starts), "lines": story.last}
    if not story.lines or not story.last:
        return Answer(verdict="empty", why="the log holds nothing that can be read", notes=tuple(notes), **about)
    if other := other_program(story):
        return Answer(verdict="no log of an engine", why=other, notes=tuple(notes), **about)
    if given is not None and engine not in ("", given.engine):
        notes.append(
            f"the command behind -- starts {given.engine}, the log is of {engine}: it was not changed; "
            "give the one that wrote this log"
        )
    notes += _of_starts(story, at)
    if at is None:
        return _nothing(story, notes, about)
    start = starts[at]
    about["start"] = at + 1
    follows = tuple(_consequences(start))
    first = _first(start, story)
    if first is not None:
        cause = _cause(first, engine, start, notes)
        launch = launch_of(story, at, facts, given, cause.record.engine)
        return Answer(
            verdict="cause found",
            cause=cause,
            ways=ways(cause.record, cause.figures, facts, launch, _said(first, facts)),
            launch=launch,
            follows=tuple(each for each in follows if each[0] != cause.number),
            others=tuple(_others(start, engine, cause)),
            notes=tuple(notes),
            **about,
        )
    unknown = _unknown(start)
    if unknown is None and not (story.ours or story.mentions):
        return Answer(verdict="no log of an engine", why=NOBODY_S, notes=tuple(notes), **about)
    why = "no hazard is known that prints this" if unknown else "it ended, and what ended it is not in the log"
    return Answer(verdict="cause unknown", unknown=unknown, why=why, follows=follows, notes=tuple(notes), **about)


def _rank(story: Story) -> tuple[bool, ...]:
    """Of several programs in one log the engine's that failed is meant, the first of them."""
    engine = bool(story.ours or story.mentions) and not story.program
    failed = any(_failed(start, story) for start in story.starts) and not story.starts[-1].ready
    failed |= bool(story.starts[-1].died)
    return not (engine and failed), not engine, not any(_failed(start, story) for start in story.starts)


def _failed(start: Start, story: Story) -> bool:
    """A start that serves has failed only when it says so: requests may go wrong without it."""
    return bool(start.died) if start.ready else bool(start.failed or start.errors or _excerpt(start, story))


def _excerpt(start: Start, story: Story) -> list[Found]:
    """What a few lines show that hold nothing else: there a line that only warns was quoted for a reason."""
    short = story.last <= EXCERPT and not start.begun and not start.ready and not start.raised
    return [each for each in start.found if each.firm or each.passing or _alone(each, story)] if short else []


def _alone(found: Found, story: Story) -> bool:
    """Whether no other line that only informs stands beside it."""
    return found.hits[0].signature.weak and story.quiet <= (found.line.level in QUIET)


def _first(start: Start, story: Story) -> Found | None:
    firm = when.first([found for found in start.found if found.firm and not _after(found, start)])
    if firm is not None:
        return firm
    weak = next((found for found in _excerpt(start, story) if found.passing or found.hits[0].signature.weak), None)
    return weak or _rejoined(start, story)


def _rejoined(start: Start, story: Story) -> Found | None:
    """The exception of an excerpt whose message somebody broke into lines."""
    raised = next((each for each in start.raised if not _said_of(each, start)), None)
    if raised is None or start.ready or story.last > EXCERPT:
        return None
    words = [raised.text]
    for line in story.few:
        if line.number > raised.number:
            if not line.text.strip() or line.level or _BEGINS.match(line.text):
                break
            words.append(line.text.strip())
    text = " ".join(words)
    hits = shows(text, raised.above, frozenset(start.seen)) if len(words) > 1 else ()
    hits = tuple(hit for hit in hits if not (hit.signature.weak or hit.signature.alone))
    return Found(hits, Line(raised.number, text), raised, True) if hits else None


def _after(found: Found, start: Start) -> bool:
    """Words that are said of other failures too, behind one that was raised, or logged as an error."""
    if not found.hits[0].signature.alone:
        return False
    before = [raised.number for raised in start.raised if not _said_of(raised, start)]
    return any(number < found.line.number for number in (*before, *(line.number for line in start.errors)))


def _said(first: Found, facts: Mapping[str, Any]) -> str:
    """What the log says of the failure, for remedies that depend on it."""
    above = first.raised.above if first.raised is not None else ""
    return "\n".join((first.line.text, above, *(f"{name}={value}" for name, value in facts.items())))


def _cause(first: Found, engine: str, start: Start, notes: list[str]) -> Cause:
    hit = first.hit(engine)
    sure: str = "likely" if hit.signature.likely else hit.record.how_sure
    raised = first.raised
    number = raised.number if raised is not None else first.line.number
    known = {found.line.number for found in start.found}
    before = next(
        (r for r in start.raised if r.number < number and r.number not in known and not _said_of(r, start)), None
    )
    if before is not None and not (raised is not None and raised.link):
        sure = "likely"
        notes.append(f"line {before.number} raised {before.type} before; no hazard is known that prints it")
    if hit.signature.weak:
        sure = "likely"
        notes.append("launches that go on print this line too")
    return Cause(
        record=hit.record,
        number=first.line.number,
        line=first.line.text.strip(),
        worker=first.line.worker or (raised.worker if raised else ""),
        where=raised.frames[-1] if raised is not None and raised.frames else "",
        figures=hit.figures,
        how_sure=sure,
    )


def _said_of(raised: Raised, start: Start) -> bool:
    return any(line.number == raised.number for line in start.follows)


def _others(start: Start, engine: str, cause: Cause) -> list[str]:
    records = [found.hit(engine).record for found in start.found if found.firm]
    return list(dict.fromkeys(record.id for record in records if record.kind != cause.record.kind))


def _consequences(start: Start) -> list[tuple[int, str]]:
    seen: dict[str, tuple[int, str]] = {}
    for line in start.follows:
        text = line.text.strip()
        seen.setdefault(text, (line.number, text))
    return list(seen.values())


def _unknown(start: Start) -> Unknown | None:
    """The first chain that is no consequence; else the first line that speaks of an error."""
    chain: list[Raised] = []
    for raised in start.raised:
        if chain and not raised.link:
            break
        if chain or not _said_of(raised, start):
            chain.append(raised)
    earliest = min(start.errors, key=lambda line: line.number, default=None)
    if not chain and earliest is None:
        return None
    line = earliest or Line(chain[0].number, chain[0].text)
    return Unknown(
        chain=tuple(raised.text for raised in chain),
        frames=chain[0].frames if chain else (),
        earliest=line.text.strip(),
        number=line.number,
    )


def _nothing(story: Story, notes: list[str], about: dict[str, Any]) -> Answer:
    last = story.starts[-1]
    if last.ready:
        return Answer(verdict="no failure", why="the server came up and serves", notes=tuple(notes), **about)
    if not (story.ours or story.mentions) and not last.begun:
        return Answer(verdict="no log of an engine", why=NOBODY_S, notes=tuple(notes), **about)
    why = "no failure in this log: it ends before the server says that it is ready"
    if story.open_tracebacks:
        why = "the log ends in the middle of a traceback; what was raised is not in it"
    return Answer(verdict="no end", why=why, notes=tuple(notes), **about)


def _of_starts(story: Story, at: int | None) -> list[str]:
    starts = story.starts
    if len(starts) == 1:
        return []
    last = starts[-1]
    failed = [start for start in starts if _failed(start, story)]
    if last.ready and not _failed(last, story):
        kinds = dict.fromkeys(_shown(start, story) for start in failed)
        kinds.pop("", None)
        of = f" ({', '.join(kinds)})" if kinds else ""
        return [f"{len(failed)} of {len(starts)} starts in this log failed before{of}"] if failed else []
    if at is None:
        return []
    same = sum(_shown(start, story) == _shown(starts[at], story) for start in failed)
    alike = "all in the same way" if same == len(failed) else f"{same} of them in this way"
    notes = [f"{len(failed)} of {len(starts)} starts in this log failed, {alike}; this is number {at + 1}"]
    if (shown := _shown(failed[0], story)) not in ("", _shown(starts[at], story)):
        notes.append(
            f"the first that failed, number {starts.index(failed[0]) + 1} (line {failed[0].found[0].line.number}), "
            f"did by {shown} {find(shown).kind}; what failed later may come of it (attnfit explain {shown})"
        )
    return notes


def _shown(start: Start, story: Story) -> str:
    """The record that a start shows first; "" where it shows none."""
    engine = start.engine or story.engine
    found = when.first([found for found in start.found if found.firm and not _after(found, start)])
    return found.hit(engine).record.id if found is not None else ""
