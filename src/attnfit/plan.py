"""Plan: the plain next step after a refusal. `decide` is the only judge of what helps.

The engine proposes changes of the flags, cheapest first; a change is offered only if the launch then passes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from attnfit.core import Fit, Launch, Step
from attnfit.decide import Request, decide, measure
from attnfit.engines import Engine, Weights

MOST_STEPS = 2
MOST_TRIES = 60  # bounds the time of a plan; far above what one command's flags need


def plan(
    engine: Engine, request: Request, launch: Launch, render: Callable[[tuple[str, ...]], tuple[str, ...]]
) -> tuple[Step, ...]:
    """At most two changes that make a refused launch pass, or one step that says none was found.

    `render` puts the server's flags back into the user's own command.
    """
    if launch.ok is not False:
        return ()
    steps: list[Step] = []
    seen: set[tuple[object, ...]] = set()  # outcomes already offered: one way to each is enough
    for move in islice(engine.moves(request.argv, launch), MOST_TRIES):
        after = decide(request.with_argv(move.argv))
        if after.ok and (outcome := _outcome(after)) not in seen:
            seen.add(outcome)
            chosen = dict.fromkeys(layer.selection.chosen or "" for layer in after.layers)
            names = ", ".join(name for name in chosen if name)
            text = move.text + (f"; then {names} serves it" if names else "")
            steps.append(Step(text, render(move.argv), move.gives_up))
            if len(steps) == MOST_STEPS:
                break
    return tuple(steps) or (Step(_nothing(request, launch)),)


def room(
    engine: Engine, request: Request, fit: Fit, weights: Weights, render: Callable[[tuple[str, ...]], tuple[str, ...]]
) -> tuple[Step, ...]:
    """What makes a launch fit that cannot: at most two changes of its flags, or one step that says what else would."""
    steps: list[Step] = []
    for move in engine.room(request.argv, fit):
        changed = request.with_argv(move.argv)
        after = measure(changed, weights) if decide(changed).ok else None
        if after is not None and after.verdict in ("fits", "may break"):
            doubt = "; it may then still break" if after.verdict == "may break" else ""
            steps.append(Step(f"{move.text}{doubt}", render(move.argv), move.gives_up))
            if len(steps) == MOST_STEPS:
                break
    return tuple(steps) or (Step("more GPUs to divide the model among, or a checkpoint with fewer bits a weight"),)


def _outcome(launch: Launch) -> tuple[object, ...]:
    chosen = tuple((layer.role, layer.selection.chosen) for layer in launch.layers)
    return (chosen, launch.dtype, launch.kv_cache_dtype_after_init, launch.block_size_after_load)


def _nothing(request: Request, launch: Launch) -> str:
    if launch.stage == "selector":
        release = request.release.version
        return f"no change of these flags helps: no backend of release {release} accepts this model on this GPU"
    return f"no change of these flags helps; the engine stops at stage {launch.stage}"
