"""Which releases of an engine serve a launch, since when and until when: `check`, asked of each."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
from packaging.version import Version

from attnfit.errors import AttnfitError
from attnfit.fleet.cell import ANSWERS, AS_IS, NO, TOO_SMALL, UNKNOWN, Cell, again, cell
from attnfit.inputs.gpu import GpuInput
from attnfit.subject import Subject, Where, ask

SIDE_BY_SIDE = 4  # releases asked at once, where each answers in a process of its own


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Releases that answer alike, with none between them that answers otherwise; unknown ones may lie between."""

    releases: tuple[str, ...]
    cell: Cell  # of the one named next
    release: str  # where they do not serve, one with a change: it was looked for in the nearest and in the newest


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's releases, oldest first."""

    engine: str
    asked: str  # the release from which the nearest is counted
    releases: tuple[str, ...]
    spans: tuple[Span, ...]
    launched: tuple[str, ...]  # the command

    def nearest(self, answer: str = AS_IS) -> str | None:
        """The release nearest to the one asked about that answers so; of two as near the newer."""
        spans = [span for span in self.spans if span.cell.answer == answer]
        if answer == AS_IS:  # served, but on too few GPUs, is not served
            spans = [span for span in spans if span.cell.memory != TOO_SMALL]
        known = [r for span in spans for r in (span.releases if answer == AS_IS else (span.release,))]
        return _nearest(known, self.asked, self.releases)


def which(subject: Subject, asked: str, on: GpuInput, *, releases: Sequence[str] = ()) -> Answered:
    """`releases`, oldest first; else every release of the subject's engine that can be asked."""
    versions = tuple(releases or subject.engine.releases())
    many = min(SIDE_BY_SIDE, os.cpu_count() or 1) if subject.engine.apart else 1
    with ThreadPoolExecutor(many) as pool:
        cells = list(pool.map(lambda version: _plain(subject, version, on), versions))
    groups: list[list[tuple[str, Cell]]] = []
    open_: dict[bool, list[tuple[str, Cell]]] = {}  # the span that may go on: of known answers, and of unknown ones
    for version, found in zip(versions, cells, strict=True):
        unknown = found.answer == UNKNOWN
        last = open_.get(unknown)
        if last is not None and _alike(last[-1][1], versions) == _alike(found, versions):
            last.append((version, found))
        else:
            open_[unknown] = [(version, found)]
            groups.append(open_[unknown])
    spans = []
    for group in groups:
        names = [version for version, _ in group]
        tried = dict.fromkeys((_nearest(names, asked, versions) or names[-1], names[-1]))
        changed = {each: _changed(subject, each, dict(group)[each], on) for each in tried}
        best = min(changed, key=lambda each: ANSWERS.index(changed[each].answer))
        spans.append(Span(releases=tuple(names), cell=changed[best], release=best))
    return Answered(
        engine=subject.engine.name, asked=asked, releases=versions, spans=tuple(spans), launched=cells[-1].asked
    )


def _nearest(some: Sequence[str], asked: str, releases: Sequence[str]) -> str | None:
    older = [at for at, release in enumerate(releases) if Version(release) <= Version(asked)]
    here = max(older, default=0)
    return min(some, key=lambda each: (abs(releases.index(each) - here), -releases.index(each)), default=None)


def _plain(subject: Subject, version: str, on: GpuInput) -> Cell:
    """The launch as it is, in one release."""
    try:
        here = Where(subject.engine.release(version))
        report = ask(subject, here, on, planned=False, considered=lambda launch: False)
    except AttnfitError as error:  # a book that the user wrote, say, must not cost the other releases their answers
        return Cell(count=sum(n for _, n in on.gpus), answer=UNKNOWN, verdict="unknown", why=str(error))
    return cell(report, lambda step: None)


def _changed(subject: Subject, version: str, found: Cell, on: GpuInput) -> Cell:
    """The same with the smallest change that helps, where it does not start and there is one."""
    if found.answer != NO:
        return found
    here = Where(subject.engine.release(version))
    report = ask(subject, here, on, far=False, considered=lambda launch: launch.ok is False)
    return cell(report, lambda step: again(subject, here, on, step))


def _alike(found: Cell, versions: Sequence[str]) -> tuple[object, ...]:
    """What must be equal for two releases to stand in one span; a text may name its release."""
    names = "|".join(re.escape(version) for version in sorted(versions, key=len, reverse=True))
    return found.answer, found.verdict, found.serves, found.memory, found.doubts, re.sub(names, "X", found.why)
