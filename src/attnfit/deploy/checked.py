"""What `attnfit check` says of a launch before it is started, and the commands that may be started instead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import click
import msgspec

from attnfit.deploy.command import Launch
from attnfit.errors import AttnfitError, InputError, UnknownAnswer, UsageError
from attnfit.explain import Answer
from attnfit.steps import Step


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a launch is checked for. gpu None: the machine's own; `check` False: not at all."""

    check: bool = True
    gpu: str | None = None
    count: int | None = None
    engine: str | None = None
    env: Mapping[str, bool] = {}


class Instead(msgspec.Struct, frozen=True, kw_only=True):
    """A command to start instead of one that is refused, or has failed."""

    launch: Launch | None  # None: it cures nothing, is no matter of a command, or its keys cannot be put back
    text: str
    shown: tuple[str, ...] = ()
    gives_up: str = ""
    installs: tuple[str, ...] = ()
    shows: bool = False  # a diagnosis


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    verdict: str  # passes, refused, breaks, unknown
    text: str
    may_break: bool = False
    instead: tuple[Instead, ...] = ()

    @property
    def starts(self) -> bool:
        """What is not known may be started; what is refused, or breaks, may not."""
        return self.verdict in ("passes", "unknown")


def checked(launch: Launch, about: About) -> Checked:
    """Raises an AttnfitError for a launch that cannot be understood, or whose files are not what they should be."""
    if not about.check:
        return Checked(verdict="unknown", text="not checked (--no-check)")
    from attnfit.api import check
    from attnfit.report.text import verdict_line

    if about.gpu is None:
        from attnfit.inputs.nvml import machine_gpus

        try:
            machine_gpus()
        except UsageError:
            return Checked(verdict="unknown", text="not checked: no NVIDIA GPU answers here, and --gpu names none")
    try:
        report = check(launch.words, gpu=about.gpu or "auto", count=about.count, engine=about.engine, env=about.env)
    except UnknownAnswer as error:
        return Checked(verdict="unknown", text=str(error))
    except InputError as error:
        raise InputError(f"{error}; --no-check starts it all the same") from None
    text = click.unstyle(verdict_line(report))
    if report.exit_code == 3:
        return Checked(verdict="unknown", text=text)
    steps = [
        Instead(
            launch=launch.changed(step.argv) if step.argv and is_here(step) else None,
            text=step.text,
            shown=step.argv or (),
            gives_up=step.gives_up,
            installs=(step.installs,) if step.installs else (),
        )
        for step in report.steps
    ]
    return Checked(verdict=report.verdict, text=text, may_break=report.may_break, instead=tuple(steps))


def is_here(step: Step) -> bool:
    """Whether it can be started as things are: nothing to install, no other release, engine or GPU."""
    return not (step.breaks or step.installs or step.engine or step.release or step.gpu)


def cures(launch: Launch, answer: Answer, about: About) -> Iterator[Instead]:
    """What the log's reader offers after a failure, in its order; then what the planner does, where it refuses too."""
    for way in answer.ways:
        yield Instead(
            launch=launch.changed(way.command) if way.command and not (way.installs or way.shows) else None,
            text=way.text + (f" (release {way.release})" if way.release else ""),
            shown=way.command or (),
            gives_up=way.gives_up,
            installs=way.installs,
            shows=way.shows,
        )
    if about.check:
        with contextlib.suppress(AttnfitError):  # it has been started all the same
            yield from checked(launch, about).instead


def may_start(way: Instead, about: About) -> bool:
    """Whether the check does not refuse what is offered."""
    if way.launch is None or not about.check:
        return way.launch is not None
    try:
        return checked(way.launch, about).starts
    except AttnfitError:
        return False
