"""One answer among many: a report, cut down to what a table can show."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from attnfit.core import Launch, Report, Status, Step

AS_IS, WITH_A_FLAG, NO, UNKNOWN = "as is", "with a change", "no", "unknown"  # the better first
ANSWERS = (AS_IS, WITH_A_FLAG, NO, UNKNOWN)
_LONG = 160  # characters of a clause; `attnfit check` has the whole
_FAILED = ("fits", "may break", "unknown")


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
    command: tuple[str, ...] = ()  # the launch that starts, keys and tokens shown as $NAME
    memory: str = ""  # fits | may break | breaks | unknown; "": not measured
    doubts: tuple[str, ...] = ()  # hazards that may break it, by their code

    @property
    def starts(self) -> bool:
        return self.answer in (AS_IS, WITH_A_FLAG)


# Asks about the launch with other words; None: they cannot be read.
Again = Callable[[tuple[str, ...]], Report | None]


def cell(report: Report, again: Again) -> Cell:
    """`again` asks about the changed launch, of which a step says no more than its command."""
    launch, count = report.launch, sum(n for _, n in report.gpus)
    found = Cell(count=count, answer=UNKNOWN, verdict=report.verdict, exact=report.exact, why=_why(report))
    if report.verdict == "unknown":
        return found
    if report.verdict == "passes":
        return msgspec.structs.replace(found, answer=AS_IS, why="", command=report.command, **_served(launch))
    step = next((each for each in report.steps if each.argv and not each.breaks), None)
    if step is None:
        return msgspec.structs.replace(found, answer=NO, memory=_memory(launch))
    assert step.argv is not None
    after = again(step.argv)
    known = after is not None and after.verdict == "passes"
    return msgspec.structs.replace(
        found,
        answer=WITH_A_FLAG,
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


def _served(launch: Launch) -> dict[str, object]:
    doubts = tuple(dict.fromkeys(hazard.code for hazard in launch.hazards if hazard.may_break))
    return {"serves": serves(launch), "memory": _memory(launch), "doubts": doubts}


def _told(step: Step) -> dict[str, object]:
    """What the step's own words say, where its command cannot be asked about (a package must be installed first)."""
    then = step.text.partition("; then ")[2].partition(" serves it")[0]
    return {"serves": then, "memory": "may break" if "run out of memory" in step.text else ""}


def _memory(launch: Launch) -> str:
    return launch.fit.verdict if launch.fit is not None else ""


def _why(report: Report) -> str:
    """The shortest reason, the GPU's name left out: alike GPUs are grouped by it."""
    text = _reason(report)
    for gpu, _ in report.gpus:
        text = text.replace(gpu.name, "this GPU")
    text = " ".join(text.split())
    return text if len(text) <= _LONG else text[: _LONG - 4].rsplit(" ", 1)[0] + " ..."


def _reason(report: Report) -> str:
    launch = report.launch
    if report.verdict == "unknown":
        return "; ".join(launch.unknown[:1]) or "what decides is missing"
    if report.verdict == "breaks":
        hazard = next((each for each in launch.hazards if each.breaks), None)
        if launch.fit is not None and launch.fit.verdict == "breaks":
            return launch.fit.why
        return f"{hazard.text.partition(': ')[0]} ({hazard.code})" if hazard is not None else "a kernel cannot run"
    if launch.stage == "selector" and launch.layers and not launch.hypothetical:
        return _no_backend(launch)
    said = launch.error or launch.detail or "it stops without a word"
    return f"{said.partition(chr(10))[0]}{f' ({launch.when})' if launch.when else ''}"


def _no_backend(launch: Launch) -> str:
    """Of the layers that find none: each backend that is tried, with its reasons."""
    layer = next((each for each in launch.layers if each.selection.chosen is None), launch.layers[0])
    tried = [v for v in layer.selection.verdicts if v.candidate and v.status is Status.REFUSES]
    said = "; ".join(f"{v.backend}: {', '.join(dict.fromkeys(r.text for r in v.reasons))}" for v in tried)
    return f"no backend ({said})" if said else "no backend is tried on this GPU"
