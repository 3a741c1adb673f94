"""Plan: the smallest change that makes a launch start. `decide`, `measure` and the hazards are the only judges.

edits.py cuts a change into parts, search.py combines them, offers.py says them; elsewhere.py looks at other releases,
checkpoints and engines, hardware.py at other GPUs; useless.py and conflict.py say what does not help, and why
(docs/planner.md).
"""

from __future__ import annotations

from collections.abc import Callable

from attnfit.core import Fit, Launch, Plan, Step
from attnfit.decide import Request
from attnfit.engines import Cost, Engine, Weights
from attnfit.inputs.command import Command
from attnfit.plan import conflict_launch, elsewhere, hardware
from attnfit.plan.changes import successors, surer_ways, text_only
from attnfit.plan.conflict import because
from attnfit.plan.edits import Origin, start
from attnfit.plan.judge import TOO_LARGE, Judge, Outcome
from attnfit.plan.offers import MOST_STEPS, Render, ends_as, perhaps, steps
from attnfit.plan.search import Searched, search
from attnfit.plan.useless import MOST, useless

MOST_SURER = 2  # ways around a hazard that only may strike
MOST_TRIES = 80  # launches asked near the one given, where an answer takes a few milliseconds
MOST_DEAR_TRIES = 20  # where each takes a tenth of a second: an engine's own code, run by the witness
MOST_ALIKE = 4  # of those, single changes of one cost
MOST_FAR = 120  # launches of other releases, checkpoints and GPUs

__all__ = ["Render", "ends_as", "plan"]


def plan(
    engine: Engine, request: Request, launch: Launch, render: Render, weights: Callable[[], Weights],
    *, fit: Fit | None = None, far: bool = True, command: Command | None = None,
) -> Plan:  # fmt: skip
    """What makes a launch start that does not; an empty plan for one that does, or of which that is unknown.

    `fit`: of the launch as it was given, if it passes. `far`: look beyond the command where nothing in it helps.
    `weights` is asked only if there is a change whose memory is to be measured.
    """
    dear = request.release.dear
    judge = Judge(weights, MOST_DEAR_TRIES if dear else MOST_TRIES)
    outcome = judge.told(request, launch, fit)
    if launch.ok is None or (fit is not None and fit.files):
        return Plan()
    origin = start(engine, request, command)
    if outcome.starts:
        surer = surer_ways(origin, judge, outcome) if outcome.doubts else []
        return Plan(tuple(steps(origin, outcome, surer, render)[:MOST_SURER]), tried=judge.tried)
    searched = _near(origin, judge, outcome)
    offered = steps(origin, outcome, searched.found, render)
    tried = [judge.tried]
    why: tuple[str, ...] = ()
    if far and not any(step.cost < Cost.DENSE for step in offered):
        why = tuple(because(origin, outcome))
        if launch.stage != "selector" and not dear:
            asked = Judge(weights, conflict_launch.MOST_ASKED)
            why = tuple(conflict_launch.because(origin, outcome, asked))
            tried.append(asked.tried)
        offered = [*text_only(engine, request, outcome), *offered, *perhaps(outcome, searched.tried)]
        offered = _far(origin, outcome, searched, offered, render, weights, tried)
    cheapest = min((step.cost for step in offered), default=None)
    said = tuple(useless(outcome, searched.tried, cheapest))[:MOST]
    if not offered:
        offered = [Step(_nothing(request, outcome))]
    return Plan(tuple(offered[:MOST_STEPS]), said, why, sum(tried), searched.stopped_early)


def _near(origin: Origin, judge: Judge, outcome: Outcome) -> Searched:
    """In the command at hand. Flags that do nothing and cannot be taken out of it are put up with."""
    of, alike = successors(origin.engine), MOST_ALIKE if origin.request.release.dear else None
    searched = search(origin, judge, outcome, of, alike)
    if not searched.found:
        stuck = {flag for _, after in searched.tried if after.starts for flag in after.inert}
        if stuck:
            judge.tolerated = frozenset(stuck)
            searched = search(origin, judge, outcome, of, alike)
    return searched


def _far(
    origin: Origin, outcome: Outcome, searched: Searched, near: list[Step], render: Render,
    weights: Callable[[], Weights], tried: list[int],
) -> list[Step]:  # fmt: skip
    """What is near and what lies further off, until there is enough of it."""
    judge = Judge(weights, MOST_FAR)
    found = list(elsewhere.releases(origin, judge))
    further = [*steps(origin, outcome, found, render), *elsewhere.unquantised(origin, judge)]
    if len(near) + len(further) < MOST_STEPS:
        further += elsewhere.other_engines(origin, outcome.launch, weights, tried)
    if not any(step.argv and not any(TOO_LARGE in doubt for doubt in step.doubts) for step in (*near, *further)):
        dear = origin.request.release.dear
        there = Judge(weights, hardware.MOST_ASKED_DEAR if dear else hardware.MOST_ASKED)
        further += hardware.other_gpus(origin, there, searched, outcome.launch)
        tried.append(there.tried)
    tried.append(judge.tried)
    return [*near, *sorted(further, key=lambda step: step.cost)]


def _nothing(request: Request, outcome: Outcome) -> str:
    if outcome.too_large:
        return "more GPUs to divide the model among, or a checkpoint with fewer bits a weight"
    launch = outcome.launch
    if launch.ok:
        return "no change found with which it does not break"
    return f"no change found; the engine stops {launch.when or f'at stage {launch.stage}'}"
