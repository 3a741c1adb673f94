"""Config classes and enums as plain data: fields, types, bounds, and the checks they run on themselves.

Standard library only: this runs inside the isolated child.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import re
import sys
import types
import typing
from typing import Any

from attnfit.engines.vllm.learn.flagworker.describe import plain
from attnfit.engines.vllm.learn.flagworker.source import digest
from attnfit.engines.vllm.learn.flagworker.stubs import FieldInfo, Mark, Stub


def describe_hint(hint: Any, classes: dict[str, Any]) -> Any:
    """A type hint as data. Unknown parts become {"unknown": text}."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is None or hint is type(None):
        return "null"
    if hint is Any:
        return "any"
    if isinstance(hint, Stub):
        return {"unknown": hint._name}
    if isinstance(hint, (str, typing.ForwardRef)):
        return {"unknown": getattr(hint, "__forward_arg__", hint)}
    if origin is typing.Annotated:
        inner = describe_hint(args[0], classes)
        marks = list(args[1:])
        if any(isinstance(m, Mark) and m.name == "SkipValidation" for m in marks):
            return "any"
        for m in marks:
            if isinstance(m, types.FunctionType) and "_coerce_quant_key" in repr(m.__code__.co_names):
                return {"named": "QUANT_KEY_NAMES"}
            if isinstance(m, FieldInfo):
                inner = {"bounded": inner, **m.constraints} if m.constraints else inner
            else:
                return {"unknown": repr(m)}
        return inner
    if origin is typing.Literal:
        return {"literal": list(args)}
    if origin in (typing.Union, types.UnionType):
        return {"union": [describe_hint(a, classes) for a in args]}
    if origin in (list, set, frozenset):
        return {origin.__name__: describe_hint(args[0], classes)}
    if origin is tuple:
        return {"tuple": [("..." if a is Ellipsis else describe_hint(a, classes)) for a in args]}
    if origin is dict:
        return {"dict": [describe_hint(a, classes) for a in args]}
    if hint in (bool, int, float, str, list, dict, set, tuple):
        return hint.__name__
    if isinstance(hint, type):
        if issubclass(hint, enum.Enum):
            classes.setdefault(hint.__name__, hint)
            return {"enum": hint.__name__}
        if dataclasses.is_dataclass(hint):
            classes.setdefault(hint.__name__, hint)
            return {"dataclass": hint.__name__}
    if isinstance(hint, type) and hint.__name__ == "Path":
        return "path"
    return {"unknown": re.sub(r" at 0x[0-9a-f]+", "", str(hint))}


def describe_class(cls: Any, classes: dict[str, Any], root: str) -> dict[str, Any]:
    """A config class or enum: fields, bounds, and which checks of its own it runs (file, line, digest of source)."""
    file = (
        os.path.relpath(sys.modules[cls.__module__].__dict__.get("__file__", "") or "", root)
        if cls.__module__ in sys.modules and sys.modules[cls.__module__].__dict__.get("__file__")
        else cls.__module__
    )
    if issubclass(cls, enum.Enum):
        meta = type(cls)
        return {
            "enum": {m: plain(v.value) for m, v in cls.__members__.items()},
            "where": file,
            "meta": "" if meta in (enum.EnumMeta,) else meta.__name__,
        }
    fields: dict[str, Any] = {}
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as e:
        return {"unknown": f"{type(e).__name__}: {e}", "where": file}
    infos = getattr(cls, "__attnfit_infos__", {})
    for field in dataclasses.fields(cls):
        row: dict[str, Any] = {"type": describe_hint(hints.get(field.name, field.type), classes)}
        default = field.default
        info = infos.get(field.name)
        if info is not None and info.constraints:
            row["bounds"] = {k: plain(v) for k, v in info.constraints.items()}
        if isinstance(default, FieldInfo):
            row["required"] = True
        elif default is not dataclasses.MISSING:
            row["default"] = plain(default)
        elif field.default_factory is dataclasses.MISSING:
            row["required"] = True
        if not field.init:
            row["init"] = False
        fields[field.name] = row
    return {
        "fields": fields,
        "where": file,
        "extra": getattr(cls, "__attnfit_config__", {}).get("extra", "ignore"),
        "checks": checks_of(cls, root),
    }


def checks_of(cls: Any, root: str) -> list[dict[str, Any]]:
    out = []
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            func = getattr(member, "__func__", member)
            func = getattr(func, "__wrapped__", func) if name == "__post_init__" else func
            mark = getattr(func, "__attnfit_check__", None)
            if name in ("__post_init__", "__post_init_post_parse__") and isinstance(func, types.FunctionType):
                mark = ("post_init", "after", [])
            if mark is None or not isinstance(func, types.FunctionType):
                continue
            kind, mode, names = mark
            path, line = func.__code__.co_filename, func.__code__.co_firstlineno
            out.append(
                {
                    "name": name,
                    "kind": kind,
                    "mode": mode,
                    "fields": names,
                    "where": f"{os.path.relpath(path, root)}:{line}",
                    "digest": digest(path, base.__name__, name),
                }
            )
    return out
