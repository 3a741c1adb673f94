"""A helper's outcome as a field of its own: explored once per way of calling it, then a finite value to its callers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from attnfit.engines.vllm.learn.paths import Field, Opaque
from attnfit.engines.vllm.learn.tracked import Choice, Number, run_or_none


class Restart(BaseException):
    """A helper was met for the first time: explore it, then run the same script again."""

    def __init__(self, name: str, call: Callable[[], Any]) -> None:
        super().__init__(name)
        self.name, self.call = name, call


SUMMARIES: dict[str, Field | None] = {}  # by helper and how it was called; None: to be followed like other code


def summary(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that the rewriter puts on the helpers it knows."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if run_or_none() is None or _inside:
            return function(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        given = {n: v for n, v in bound.arguments.items() if _differs(v, signature.parameters[n].default)}
        name = f"{function.__name__}({', '.join(f'{n}={_describe(v)}' for n, v in given.items())})"
        if name not in SUMMARIES:
            raise Restart(name, lambda: function(*bound.args, **bound.kwargs))
        field = SUMMARIES[name]
        return function(*args, **kwargs) if field is None else Choice(field)._map(lambda value: value)

    return call


_inside: list[str] = []


def _differs(value: Any, default: Any) -> bool:
    return type(value) in (Choice, Number) or value is not default


def _describe(value: Any) -> str:
    if type(value) is Number and not value._steps:
        return value._name
    if type(value) is Choice and value._plain:
        return value._field.name
    if type(value) in (Choice, Number):
        raise Opaque("a helper is called with a calculated value")
    return repr(value)


def inside(name: str, call: Callable[[], Any]) -> Any:
    """`call()` with helpers followed like any other code."""
    _inside.append(name)
    try:
        return call()
    finally:
        _inside.pop()
