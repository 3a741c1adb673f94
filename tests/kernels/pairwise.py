"""Cases that hold every allowed pair of parameter values at least once: far fewer than all combinations."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

Case = dict[str, Any]
Pair = frozenset[tuple[str, Any]]
DRAWS = 60  # random completions of an uncovered pair, of which the one that covers most others is taken


def pairs_of(case: Mapping[str, Any]) -> set[Pair]:
    return {frozenset(pair) for pair in combinations(case.items(), 2)}


def allowed_pairs(parameters: Mapping[str, Sequence[Any]], allowed: Callable[[Case], bool]) -> set[Pair]:
    """Every pair of values that stands in at least one allowed case."""
    pairs = (
        {one: x, other: y}
        for one, other in combinations(parameters, 2)
        for x in parameters[one]
        for y in parameters[other]
    )
    return {frozenset(pair.items()) for pair in pairs if complete(pair, parameters, allowed, random.Random(0))}


def pairwise(parameters: Mapping[str, Sequence[Any]], allowed: Callable[[Case], bool], seed: int = 0) -> list[Case]:
    """The same cases each time. `allowed` is asked of partial cases too, and only refuses what no completion mends."""
    chance = random.Random(seed)
    left = allowed_pairs(parameters, allowed)
    cases = []
    while left:
        first = dict(min(left, key=lambda pair: sorted(map(str, pair))))
        drawn = [complete(first, parameters, allowed, chance) for _ in range(DRAWS)]
        best = max((case for case in drawn if case), key=lambda case: len(pairs_of(case) & left))
        left -= pairs_of(best)
        cases.append({name: best[name] for name in parameters})
    return cases


def complete(
    partial: Case, parameters: Mapping[str, Sequence[Any]], allowed: Callable[[Case], bool], chance: random.Random
) -> Case | None:
    """A random allowed case that contains `partial`, or None if there is none."""
    if not allowed(partial):
        return None
    missing = [name for name in parameters if name not in partial]
    if not missing:
        return partial
    name = chance.choice(missing)
    for value in chance.sample(list(parameters[name]), len(parameters[name])):
        done = complete({**partial, name: value}, parameters, allowed, chance)
        if done:
            return done
    return None
