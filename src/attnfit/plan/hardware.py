"""Another GPU: what starts there, where nothing nearer does."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from attnfit.core import Capability, Gpu, Launch, Step
from attnfit.decide import Request
from attnfit.engines import Cost, Move
from attnfit.gpus import catalogue
from attnfit.plan.edits import Origin, Part, Parts, parts_of, with_parts
from attnfit.plan.elsewhere import with_one_more
from attnfit.plan.given_up import given_up
from attnfit.plan.judge import Judge, Outcome
from attnfit.plan.offers import changes, in_words, then
from attnfit.plan.search import Found, Searched

MOST_GPUS = 12
MOST_ASKED, MOST_ASKED_DEAR = 84, 14  # launches on other GPUs; where each is a run of an engine's own code

_Moves = tuple[tuple[Move, Parts], ...]


def other_gpus(origin: Origin, judge: Judge, searched: Searched, before: Launch) -> Iterator[Step]:
    """As many of another GPU: the nearest in memory that starts it as it is, or with what helped but for the memory;
    else one of each capability in the newest release; else with one change more. Where memory is not measured, the
    largest of those that start it the same way."""
    unmeasured: dict[int, tuple[Origin, Found]] = {}  # by what is changed beside the GPU, cheapest first
    for gpu, moves, one_more in _tries(origin, searched):
        if judge.enough():
            break
        there = _on(origin, gpu)
        for found in with_one_more(there, judge, moves) if one_more else _as_it_is(there, judge, moves):
            if not _sure(found.outcome):
                continue
            if found.outcome.fit is not None:
                yield _of_gpu(there, before, found)
                return
            best = unmeasured.get(found.cost)
            if best is None or _memory(there) > _memory(best[0]):
                unmeasured[found.cost] = (there, found)
    for cost in sorted(unmeasured)[:1]:
        there, found = unmeasured[cost]
        yield _of_gpu(there, before, found)


def _memory(origin: Origin) -> float:
    return origin.request.gpus[0][0].memory_gib or 0.0


def _tries(origin: Origin, searched: Searched) -> Iterator[tuple[Gpu, _Moves, bool]]:
    near = _near_in_memory(origin.request)
    helped = next((move for move, after in searched.tried if after.launch.ok and after.too_large), None)
    ways: list[_Moves] = [()]
    if helped is not None:
        size = origin.request.gpus[0][0].memory_gib or 0.0
        near = [gpu for gpu in near if (gpu.memory_gib or 0.0) > size]
        ways.append(((helped, parts_of(origin, (), helped)),))
    if not origin.request.release.dear:
        yield from ((gpu, moves, False) for gpu in near[:MOST_GPUS] for moves in ways)
    newest = origin.engine.at_hand()[-1]
    ways = [()]
    if newest != origin.request.release.version:
        origin.releases[newest] = origin.engine.shipped(newest)
        move = Move("", origin.request.argv, kind="release", cost=Cost.RELEASE, release=newest)
        ways.append(((move, (Part(release=newest),)),))
    largest: dict[Capability | None, Gpu] = {}
    for gpu in near:
        if (gpu.memory_gib or 0.0) > (largest.setdefault(gpu.capability, gpu).memory_gib or 0.0):
            largest[gpu.capability] = gpu
    dear = origin.request.release.dear  # few can be asked: those that most likely can
    few = sorted(largest.values(), key=lambda gpu: -(gpu.memory_gib or 0.0) if dear else near.index(gpu))
    yield from ((gpu, moves, False) for moves in ways for gpu in few)
    yield from ((gpu, moves, True) for moves in ways for gpu in few)


def _as_it_is(there: Origin, judge: Judge, moves: _Moves) -> Iterator[Found]:
    parts = tuple(part for _, own in moves for part in own)
    after = judge.ask(with_parts(there, parts))
    if judge.clean(after):
        yield Found(parts, moves, after)


def _near_in_memory(request: Request) -> list[Gpu]:
    """Other GPUs that could do more, the like kind first: who has servers buys no gaming cards."""
    mine = request.gpus[0][0]
    size = mine.memory_gib or 0.0
    entries = [entry for entry in catalogue() if entry.capability is not None and entry.kind != "embedded"]
    kind = next((entry.kind for entry in entries if entry.gpu.name == mine.name), "datacenter")
    entries.sort(key=lambda entry: (entry.kind != kind, abs((entry.gpu.memory_gib or 0.0) - size), entry.gpu.name))
    return [
        entry.gpu
        for entry in entries
        if entry.gpu.name != mine.name
        and (entry.gpu.capability != mine.capability or (entry.gpu.memory_gib or 0.0) > size)
    ]


def _on(origin: Origin, gpu: Gpu) -> Origin:
    total = sum(count for _, count in origin.request.gpus)
    request = msgspec.structs.replace(origin.request, gpus=((gpu, total),), tried=True, driver="")
    return msgspec.structs.replace(origin, request=request)


def _of_gpu(there: Origin, before: Launch, found: Found) -> Step:
    gpu, total = there.request.gpus[0]
    also = f", and {in_words(there, found)}" if found.parts else ""
    text = f"other hardware: {total} x {gpu.name} (compute capability {gpu.capability}){also}"
    return Step(
        "; ".join([text, *then(found.outcome)]), gives_up="; ".join(given_up(there, before, found)),
        kind="gpu", cost=Cost.GPU + found.cost, doubts=tuple(found.outcome.doubts), gpu=gpu.name,
        env={name: said for part in found.parts for name, said in part.env},
        installs=" ".join(part.installs for part in found.parts if part.installs),
        changes=tuple(changes(there, found)), release=next((part.release for part in found.parts if part.release), ""),
    )  # fmt: skip


def _sure(outcome: Outcome) -> bool:
    """It fits as far as sizes are known, and nothing may break it: nobody gets other GPUs on a guess."""
    fits = outcome.fit is None or not outcome.fit.supposed
    return fits and not any(hazard.may_break for hazard in outcome.launch.hazards)
