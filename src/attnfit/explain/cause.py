"""Which of everything that went wrong came first, and how sure that is. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from attnfit.explain.cure import Way, ways
from attnfit.explain.story import Found, Start, Story
from attnfit.hazards import Record
from attnfit.inputs.log import Line
from attnfit.inputs.log.tracebacks import Raised

_EXCERPT = 12  # lines: what is longer is a log, and a line that only warns is no cause in it

_NOBODY_S = "nothing in it was written by an engine that is known"

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
    follows: tuple[tuple[int, str], ...] = ()  # (line, what it says): only consequences
    others: tuple[str, ...] = ()  # records shown further on, and how sure that they are only consequences is not known
    notes: tuple[str, ...] = ()
    starts: int = 1
    start: int = 1  # the one that is answered
    lines: int = 0

    @property
    def exit_code(self) -> int:
        return EXIT.get(self.verdict, 3)


def explain(story: Story, command: Sequence[str] | str = ()) -> Answer:
    """command: the launch command, where the user gives it."""
    starts = story.starts
    facts = {"engine": story.engine, **story.facts} if story.engine else dict(story.facts)
    about: dict[str, Any] = {"facts": facts, "starts": len(starts), "lines": story.last}
    if not story.lines or not story.last:
        return Answer(verdict="empty", why="the log holds nothing that can be read", **about)
    if other := _other_program(story):
        why = f"this is a log of {other}, not of an engine that is known here"
        return Answer(verdict="no log of an engine", why=why, **about)
    at = next((i for i in range(len(starts) - 1, -1, -1) if _failed(starts[i])), None)
    notes = list(_of_starts(story, at))
    if at is None or (at < len(starts) - 1 and starts[-1].ready):
        return _nothing(story, notes, about)
    start = starts[at]
    about["start"] = at + 1
    follows = tuple(_consequences(start))
    first = _first(start, story)
    if first is not None:
        cause = _cause(first, story.engine, start, notes)
        return Answer(
            verdict="cause found",
            cause=cause,
            ways=ways(cause.record, cause.figures, story, command),
            follows=tuple(each for each in follows if each[0] != cause.number),
            others=tuple(_others(start, story.engine, cause)),
            notes=tuple(notes),
            **about,
        )
    unknown = _unknown(start)
    if unknown is None and not story.ours:
        return Answer(verdict="no log of an engine", why=_NOBODY_S, **about)
    why = "no hazard is known that prints this" if unknown else "it ended, and what ended it is not in the log"
    return Answer(verdict="cause unknown", unknown=unknown, why=why, follows=follows, notes=tuple(notes), **about)


def _other_program(story: Story) -> str:
    if story.program in ("pytest", "pip") and not any(start.begun for start in story.starts):
        return story.program
    if story.program and not story.ours:
        return story.program
    if not story.ours and story.foreign:
        return f"a program of its own ({story.foreign[0]})"
    return ""


def _failed(start: Start) -> bool:
    """A start that serves has failed only when it says so: requests may go wrong without it."""
    return bool(start.died) if start.ready else bool(start.failed or start.errors or _weak(start))


def _weak(start: Start) -> list[Found]:
    return [] if start.begun else start.found


def _first(start: Start, story: Story) -> Found | None:
    firm = next((found for found in start.found if found.firm), None)
    if firm is not None:
        return firm
    excerpt = story.last <= _EXCERPT and not start.begun and not start.ready and not start.raised
    return next((found for found in start.found if found.hits[0].signature.weak), None) if excerpt else None


def _cause(first: Found, engine: str, start: Start, notes: list[str]) -> Cause:
    hit = first.hit(engine)
    sure: str = hit.record.how_sure
    raised = first.raised
    number = raised.number if raised is not None else first.line.number
    before = next((r for r in start.raised if r.number < number and not _said_of(r, start)), None)
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
    if not story.ours and not last.begun:
        return Answer(verdict="no log of an engine", why=_NOBODY_S, notes=tuple(notes), **about)
    why = "no failure in this log: it ends before the server says that it is ready"
    if story.open_tracebacks:
        why = "the log ends in the middle of a traceback; what was raised is not in it"
    return Answer(verdict="no end", why=why, notes=tuple(notes), **about)


def _of_starts(story: Story, at: int | None) -> list[str]:
    starts = story.starts
    if len(starts) == 1:
        return []
    last = starts[-1]
    failed = [start for start in starts if _failed(start)]
    if last.ready and not _failed(last):
        kinds = dict.fromkeys(_shown(start, story) for start in failed)
        kinds.pop("", None)
        of = f" ({', '.join(kinds)})" if kinds else ""
        return [f"{len(failed)} of {len(starts)} starts in this log failed before{of}"] if failed else []
    if at is None:
        return []
    same = sum(_shown(start, story) == _shown(starts[at], story) for start in failed)
    alike = "all in the same way" if same == len(failed) else f"{same} of them in this way"
    return [f"{len(failed)} of {len(starts)} starts in this log failed, {alike}; this is number {at + 1}"]


def _shown(start: Start, story: Story) -> str:
    """The record that a start shows first; "" where it shows none."""
    return next((found.hit(story.engine).record.id for found in start.found if found.firm), "")
