"""The generator of cases keeps its promise: every allowed pair, nothing that is not allowed, the same each time."""

from __future__ import annotations

from pairwise import allowed_pairs, pairs_of, pairwise

PARAMETERS = {"a": [1, 2, 3], "b": ["x", "y"], "c": [True, False], "d": [0, 1, 2, 3]}


def allowed(case) -> bool:
    return not (case.get("a") == 1 and case.get("b") == "x") and not (case.get("c") is True and case.get("d") == 3)


def test_every_allowed_pair_is_covered_and_nothing_else() -> None:
    cases = pairwise(PARAMETERS, allowed)
    covered = set().union(*map(pairs_of, cases))
    assert covered == allowed_pairs(PARAMETERS, allowed)
    assert frozenset({("a", 1), ("b", "x")}) not in covered
    assert frozenset({("a", 1), ("b", "y")}) in covered
    assert all(map(allowed, cases))
    assert len(cases) < 20 < 3 * 2 * 2 * 4


def test_a_pair_that_no_whole_case_can_hold_is_not_asked_for() -> None:
    def never(case) -> bool:  # a = 1 leaves no value for b
        return not (case.get("a") == 1 and "b" in case)

    assert not any(("a", 1) in pair for pair in allowed_pairs(PARAMETERS, never))


def test_the_cases_are_the_same_each_time() -> None:
    assert pairwise(PARAMETERS, allowed) == pairwise(PARAMETERS, allowed)
