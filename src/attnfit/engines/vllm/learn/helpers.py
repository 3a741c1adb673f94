"""What rewritten engine code calls instead of `is`, `in`, `int()`, and on returning a reason."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from attnfit.engines.vllm.learn.paths import IS_NONE, run
from attnfit.engines.vllm.learn.tracked import Choice, Number, run_or_none


def is_(a: Any, b: Any) -> Any:
    """`a is b` for rewritten engine code."""
    for one, other in ((a, b), (b, a)):
        kind = type(one)
        if kind is Choice:
            return one._with(other, operator.is_)
        if kind is Number:
            if other is None:
                return not one._steps and bool(one._mask & IS_NONE) and one._test("none", None)
            return one is other
    return a is b


def in_(a: Any, b: Any) -> Any:
    """`a in b` for rewritten engine code."""
    if type(a) is Choice and type(b) is not Choice and not _tracked_inside(b):
        return a._map(lambda v: v in b)
    if type(a) is Number and isinstance(b, (set, frozenset, list, tuple, dict)) and not _tracked_inside(b):
        numbers = tuple(sorted(x for x in b if isinstance(x, (int, float))))
        if None in b and not a._steps and a._mask & IS_NONE:
            return a._test("none", None) or (bool(numbers) and a._test("in", numbers))
        return bool(numbers) and a._test("in", numbers)
    return a in b


def int_(x: Any = 0, *rest: Any) -> Any:
    """`int(x)` for rewritten engine code."""
    if type(x) is Number:
        x._some("int() argument")
        return x
    return x._map(int) if type(x) is Choice else int(x, *rest)


def _tracked_inside(container: Any) -> bool:
    return isinstance(container, (list, tuple)) and any(type(x) in (Choice, Number) for x in container)


def said(value: Any, place: str) -> Any:
    """Note the line that returned a reason (the innermost one counts)."""
    if value is not None and run_or_none() is not None and not run().said:
        run().said = place
    return value


HELPERS: dict[str, Callable[..., Any]] = {
    "__attnfit_is__": is_, "__attnfit_in__": in_, "__attnfit_int__": int_, "__attnfit_said__": said,
}  # fmt: skip
