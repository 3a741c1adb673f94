"""Whose exception is it: the release's own, or one that our stand-ins caused? Standard library only.

An exception counts as the release's own if a line of its source raised it, or if one of our stand-ins raised it on
purpose, as the real package would (`stubs.as_real`). One that comes out of our code otherwise, or that says something
about an object of ours, is a fault of ours and no refusal.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import guard
from .stubs import STATE

_OURS = str(Path(__file__).resolve().parents[1])
_CALL = re.compile(r"([\w.<>]+)\(\) (?:got|missing|takes)\b")  # how Python refuses a call's arguments
_NAMED = re.compile(r"'(\w+)'")


def fault(error: BaseException) -> str | None:
    """Where our code caused the exception, or what led to it; None if it is the release's own."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen and not is_real(each):
        seen.add(id(each))
        why = _fault(each)
        if why is not None:
            return f"{type(each).__name__} of a stand-in: {str(each)[:200]} ({why})"
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return None


def is_real(error: BaseException) -> bool:
    """Whether a stand-in raised it on purpose."""
    return bool(vars(error).get("attnfit_as_real"))


def from_engine(error: BaseException) -> bool:
    """Whether a line of the release raised it."""
    frame = _raiser(error)
    return frame is not None and frame.co_filename.startswith(STATE.sources)


def _raiser(error: BaseException) -> types.CodeType | None:
    """The innermost code of the release or of ours on the exception's way: the standard library between is theirs."""
    found = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        name = code.co_filename
        if name.startswith(STATE.sources) or (name.startswith(_OURS) and name != guard.__file__):
            found = code
        trace = trace.tb_next
    return found


def _fault(error: BaseException) -> str | None:
    code = _raiser(error)
    if code is None:
        return "no line of the release raised it"
    if not code.co_filename.startswith(STATE.sources):
        return f"{Path(code.co_filename).name}:{code.co_name}"
    if isinstance(error, AttributeError) and _of_ours(error.obj):
        return f"an object of {type(error.obj).__module__}"
    if type(error) is TypeError:
        call = _CALL.match(str(error))
        if call is not None and ("<lambda>" in call[1] or call[1] in {code.co_qualname for code in _codes()}):
            return f"a function of ours: {call[1]}"
        names = _class_names()
        mine = next((name for name in _NAMED.findall(str(error)) if name in names), None)
        if mine is not None:
            return f"an object of ours: {mine}"
    return None


def _of_ours(value: Any) -> bool:
    """Whether a value was made by our code: an instance, a class, a function or a namespace of it."""
    if isinstance(value, types.FunctionType | types.MethodType):
        return value.__code__.co_filename.startswith(_OURS)
    if isinstance(value, types.ModuleType):
        value = type(value)
    kind = value if isinstance(value, type) else type(value)
    return kind is types.SimpleNamespace or kind.__module__.partition(".")[0] == "attnfit"


def _modules() -> Iterator[types.ModuleType]:
    return (module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "attnfit")


def _codes() -> Iterator[types.CodeType]:
    """The code of every function of ours in this process, nested ones too."""
    todo: list[Any] = []
    for module in _modules():
        for value in list(vars(module).values()):
            members = list(vars(value).values()) if isinstance(value, type) else [value]
            todo.extend(member.__code__ for member in members if isinstance(member, types.FunctionType))
    while todo:
        code = todo.pop()
        if code.co_filename.startswith(_OURS):
            yield code
            todo.extend(each for each in code.co_consts if isinstance(each, types.CodeType))


def _class_names() -> set[str]:
    """Names of our classes, but not of those that go by the name of what they stand for."""
    found = set()
    for module in _modules():
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__.partition(".")[0] == "attnfit":
                found.add(value.__name__)
    return found
