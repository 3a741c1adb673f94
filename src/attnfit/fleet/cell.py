"""One answer among many: a report, cut down to what a table can show."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from attnfit.core import Launch, Report, Status, Step
from attnfit.errors import UsageError
from attnfit.subject import Subject, Where, ask

if TYPE_CHECKING:
    from attnfit.inputs.gpu import GpuInput

AS_IS, WITH_A_CHANGE, NO, UNKNOWN = "as is", "with a change", "no", "unknown"  # the better first
TOO_SMALL = "too small"
ANSWERS = (AS_IS, WITH_A_CHANGE, NO, UNKNOWN)
_COUNTED = re.compile(r"\d+ validation errors? for \w+$")


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the launch on so many GPUs of one kind, in one release. It equals what `attnfit check` says.

    answer: "as is"; "with a change", the planner's smallest; "no"; "unknown".
    serves, memory and doubts are those of the launch, else of the launch with the change.
    """

    count: int
    answer: str
    verdict: str  # of `check`: passes | refused | breaks | unknown
    exact: bool = True  # False: only the nearest rule book's opinion
    serves: str = ""  # the backends
    why: str = ""  # a clause: what refuses, what breaks, or what is not known
    change: str = ""
    gives_up: str = ""
    installs: str = ""  # what pip must install first
    asked: tuple[str, ...] = ()  # the launch; keys and tokens of it are shown as $NAME
    command: tuple[str, ...] = ()  # the one that starts
    memory: str = ""  # fits | may break | too small | unknown; "": not measured
    doubts: tuple[str, ...] = ()  # hazards that may break it, by their code

    @property
    def starts(self) -> bool:
        return self.answer in (AS_IS, WITH_A_CHANGE)


# Asks about the launch that a step proposes; None: its words cannot be read.
Again = Callable[[Step], Report | None]


def again(subject: Subject, where: Where, on: GpuInput, step: Step) -> Report | None:
    """The changed launch, in the same place."""
    from attnfit.inputs.command import parse_command

    try:
        command = parse_command(step.argv or ())
    except UsageError:
        return None
    return ask(
        subject._replace(command=command), where, on, env=step.env, planned=False, considered=lambda launch: False
    )


def cell(report: Report, again: Again) -> Cell:
    """`again` asks about the launch of a step, of which the step says no more than its command."""
    launch, count = report.launch, sum(n for _, n in report.gpus)
    found = Cell(
        count=count,
        answer=UNKNOWN,
        verdict=report.verdict,
        exact=report.exact,
        why=_why(report),
        asked=report.command,
    )
    if report.verdict == "unknown":
        return found
    if report.verdict == "passes":
        return msgspec.structs.replace(found, answer=AS_IS, command=report.command, **_served(launch))
    step = next((each for each in report.steps if each.argv and not each.breaks), None)
    if step is None:
        return msgspec.structs.replace(found, answer=NO, memory=_memory(launch))
    assert step.argv is not None
    after = again(step)
    known = after is not None and after.verdict == "passes"
    return msgspec.structs.replace(
        found,
        answer=WITH_A_CHANGE,
        change=step.text.partition("; then ")[0].partition("; it may")[0],
        gives_up=step.gives_up,
        installs=step.installs,
        command=step.argv,
        **(_served(after.launch) if known and after is not None else _told(step)),
    )


def serves(launch: Launch) -> str:
    """ "FLASH_ATTN", "fa3 (prefill) and triton (decode)": what serves the launch, kind of layer by kind."""
    roles = {role: name for role, name in launch.chosen if role in ("prefill", "decode")}
    if len(set(roles.values())) > 1:
        return " and ".join(f"{name} ({role})" for role, name in roles.items())
    names = [*(layer.selection.chosen for layer in launch.layers), *roles.values()]
    return ", ".join(dict.fromkeys(name for name in names if name))


def _served(launch: Launch) -> dict[str, Any]:
    doubts = tuple(dict.fromkeys(hazard.code for hazard in launch.hazards if hazard.may_break))
    return {"serves": serves(launch), "memory": _memory(launch), "doubts": doubts}


def _told(step: Step) -> dict[str, Any]:
    """What the step's own words say, where its command cannot be asked about (it holds a secret, say)."""
    then = step.text.partition("; then ")[2].partition(" serves it")[0]
    memory = {"it runs out of memory": TOO_SMALL, "it may run out of memory": "may break"}
    return {"serves": then, "memory": next((memory[words] for words in memory if words in step.text), "")}


def _memory(launch: Launch) -> str:
    if launch.fit is None:
        return ""
    return TOO_SMALL if launch.fit.verdict == "breaks" or launch.fit.supposed else launch.fit.verdict


def _why(report: Report) -> str:
    """The shortest reason, the GPU's name left out: alike GPUs are grouped by it."""
    text = _reason(report)
    for gpu, _ in report.gpus:
        text = text.replace(gpu.name, "this GPU")
    return " ".join(text.split())


def _reason(report: Report) -> str:
    launch = report.launch
    if report.verdict == "passes":
        return ""
    if report.verdict == "unknown":
        return "; ".join(launch.unknown[:1]) or "what decides is missing"
    if report.verdict == "breaks":
        if launch.fit is not None and launch.fit.verdict == "breaks":
            return launch.fit.why
        hazard = next((each for each in launch.hazards if each.breaks), None)
        return f"{hazard.text.partition(': ')[0]} ({hazard.code})" if hazard is not None else "a kernel cannot run"
    if launch.stage == "selector" and launch.layers and not launch.hypothetical:
        return _no_backend(launch)
    said = launch.error or launch.detail or "it stops without a word"
    head, _, body = said.partition("\n")
    if body and _COUNTED.search(head):  # pydantic counts the errors first
        said = body.strip().partition(" [type=")[0]
    return f"{said.partition(chr(10))[0]}{f' ({launch.when})' if launch.when else ''}"


def _no_backend(launch: Launch) -> str:
    """Of the layers that find none: what the backend lacks that was asked for, where no other is tried; else how many
    are tried, and the one that lacks least."""
    layer = next((each for each in launch.layers if each.selection.chosen is None), launch.layers[0])
    asked = layer.question.backend
    refusing = [v for v in layer.selection.verdicts if v.status is Status.REFUSES and v.reasons]
    tried = [v for v in refusing if (v.backend == asked if asked else v.candidate)]
    if not tried:
        return f"{asked} is not tried on this GPU" if asked else "no backend is tried on this GPU"
    least = min(tried, key=lambda verdict: len({reason.text for reason in verdict.reasons}))
    said = ", ".join(dict.fromkeys(reason.text for reason in least.reasons))
    if len(tried) == 1:
        return f"{least.backend}: {said}"
    return f"none of {len(tried)} backends accepts it; {least.backend} lacks least: {said}"
