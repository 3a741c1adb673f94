"""An argparse parser and the config classes its flags name, as plain data.

`describe` also runs under a real engine, where the proofs compare the two. Standard library only.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import typing
from typing import Any

from attnfit.engines.vllm.learn.flagworker.source import lambda_shape, own_action
from attnfit.engines.vllm.learn.flagworker.stubs import FieldInfo, Stub, StubLeak


def unknown_type(text: str) -> Any:
    raise StubLeak(text)


def stubs_in(hint: Any) -> list[str]:
    """Names in a type hint whose kind we do not know."""
    if isinstance(hint, Stub):
        return [] if hint._known else [hint._name]
    if isinstance(hint, (str, typing.ForwardRef)):
        return [str(hint)]
    return [s for a in typing.get_args(hint) if typing.get_origin(hint) is not typing.Literal for s in stubs_in(a)]


def watch_hints(arg_utils: Any, unsure: dict[tuple[str, str], list[str]]) -> None:
    """Replace the type of every flag whose hint holds a name of unknown kind by `unknown_type`."""
    name = "_compute_kwargs" if hasattr(arg_utils, "_compute_kwargs") else "get_kwargs"
    original = getattr(arg_utils, name)

    def watched(cls: Any) -> Any:
        kwargs = original(cls)
        for field in dataclasses.fields(cls):
            found = stubs_in(field.type)
            if found and field.name in kwargs and kwargs[field.name].get("type") is not unknown_type:
                unsure[(cls.__name__, field.name)] = found
                kwargs[field.name]["type"] = unknown_type
                kwargs[field.name].pop("choices", None)
        return kwargs

    setattr(arg_utils, name, watched)


def describe_type(t: Any) -> Any:
    """A parser `type=` callable as data: a name, or {"optional": inner}; None when it is not one we know."""
    if t is None:
        return "str"
    if t in (int, float, str, bool):
        return t.__name__
    if t is json.loads:
        return "json"
    if isinstance(t, type):
        return {"class": t.__name__}
    name = getattr(t, "__name__", "")
    cells: dict[str, Any] = {}
    code = getattr(t, "__code__", None)
    if code is not None and t.__closure__:
        cells = dict(zip(code.co_freevars, (c.cell_contents for c in t.__closure__), strict=True))
    if name == "_optional_type":
        inner = describe_type(cells["return_type"])
        return None if inner is None else {"optional": inner}
    if name == "_parse_type":
        inner = describe_type(cells["return_type"])
        return None if inner is None else {"parsed": inner}
    if name == "parse_dataclass":
        cls = (t.__defaults__ or (None,))[-1]
        return {"dataclass": cls.__name__} if isinstance(cls, type) else None
    if name in ("human_readable_int", "human_readable_int_or_auto", "union_dict_and_str", "parse_reasoning_parser"):
        return name
    if name == "<lambda>" and code is not None:
        return lambda_shape(code)
    return None


def plain(value: Any) -> Any:
    """A default as JSON; `{"object": class}` for config objects, `{"unknown": why}` for a stub."""
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, Stub):
        return {"unknown": repr(value)}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(v) for v in value)
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if dataclasses.is_dataclass(value):
        return {"object": type(value).__name__}
    if isinstance(value, FieldInfo):
        return plain(value.default)
    return {"unknown": repr(type(value))}


def describe(parser: Any) -> list[dict[str, Any]]:
    """Every action of an argparse parser, in the parser's own order. Also run under a real engine by the proofs."""
    out = []
    for a in parser._actions:
        kind = type(a).__name__
        row: dict[str, Any] = {
            "options": list(a.option_strings),
            "dest": a.dest,
            "action": ACTIONS.get(kind) or own_action(type(a)),
        }
        if kind == "EnableDisableAction":
            # hidden spellings stay registered with the parser but not in the action
            known = [o for o, b in parser._option_string_actions.items() if b is a]
            row["options"] = known
            if known != list(a.option_strings):
                row["shown"] = list(a.option_strings)
            row["negative"] = sorted(o for o in known if o in a.negative_option_strings)
        elif kind == "BooleanOptionalAction":
            row["negative"] = [o for o in a.option_strings if o.startswith("--no-")]
        if a.nargs is not None and row["action"] not in ("bool", "true", "false", "help", "version"):
            row["nargs"] = a.nargs
        if a.const is not None and row["action"] == "store":
            row["const"] = plain(a.const)
        if row["action"] not in ("bool", "true", "false", "help", "version"):
            row["type"] = describe_type(a.type)
        if a.choices is not None:
            row["choices"] = [plain(c) for c in a.choices]
        row["default"] = plain(a.default)
        if getattr(a, "required", False):
            row["required"] = True
        out.append(row)
    return out


ACTIONS = {
    "_StoreAction": "store",
    "_StoreTrueAction": "true",
    "_StoreFalseAction": "false",
    "_AppendAction": "append",
    "BooleanOptionalAction": "bool",
    "EnableDisableAction": "bool",
    "_HelpAction": "help",
    "_VersionAction": "version",
    "LoRAParserAction": "lora",
    "_StoreConstAction": "const",
}
