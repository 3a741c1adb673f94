"""The commands that a log's reader offers, put through `check`: one that would be refused again is none.

Nothing is fetched for it, and what cannot be read here is not judged. Where the log does not say the GPU or the
release, a command counts as refused only where it is on every kind of GPU, and in the oldest and the newest release.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec

from attnfit.api import check
from attnfit.core import Report, Step
from attnfit.engines import engine as engine_of
from attnfit.errors import AttnfitError
from attnfit.explain import Answer
from attnfit.explain.cure import Way, release_of
from attnfit.gpus import catalogue

_OFFLINE = ("HF_HUB_OFFLINE", "ATTNFIT_OFFLINE")


class _Place(NamedTuple):
    """A release and a GPU that a command is asked about."""

    engine: str  # "NAME==VERSION"
    gpu: str


def checked(answer: Answer, gpu: str | None = None, count: int | None = None) -> Answer:
    """The answer with the commands that `check` does not refuse, and with the planner's first where it refuses one.

    gpu, count: as on the command line, where the user gives them.
    """
    command = answer.launch.command if answer.launch is not None else None
    if command is None or not any(way.command for way in answer.ways):
        return answer
    if any(name in command.env for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")):
        return answer  # its own word on fetching would count
    with _offline():
        asked = _Asked(_places(answer, gpu), count)
        found: list[Way] = []
        planned = False
        for way in answer.ways:
            why = asked.refusal(way.command) if way.command else ""
            if not why:
                found.append(way)
                continue
            if not planned:
                planned = True
                taken = [other.command for other in answer.ways]
                step = asked.step(command.original)
                if step is not None and step.argv not in taken:
                    found.append(Way(step.text, "", step.argv, gives_up=step.gives_up, from_=way.from_))
            but = f"no command, for attnfit check refuses that one: {why}"
            found.append(msgspec.structs.replace(way, command=None, change="", from_="", but=but))
    return msgspec.structs.replace(answer, ways=tuple(found))


class _Asked:
    def __init__(self, places: Sequence[_Place], count: int | None) -> None:
        self.places, self.count = places, count

    def refusal(self, words: Sequence[str]) -> str:
        """Why the command is refused wherever it was asked; "" where it is not, or nobody can say."""
        why = ""
        for place in self.places:
            report = self._refuses(words, place)
            if report is None:
                return ""
            why = why or _why(report)
        return why

    def step(self, words: Sequence[str]) -> Step | None:
        """The first thing the planner does that helps wherever the launch as it was is refused."""
        refused = [place for place in self.places if self._refuses(words, place)]
        report = self._report(words, refused[0], planned=True) if refused else None
        for step in report.steps if report is not None else ():
            argv = step.argv
            if argv and _is_here(step) and not any(self._refuses(argv, place) for place in refused[1:]):
                one = len(self.places) == 1  # else what then serves it differs
                return step if one else msgspec.structs.replace(step, text=step.text.partition("; then ")[0])
        return None

    def _refuses(self, words: Sequence[str], place: _Place) -> Report | None:
        report = self._report(words, place, planned=False)
        return report if report is not None and report.exit_code == 1 else None

    def _report(self, words: Sequence[str], place: _Place, *, planned: bool) -> Report | None:
        try:
            return check(
                list(words), gpu=place.gpu, count=self.count, engine=place.engine, planned=planned, far=False,
                instead=True,
            )  # fmt: skip
        except AttnfitError:
            return None  # the model is not here, the release is none that is known, ...


def _is_here(step: Step) -> bool:
    return not (step.breaks or step.installs or step.engine or step.release or step.gpu)


def _why(report: Report) -> str:
    launch = report.launch
    text = launch.error or next((hazard.text for hazard in launch.hazards if not hazard.may_break), "")
    if not text and launch.fit is not None:
        text = launch.fit.why
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("Value error, ")), lines[0] if lines else report.verdict)
    return said.removeprefix("Value error, ")


def _places(answer: Answer, gpu: str | None) -> list[_Place]:
    assert answer.launch is not None
    assert answer.launch.command is not None
    command = answer.launch.command
    release = release_of(answer.facts, command)
    known = engine_of(command.engine).at_hand()
    releases = [release] if release else [known[0], known[-1]]
    names = [gpu] if gpu else [name for name in answer.facts.get("gpu", ()) if _known(name)]
    names = names or [*_capability(answer), *_one_of_each()]
    return [_Place(f"{command.engine}=={version}", name) for version in releases for name in names]


def _capability(answer: Answer) -> list[str]:
    """Of the first GPU or requirement that the log speaks of: one more to ask about."""
    found = answer.facts.get("capability")
    return [found] if isinstance(found, str) and _known(found) else []


def _known(name: str) -> bool:
    from attnfit.gpus import lookup

    try:
        lookup(name)
    except AttnfitError:
        return False
    return True


def _one_of_each() -> list[str]:
    """Of every generation the GPU with the most memory, newest first."""
    entries = sorted(catalogue(), key=lambda entry: entry.memory_gb or 0)
    largest = {entry.capability.major: entry.name for entry in entries if entry.capability is not None}
    return [largest[major] for major in sorted(largest, reverse=True)]


@contextmanager
def _offline() -> Iterator[None]:
    """Nothing is fetched meanwhile, neither models nor an engine's sources."""
    before = {name: os.environ.get(name) for name in _OFFLINE}
    os.environ.update(dict.fromkeys(_OFFLINE, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
