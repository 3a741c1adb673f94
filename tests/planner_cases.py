"""What an offer promises, held against `attnfit check` itself: nothing of the planner is asked but its answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attnfit
from attnfit.core import FlagChange, Report, Step


def ask(
    words: Sequence[str],
    gpu: str,
    count: int,
    engine: str,
    env: dict[str, bool] | None = None,
    *,
    planned: bool = False,
) -> Report:
    return attnfit.check(list(words), gpu=gpu, count=count, engine=engine, env=env, planned=planned)


def clean(report: Report) -> bool:
    """It passes, nothing that is known breaks it, and no flag of it does nothing."""
    return report.verdict == "passes" and not any(hazard.flag for hazard in report.launch.hazards)


def wrong(report: Report, words: Sequence[str], gpu: str, count: int, engine: str) -> Iterator[str]:
    """A sentence for every promise that the plan of a launch breaks."""
    again = ask(words, gpu, count, engine, planned=True)
    if (report.steps, report.plan) != (again.steps, again.plan):
        yield "another plan the second time"
    offers = [step for step in report.steps if step.cost]
    if report.verdict == "passes" and offers and not report.may_break:
        yield "an offer for a launch that passes"
    costs = [step.cost for step in offers if report.verdict != "breaks" or not step.doubts]
    if costs != sorted(costs):  # of a launch that breaks on memory those that surely fit come first
        yield "not the cheapest first"
    kinds = [(step.kind, step.engine, bool(step.env), _what(step)) for step in offers]
    if len(set(kinds)) != len(kinds):
        yield f"two of a kind: {kinds}"
    for step in offers:
        yield from _offer(step, words, gpu, count, engine)


def _what(step: Step) -> object:
    """Of one class there may be several kinds: fewer requests and shorter ones, more GPUs and fewer."""
    return tuple(sorted((change.name, change.after or "") for change in step.changes))


def _offer(step: Step, words: Sequence[str], gpu: str, count: int, engine: str) -> Iterator[str]:
    where = f"{step.engine}=={step.release}" if step.engine else engine
    if step.gpu:  # a command for other hardware is not offered, but what would start there is said
        there = list(words)
        for change in step.changes:
            there = _forth(change, there)
        after = ask(
            there, step.gpu, count, f"{engine.partition('==')[0]}=={step.release}" if step.release else engine, step.env
        )
        if not clean(after):
            yield f"not sound: {' '.join(there)} on {step.gpu}: {after.launch.error or after.verdict}"
        return
    if step.argv is None:
        if step.kind not in ("format", "engine"):  # the other engine may have no certain command, and says why
            yield f"no command: {step.text}"
        return
    after = ask(step.argv, gpu, count, where, step.env)
    if not clean(after):
        yield f"not sound: {' '.join(step.argv)} in {where} with {step.env}: {after.launch.error or after.verdict}"
    if step.kind == "engine":
        return  # said to another engine, nothing of it can be taken back
    for fewer, env, release, left in _less(step, words, engine, where):
        if clean(ask(fewer, gpu, count, release, env)):
            yield f"not minimal: {' '.join(step.argv)} needs no {left}"


def _less(
    step: Step, words: Sequence[str], engine: str, where: str
) -> Iterator[tuple[list[str], dict[str, bool], str, str]]:
    """The offer with each of its parts taken back; an offer that is one part alone has none to take back."""
    assert step.argv is not None
    one = [change for change in step.changes if change.together]
    units = [[change] for change in step.changes if not change.together] + ([one] if one else [])
    if len(units) + bool(step.env) + (where != engine) == 1:
        return
    for unit in units:
        argv = list(step.argv)
        for change in unit:
            argv = _back(change, argv, words)
        yield argv, dict(step.env), where, ", ".join(map(str, unit))
    if step.env:
        yield list(step.argv), {}, where, "package"
    if where != engine:
        yield list(step.argv), dict(step.env), engine, where


def _back(change: FlagChange, argv: list[str], given: Sequence[str]) -> list[str]:
    """The words with one flag or variable as it was given."""
    if change.variable:
        return [word for word in argv if word != f"{change.name}={change.after}"]
    old = [] if change.before is None else _words(change.before, given)
    if change.after is None:
        return [*argv, *old]
    new = _words(change.after, argv)
    at = next(i for i in range(len(argv)) if argv[i : i + len(new)] == new)
    return [*argv[:at], *old, *argv[at + len(new) :]]


def _forth(change: FlagChange, argv: list[str]) -> list[str]:
    """The words given with one flag changed."""
    new = [] if change.after is None else change.after.split(" ", 1)
    if change.before is None:
        return [*argv, *new]
    old = _words(change.before, argv)
    at = next(i for i in range(len(argv)) if argv[i : i + len(old)] == old)
    stop = at + len(old)
    while len(old) == 1 and stop < len(argv) and not argv[stop].startswith("-"):
        stop += 1  # a flag that the release does not know: its values are not shown
    return [*argv[:at], *new, *argv[stop:]]


def _words(text: str, within: Sequence[str]) -> list[str]:
    """The words that stand there as one text: a value may hold blanks."""
    for start in range(len(within)):
        for stop in range(start + 1, len(within) + 1):
            if " ".join(within[start:stop]) == text:
                return list(within[start:stop])
    at = within.index(text)  # a flag that the release does not know: its values are not shown
    stop = next((i for i in range(at + 1, len(within)) if within[i].startswith("-")), len(within))
    return list(within[at:stop])
