"""Uniform-cost search over combinations of changes. Deterministic, bounded by a number of launches, never by a clock.

First every single change is asked, so that a dear one that helps is known however many cheap ones there are. Then
combinations of up to `MOST_PARTS` changes, cheapest first, as long as they are cheaper than what was found. Those that
build on a change which left the refusal as it was come last, and at most `MOST_BLIND` of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from attnfit.decide import Request
from attnfit.engines import Move
from attnfit.plan.edits import Origin, Parts, parts_of, with_parts
from attnfit.plan.judge import Judge, Outcome

MOST_PARTS = 3  # changes that one offer combines
MOST_BLIND = 40
KINDS = 4  # offers of different kinds after which nothing more is looked for

Successors = Callable[[Request, Outcome], Iterator[Move]]


class Found(NamedTuple):
    """A launch that starts, and how it differs from the one given. Minimal once `minimal` was asked."""

    parts: Parts
    moves: tuple[tuple[Move, Parts], ...]  # each with the parts that it added
    outcome: Outcome

    @property
    def cost(self) -> int:
        return sum(move.cost for move, _ in self.moves)

    @property
    def kind(self) -> tuple[object, ...]:
        """Offers of one kind are variants: the class and kind of the dearest change."""
        dearest = max((move for move, _ in self.moves), key=lambda move: move.cost)
        return (_class(dearest.cost), dearest.kind, any(part.installs for part in self.parts))

    @property
    def units(self) -> tuple[Parts, ...]:
        """What can be taken back by itself: a part, or all parts of a change that is one thing."""
        whole = {part: own for move, own in self.moves if move.whole for part in own}
        return tuple(dict.fromkeys(whole.get(part, (part,)) for part in self.parts))


class _State(NamedTuple):
    parts: Parts
    moves: tuple[tuple[Move, Parts], ...]
    blind: bool  # it builds on a change that left the refusal as it was


class Searched(NamedTuple):
    found: list[Found]
    tried: list[tuple[Move, Outcome]]  # every single change, and what came of it
    stopped_early: bool


def search(
    origin: Origin, judge: Judge, outcome: Outcome, successors: Successors, alike: int | None = None
) -> Searched:
    """Every minimal offer met, cheapest first. `alike`: of single changes that cost the same, how many are asked."""
    found: list[Found] = []
    tried: list[tuple[Move, Outcome]] = []
    queue: list[tuple[bool, int, int, _State]] = []
    seen: set[frozenset[object]] = {frozenset()}
    root = _State((), (), False)
    singles = sorted(_children(origin, root, successors(origin.request, outcome), seen), key=_cost)
    asked: Counter[int] = Counter()
    for number, state in enumerate(singles):
        asked[_cost(state)] += 1
        if alike is not None and asked[_cost(state)] > alike:
            continue
        if judge.enough() or len({each.kind for each in found}) >= KINDS:
            break
        after = judge.ask(with_parts(origin, state.parts))
        tried.append((state.moves[0][0], after))
        if judge.clean(after):
            found.append(minimal(origin, judge, Found(state.parts, state.moves, after)))
        else:
            heappush(queue, _ranked(state._replace(blind=after.refusal == outcome.refusal), number))
    passed_over = alike is not None and any(count > alike for count in asked.values())
    stopped, number, blind = judge.enough() or passed_over, len(singles), MOST_BLIND
    while queue:
        _, cost, _, state = heappop(queue)
        if found and cost >= min(each.cost for each in found):
            continue
        if any(set(each.parts) <= set(state.parts) for each in found):
            continue
        if judge.enough() or (state.blind and len(state.moves) > 1 and not blind):
            stopped = True
            break
        blind -= state.blind and len(state.moves) > 1
        request = with_parts(origin, state.parts)
        after = judge.ask(request)
        if judge.clean(after):
            found.append(minimal(origin, judge, Found(state.parts, state.moves, after)))
        elif len(state.moves) < MOST_PARTS:
            for child in _children(origin, state, successors(request, after), seen):
                number += 1
                heappush(queue, _ranked(child, number))
    found.sort(key=lambda each: each.cost)
    return Searched(found, tried, stopped)


def minimal(origin: Origin, judge: Judge, found: Found) -> Found:
    """The offer without every part that is not needed: `decide` is asked with each taken back."""
    again = True
    while again and len(found.units) > 1:
        again = False
        for unit in found.units:
            fewer = tuple(part for part in found.parts if part not in unit)
            after = judge.ask(with_parts(origin, fewer))
            if judge.clean(after):
                moves = tuple(
                    (_reduced(origin, move, own, left), left)
                    for move, own in found.moves
                    if (left := tuple(p for p in own if p in fewer))
                )
                found, again = Found(fewer, moves, after), True
                break
    return found


def _reduced(origin: Origin, move: Move, own: Parts, left: Parts) -> Move:
    """What is left of a change: at the price of its flags, where what made it dear is not among them."""
    if left == own or any(part.installs or part.release or part.variable for part in left):
        return move
    flags = (piece.flag for part in left for piece in origin.pieces_of([w for words in part.put for w in words]))
    gone = (piece.flag for part in left for piece in origin.pieces[max(part.at, 0) : part.stop])
    cost = max((origin.engine.price(flag) for flag in (*flags, *gone) if flag), default=move.cost)
    return move if cost >= move.cost else move._replace(cost=cost, kind="", gives_up="")


def _children(origin: Origin, state: _State, moves: Iterator[Move], seen: set[frozenset[object]]) -> Iterator[_State]:
    for move in moves:
        parts = parts_of(origin, state.parts, move)
        key = frozenset(parts)
        if key in seen or not parts:
            continue
        seen.add(key)
        added = tuple(part for part in parts if part not in state.parts)
        kept = tuple((each, left) for each, own in state.moves if (left := tuple(p for p in own if p in parts)))
        yield _State(parts, (*kept, (move, added)), state.blind)


def _ranked(state: _State, number: int) -> tuple[bool, int, int, _State]:
    return (state.blind, _cost(state), number, state)


def _cost(state: _State) -> int:
    return sum(move.cost for move, _ in state.moves)


def _class(cost: int) -> str:
    from attnfit.engines.move import Cost

    return next(each.name for each in sorted(Cost, reverse=True) if each <= cost).lower()
