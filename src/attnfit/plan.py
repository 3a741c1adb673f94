"""Plan: the plain next step after a refusal. `decide` is the only judge of what helps, `measure` of what fits.

The engine proposes changes of the launch, cheapest first; a change is offered only if the launch then passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from attnfit.core import Fit, Hazard, Launch, Status, Step
from attnfit.decide import Request, decide, measure
from attnfit.engines import Engine, Move, Weights

MOST_STEPS = 2
MOST_TRIES = 60  # bounds the time of a plan; far above what one command's flags need

# A change put into the user's own command; None: it cannot be written there.
Render = Callable[[Move], tuple[str, ...] | None]


def plan(
    engine: Engine, request: Request, launch: Launch, render: Render, weights: Callable[[], Weights]
) -> tuple[Step, ...]:
    """At most two changes that make a refused launch pass, or one step that says none was found.

    `weights` is asked only if there is a change whose memory is to be measured.
    """
    if launch.ok is not False:
        return ()
    steps: list[Step] = []
    seen: set[tuple[object, ...]] = set()  # outcomes already offered: one way to each is enough
    accepted = _some_accept(launch)
    for move in islice(engine.moves(request.given(), launch), MOST_TRIES):
        if move.otherwise and steps:
            continue
        after = decide(request.after(move))
        accepted = accepted or _some_accept(after)
        if (
            _passes(after)
            and (outcome := (move.kind, ends_as(after))) not in seen
            and (words := render(move)) is not None
        ):
            seen.add(outcome)
            steps.append(_step(engine, request, move, after, words, render, weights))
            if len(steps) == MOST_STEPS:
                break
    steps.sort(key=lambda step: (step.breaks, bool(step.installs)))
    return tuple(steps) or (Step(_nothing(request, launch, accepted)),)


def room(engine: Engine, request: Request, fit: Fit, weights: Weights, render: Render) -> tuple[Step, ...]:
    """What makes a launch fit that cannot: at most two changes of it, or one step that says what else would."""
    steps = []
    for move, after, words in islice(_roomier(engine, request, fit, weights, render), MOST_STEPS):
        doubt = "; it may then still break" if after.verdict == "may break" else ""
        steps.append(Step(f"{move.text}{doubt}", words, move.gives_up))
    return tuple(steps) or (Step("more GPUs to divide the model among, or a checkpoint with fewer bits a weight"),)


def past_hazards(engine: Engine, request: Request, launch: Launch, render: Render) -> tuple[Step, ...]:
    """What the records say of the hazards that stop a launch which passes: with the command where a remedy is a matter
    of flags and the launch then passes without a hazard that stops it; the others as text."""
    steps: list[Step] = []
    for hazard in launch.hazards if launch.ok else ():
        if hazard.breaks:
            steps += _remedies(engine, request, hazard, render)
    steps.sort(key=lambda step: step.argv is None)
    return tuple(steps[:MOST_STEPS])


def _remedies(engine: Engine, request: Request, hazard: Hazard, render: Render) -> Iterator[Step]:
    from attnfit.engines.log import Edit, log_words
    from attnfit.hazards.catalogue import records_of
    from attnfit.hazards.words import meant, remedy_line

    words = next(log for log in log_words() if log.engine == engine.name)
    release = request.release.version
    for remedy in meant(records_of(engine.name)[hazard.code], engine.name, release):
        if remedy_line(remedy) not in hazard.remedies:
            continue
        argv = words.edited(request.argv, request.form, release, Edit(remedy.set, remedy.drop))
        move = Move(remedy.text, argv, remedy.gives_up, variables=remedy.variables)
        changed = tuple(argv) != request.argv or any(v is not None for v in remedy.variables.values())
        command = render(move) if changed and _passes(decide(request.after(move))) else None
        if command is not None or not (remedy.set or remedy.drop or remedy.variables):
            yield Step(remedy.text if command else remedy_line(remedy), command, remedy.gives_up if command else "")


def _step(
    engine: Engine,
    request: Request,
    move: Move,
    launch: Launch,
    words: tuple[str, ...],
    render: Render,
    weights: Callable[[], Weights],
) -> Step:
    """A change that cures the refusal, and what its memory is like; with a second change if that makes it fit."""
    chosen = [*(layer.selection.chosen for layer in launch.layers), *_pair(launch)]
    names = ", ".join(dict.fromkeys(name for name in chosen if name))
    then = f"; then {names} serves it" if names else ""
    changed = request.after(move)
    fit = measure(changed, weights())
    if fit is None or fit.verdict in ("fits", "unknown"):
        return Step(f"{move.text}{then}", words, move.gives_up, installs=move.installs, env={**move.env})
    if fit.verdict == "may break":
        return Step(
            f"{move.text}{then}; it may run out of memory",
            words,
            move.gives_up,
            installs=move.installs,
            env={**move.env},
        )
    for more, after, both in _roomier(engine, changed, fit, weights(), render, first=move):
        doubt = "; it may run out of memory" if after.verdict == "may break" else ""
        gives_up = "; ".join(text for text in (move.gives_up, more.gives_up) if text)
        return Step(
            f"{move.text}, and {more.text}{then}{doubt}", both, gives_up, installs=move.installs, env={**move.env}
        )
    why = f"{move.text}{then}, but it runs out of memory"
    return Step(why, words, move.gives_up, breaks=True, installs=move.installs, env={**move.env})


def _roomier(
    engine: Engine, request: Request, fit: Fit, weights: Weights, render: Render, first: Move | None = None
) -> Iterator[tuple[Move, Fit, tuple[str, ...]]]:
    """Changes with which the launch may fit, one of a kind; of those that fit and those that may, the former first."""
    found: list[tuple[Move, Fit, tuple[str, ...]]] = []
    done: set[str] = set()  # kinds that a change which fits was found of
    for move in engine.room(request.given(), fit):
        if move.kind in done:
            continue
        changed = request.after(move)
        after = measure(changed, weights) if _passes(decide(changed)) else None
        if after is None or after.verdict not in ("fits", "may break"):
            continue
        whole = move if first is None else move._replace(variables={**first.variables, **move.variables})
        if (words := render(whole)) is not None:
            found.append((move, after, words))
            if after.verdict == "fits" and move.kind:
                done.add(move.kind)
    found.sort(key=lambda each: each[1].verdict != "fits")
    offered: set[str] = set()
    for move, after, words in found:
        if not move.kind or move.kind not in offered:
            offered.add(move.kind)
            yield move, after, words


def _passes(launch: Launch) -> bool:
    """Every gate, and no hazard that stops it for sure."""
    return bool(launch.ok) and not any(hazard.breaks for hazard in launch.hazards)


def _pair(launch: Launch) -> list[str]:
    """What serves prefill and decode, where the engine answers with a pair."""
    return [name for role, name in launch.chosen if role in ("prefill", "decode")]


def ends_as(launch: Launch) -> tuple[object, ...]:
    """The same for launches that end up alike: one way to each is enough."""
    chosen = tuple((layer.role, layer.selection.chosen, layer.question.num_heads) for layer in launch.layers)
    return (chosen, launch.chosen, launch.dtype, launch.kv_cache_dtype_after_init, launch.block_size_after_load)


def _some_accept(launch: Launch) -> bool:
    """No kind of layer is without a backend of the release that accepts it, or may."""
    return bool(launch.layers) and all(
        any(v.status is not Status.REFUSES and not v.brought_by for v in layer.selection.verdicts)
        for layer in launch.layers
    )


def _nothing(request: Request, launch: Launch, accepted: bool) -> str:
    if launch.stage == "selector" and launch.layers and not launch.hypothetical and not accepted:
        release = request.release.version
        return f"no change found: no backend of release {release} accepts this model on this GPU"
    where = launch.when or f"at stage {launch.stage}"
    return f"no change found; the engine stops {where}"
