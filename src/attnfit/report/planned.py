"""What to do next, for people, for programs and for `--fix`; what would not help, and why nothing does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from attnfit.core import Plan, Report, Step
from attnfit.inputs.secrets import line
from attnfit.report.plain import printable
from attnfit.report.plain import wrap as _wrap

EARLY = "not every combination of changes was tried ({tried} launches were asked)"


def lines(report: Report) -> Iterator[str]:
    """The steps, each with its command, then what does not help."""
    for number, sentence in enumerate(report.plan.because):
        yield from ("", *_wrap(sentence, "because: ", "         ")) if number == 0 else _wrap(sentence, "         ")
    for step in report.steps:
        yield ""
        yield from _step(step, report.verdict == "passes")
    said = [f"no help: {sentence}" for sentence in report.plan.useless]
    if report.plan.stopped_early:
        said.append(EARLY.format(tried=report.plan.tried))
    if said:
        yield ""
    for sentence in said:
        yield from _wrap(sentence, "", "         ")


def _step(step: Step, surer: bool) -> Iterator[str]:
    yield from _wrap(step.text, "to be sure: " if surer else "next: ", "      ")
    if step.installs and f"pip install '{step.installs}'" not in step.text:
        yield from _wrap(f"first, where it runs: {install_line(step.installs)}", "      ")
    if step.gives_up:
        yield from _wrap(f"gives up: {step.gives_up}", "      ")
    if step.argv:
        yield "      " + printable(line(step.argv))  # never wrapped: it is there to be copied


def install_line(installs: str) -> str:
    """What is to be installed, as a line for a shell."""
    return " ".join(["pip install", *(f"'{each}'" for each in installs.split())])


def fix(report: Report) -> tuple[str, str]:
    """The command to run instead, the launch's own where it passes, or ""; and what belongs on stderr."""
    passes = report.verdict == "passes"
    cure = None if passes else next((step for step in report.steps if step.argv and not step.gpu), None)
    command = report.command if passes else cure.argv if cure else None
    if command:
        first = f"first, where it runs: {install_line(cure.installs)}\n" if cure and cure.installs else ""
        if not report.exact:
            first += f"only the opinion of the nearest rule book: {report.release} has none of its own\n"
        return line(command) + "\n", first
    why = [*report.plan.because, *(step.text for step in report.steps), *report.launch.unknown]
    said = "".join(f"{sentence}\n" for sentence in why[:3])
    return "", f"no command found that would pass; run without --fix for the reasons\n{said}"


def step_dict(step: Step) -> dict[str, Any]:
    """As docs/json.md has it."""
    return {
        "text": step.text,
        "command": list(step.argv) if step.argv else None,
        "gives_up": step.gives_up,
        "breaks": step.breaks,
        "installs": step.installs,
        "kind": step.kind,
        "cost": step.cost,
        "doubts": list(step.doubts),
        "changes": [msgspec.structs.asdict(change) for change in step.changes],
        "engine": step.engine,
        "release": step.release,
        "gpu": step.gpu,
    }


def plan_dict(plan: Plan) -> dict[str, Any]:
    """What stands beside the steps."""
    return {
        "useless": list(plan.useless),
        "because": list(plan.because),
        "tried": plan.tried,
        "stopped_early": plan.stopped_early,
    }
