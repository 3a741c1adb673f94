"""One run through an engine's predicate, and which answers are still possible at each of its branches.

A *decision* is a question asked about one field: a `split` of a finite domain into groups that the engine treats
alike, or a `test` of a number. A run follows a script of earlier answers and then takes the first possible answer;
the explorer turns every other possible answer into a script of its own. Stdlib only: this runs in the witness.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Opaque(BaseException):
    """A tracked value was used in a way that the explorer cannot follow. BaseException: no `except` swallows it."""


class Absent:
    """The one value of an attribute that a config does not have."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()

# A claim "this branch cannot be taken" is proven on these. Comparisons with a constant c and remainders by m repeat
# with period m beyond c, so every integer up to LIMIT decides as long as constants and remainders stay below PROVEN.
LIMIT, PROVEN = 5000, 2100
CANDIDATES: tuple[Any, ...] = (ABSENT, None, *range(-2, LIMIT), 8192, 16384, 65536, 10**6, 10**6 + 1)
_NUMBERS = (1 << len(CANDIDATES)) - 1 - 3  # neither absent nor None
IS_NONE = 2

STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip
OPS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "in": lambda value, members: value in members,
    "absent": lambda value, _: value is ABSENT,
    "none": lambda value, _: value is None,
    "true": lambda value, _: bool(value),
}  # fmt: skip

_masks: dict[tuple[Any, ...], int] = {}


def mask_of(steps: tuple[tuple[str, int], ...], op: str, const: Any) -> int:
    """Bit i set: CANDIDATES[i] passes the test. None and absent pass only what is asked about them."""
    key = (steps, op, const)
    found = _masks.get(key)
    if found is None:
        found, check = 0, OPS[op]
        for i, value in enumerate(CANDIDATES):
            if value is None or value is ABSENT:
                hit = op in ("absent", "none") and check(value, const)
                hit = hit or (value is None and not steps and op == "in" and None in const)
            else:
                for step, operand in steps:
                    value = STEPS[step](value, operand)
                hit = check(value, const)
            if hit:
                found |= 1 << i
        _masks[key] = found
    return found


class Field(NamedTuple):
    """A finite field: what the book calls its values, and the engine's objects for them."""

    name: str
    labels: tuple[Any, ...]
    values: tuple[Any, ...]
    marker: bool = True  # may stand as {name} in a message


class Decision(NamedTuple):
    question: tuple[Any, ...]
    options: tuple[Any, ...]
    answer: Any
    where: str


class Run:
    """State of one run: the fields' remaining values, and the decisions taken."""

    def __init__(self, script: Sequence[Any], root: str = "vllm/") -> None:
        self.script, self.root = script, root
        self.path: list[Decision] = []
        self.remaining: dict[str, tuple[int, ...]] = {}
        self.masks: dict[str, int] = {}
        self.said = ""  # engine file:line that gave the reason, where rewritten code says so

    def left(self, field: Field) -> tuple[int, ...]:
        found = self.remaining.get(field.name)
        if found is None:
            found = self.remaining[field.name] = tuple(range(len(field.values)))
        return found

    def number(self, name: str, mask: int) -> None:
        """Declare a number field; `mask` says which candidates it may hold."""
        self.masks.setdefault(name, mask)

    def split(self, field: Field, groups: Sequence[tuple[int, ...]]) -> int:
        """Which group of the remaining values this run is in."""
        if len(groups) == 1:
            return 0
        question = ("split", field.name, tuple(groups))
        answer = self._decide(question, tuple(range(len(groups))))
        self.remaining[field.name] = groups[answer]
        return int(answer)

    def test(self, name: str, steps: tuple[tuple[str, int], ...], op: str, const: Any) -> bool:
        """Does the number pass? Not recorded where earlier answers leave only one possibility."""
        for number in [const, *(operand for _, operand in steps)]:
            for part in number if isinstance(number, tuple) else (number,):
                if isinstance(part, (int, float)) and abs(part) > PROVEN:
                    raise Opaque(f"{name} is compared with {part}, beyond what can be proven")
        mask, state = mask_of(steps, op, const), self.masks[name]
        options = tuple(x for x, hit in ((True, state & mask), (False, state & ~mask)) if hit)
        answer = options[0] if len(options) == 1 else self._decide(("test", name, steps, op, const), options)
        self.masks[name] = state & (mask if answer else ~mask)
        return bool(answer)

    def _decide(self, question: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
        position = len(self.path)
        answer = self.script[position] if position < len(self.script) else options[0]
        if answer not in options:
            raise Opaque("the predicate did not take the same way twice")
        self.path.append(Decision(question, options, answer, self.where()))
        return answer

    def where(self) -> str:
        """Engine file:line now running."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.startswith(self.root):
                return f"{frame.f_code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back
        return ""


_current: list[Run] = []


def run() -> Run:
    """The run in progress."""
    if not _current:
        raise Opaque("a tracked value was used outside a run")
    return _current[-1]


def during(this: Run, call: Callable[[], Any]) -> Any:
    """`call()` with `this` as the run in progress."""
    _current.append(this)
    try:
        return call()
    finally:
        _current.pop()


NUMBER = _NUMBERS
POSITIVE = sum(1 << i for i, value in enumerate(CANDIDATES) if type(value) is int and value > 0)
OPTIONAL = _NUMBERS | IS_NONE
ANYTHING = _NUMBERS | IS_NONE | 1
