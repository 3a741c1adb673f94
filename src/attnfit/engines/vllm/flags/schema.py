"""Config objects given as JSON (`--attention-config '{...}'`): would the release's pydantic classes take them?

The classes' fields, types and bounds are data in the flag table; their own checks are in `checks`. The answer has
three values: taken, refused (`SchemaError`), or not decidable here (`state.Unknown`, naming the part).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from attnfit.engines.vllm.flags import checks
from attnfit.engines.vllm.flags.class_rules import SchemaError
from attnfit.engines.vllm.flags.convert import RaisedTypeError
from attnfit.engines.vllm.launch.state import Unknown

MAX_DEPTH = 200  # of the JSON reader pydantic uses
TRUE = {"1", "on", "t", "true", "y", "yes"}
FALSE = {"0", "off", "f", "false", "n", "no"}


def accept(name: str, value: Any, classes: Mapping[str, Any], path: str = "") -> None:
    """Check `value` against config class `name`. Raises SchemaError or Unknown; the value itself is left alone."""
    if _depth(value) > MAX_DEPTH:
        raise SchemaError(path or name, "Invalid JSON: recursion limit exceeded")
    _object(name, value, classes, path or name)


def _object(name: str, value: Any, classes: Mapping[str, Any], path: str) -> None:
    cls = classes.get(name)
    if cls is None or "unknown" in cls:
        raise Unknown(f"{path}: the fields of {name} are not known for this release")
    rules = [checks.find(name, check, path) for check in cls.get("checks", ())]
    for rule in rules:
        if rule.kind == "before_all":
            rule.run(value, cls, path)
    if not isinstance(value, dict):
        raise SchemaError(path, "Input should be an object")
    fields = cls["fields"]
    given = {}
    # pydantic tries every field and reports all errors together; an exception that is not an error of the value
    # (EngineError, RaisedTypeError) escapes at once, whatever was wrong before
    wrong: SchemaError | None = None
    unknown: Unknown | None = None
    for key, field in fields.items():
        at = f"{path}.{key}"
        if key not in value or field.get("init") is False:
            if field.get("required"):
                wrong = wrong or SchemaError(at, "Field required")
            continue
        try:
            item = _field(key, field, value[key], rules, cls, classes, at)
            given[key] = _coerced(field["type"], item)
        except SchemaError as e:
            wrong = wrong or e
        except Unknown as e:
            unknown = unknown or e
    extra = [k for k in value if k not in fields or fields[k].get("init") is False]
    if extra and cls.get("extra") == "forbid":
        wrong = wrong or SchemaError(f"{path}.{extra[0]}", "Unexpected keyword argument")
    if wrong is not None:
        raise wrong
    if unknown is not None:
        raise unknown
    seen = {k: f.get("default") for k, f in fields.items()} | given
    for rule in rules:
        if rule.kind == "whole":
            rule.run(seen, cls, path)


def _field(
    key: str,
    field: Mapping[str, Any],
    item: Any,
    rules: list[checks.Rule],
    cls: Mapping[str, Any],
    classes: Mapping[str, Any],
    at: str,
) -> Any:
    done = False
    for rule in rules:
        if rule.kind == "field" and (key in rule.fields or "*" in rule.fields):
            item, done = rule.change(item, at, classes)
            if done:
                break
    if not done:
        _value(field["type"], item, classes, at)
        _bounds(field.get("bounds", {}), item, at)
    for rule in rules:
        if rule.kind == "field_after" and key in rule.fields:
            rule.run(item, cls, at)
    return item


def _coerced(hint: Any, value: Any) -> Any:
    """The value as the class would hold it, where a later check looks at it: "true" is True, "8" is 8."""
    hints = hint.get("union", [hint]) if isinstance(hint, dict) else [hint]
    if isinstance(value, list):
        inner = next((h["list"] for h in hints if isinstance(h, dict) and "list" in h), None)
        return [_coerced(inner, v) for v in value] if inner is not None else value
    kinds = {h for h in hints if isinstance(h, str)}
    if "bool" in kinds and not isinstance(value, bool) and _is_bool(value):
        return value.lower() in TRUE if isinstance(value, str) else bool(value)
    if isinstance(value, str) and "str" not in kinds:
        if "int" in kinds and _is_int(value):
            return int(value.strip().partition(".")[0])
        if "float" in kinds and _is_float(value):
            return float(value)
    return value


def _value(hint: Any, value: Any, classes: Mapping[str, Any], path: str) -> None:
    if isinstance(hint, str):
        _plain(hint, value, path)
        return
    kind, arg = next(iter(hint.items()))
    if kind == "union":
        _union(arg, value, classes, path)
    elif kind == "literal":
        if not any(type(option) is type(value) and option == value for option in arg):
            raise SchemaError(path, f"Input should be {', '.join(map(repr, arg))}")
    elif kind == "bounded":
        _value(arg, value, classes, path)
        _bounds({k: v for k, v in hint.items() if k != "bounded"}, value, path)
    elif kind in ("list", "set", "frozenset"):
        if not isinstance(value, list):
            raise SchemaError(path, f"Input should be a valid {kind}")
        for i, item in enumerate(value):
            _value(arg, item, classes, f"{path}.{i}")
    elif kind == "tuple":
        _tuple(arg, value, classes, path)
    elif kind == "dict":
        if not isinstance(value, dict):
            raise SchemaError(path, "Input should be an object")
        for key, item in value.items():
            _value(arg[0], key, classes, f"{path}.{key}")
            _value(arg[1], item, classes, f"{path}.{key}")
    elif kind == "enum":
        _enum(arg, value, classes, path)
    elif kind == "named":
        _named(arg, value, classes, path)
    elif kind == "dataclass":
        _object(arg, value, classes, path)
    else:
        raise Unknown(f"{path}: values of type {arg} are not known for this release")


def _union(hints: list[Any], value: Any, classes: Mapping[str, Any], path: str) -> None:
    unknown: Unknown | None = None
    first: SchemaError | None = None
    for hint in hints:
        try:
            return _value(hint, value, classes, path)
        except SchemaError as e:
            first = first or e
        except Unknown as e:
            unknown = e
    if unknown is not None:
        raise unknown
    raise first or SchemaError(path, "no type fits")


def _tuple(hints: list[Any], value: Any, classes: Mapping[str, Any], path: str) -> None:
    if not isinstance(value, list):
        raise SchemaError(path, "Input should be a valid tuple")
    if hints[-1:] == ["..."]:
        hints = hints[:1] * len(value)
    if len(hints) != len(value):
        raise SchemaError(path, f"Tuple should have {len(hints)} items")
    for i, (hint, item) in enumerate(zip(hints, value, strict=True)):
        _value(hint, item, classes, f"{path}.{i}")


def _enum(name: str, value: Any, classes: Mapping[str, Any], path: str) -> None:
    members = classes.get(name, {}).get("enum")
    if members is None:
        raise Unknown(f"{path}: the values of {name} are not known for this release")
    if any(isinstance(v, dict) for v in members.values()):
        raise Unknown(f"{path}: the values of {name} are not known for this release")
    for member in members.values():
        if type(member) is type(value) and member == value:
            return
        if isinstance(member, int) and isinstance(value, (bool, float)) and member == value:
            return
        if isinstance(member, list) and value == member:
            return
    raise SchemaError(path, f"Input should be {', '.join(map(repr, members.values()))}")


def _named(table: str, value: Any, classes: Mapping[str, Any], path: str) -> None:
    names = classes.get(table, {}).get("names")
    if names is None:
        raise Unknown(f"{path}: the names in {table} are not known for this release")
    if value is not None and not isinstance(value, str):
        raise RaisedTypeError
    if value is not None and value not in names:
        raise SchemaError(path, f"Value error, unknown quantization name {value!r}; expected one of {sorted(names)}")


def _plain(kind: str, value: Any, path: str) -> None:
    tests: dict[str, Callable[[], bool]] = {
        "any": lambda: True,
        "null": lambda: value is None,
        "str": lambda: isinstance(value, str),
        "path": lambda: isinstance(value, str),
        "bool": lambda: _is_bool(value),
        "int": lambda: _is_int(value),
        "float": lambda: _is_float(value),
        "list": lambda: isinstance(value, list),
        "dict": lambda: isinstance(value, dict),
        "set": lambda: isinstance(value, list),
        "tuple": lambda: isinstance(value, list),
    }
    ok = tests.get(kind)
    if ok is None:
        raise Unknown(f"{path}: values of type {kind} are not known for this release")
    if not ok():
        raise SchemaError(path, f"Input should be a valid {kind}")


def _is_bool(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() in TRUE | FALSE
    return isinstance(value, bool) or (isinstance(value, (int, float)) and value in (0, 1))


def _is_int(value: Any) -> bool:
    if isinstance(value, bool):
        return True
    if isinstance(value, str):
        return _int_text(value)
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value) and value == int(value))


def _int_text(text: str) -> bool:
    """Pydantic reads "12", " 12 ", "1_000", "12.0" as whole numbers."""
    whole, dot, rest = text.strip().partition(".")
    if dot and (not rest or rest.strip("0")):
        return False
    try:
        int(whole)
    except ValueError:
        return False
    return True


def _is_float(value: Any) -> bool:
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, (bool, int, float))


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return math.inf if value > 0 else -math.inf
    return float(value) if isinstance(value, (bool, int, float)) else None


def _bounds(bounds: Mapping[str, Any], value: Any, path: str) -> None:
    if value is None:
        return
    number = _number(value)
    for name, limit in bounds.items():
        if name in ("ge", "gt", "le", "lt") and number is not None and isinstance(limit, (int, float)):
            fine = {"ge": number >= limit, "gt": number > limit, "le": number <= limit, "lt": number < limit}[name]
            if not fine:
                sign = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}[name]
                raise SchemaError(path, f"Input should be {sign} {limit}")
        elif name == "min_length" and isinstance(value, (list, dict, str)):
            if len(value) < limit:
                raise SchemaError(path, f"should have at least {limit} items")
        elif name == "max_length" and isinstance(value, (list, dict, str)):
            if len(value) > limit:
                raise SchemaError(path, f"should have at most {limit} items")
        elif name == "multiple_of" and number is not None:
            if number % limit:
                raise SchemaError(path, f"Input should be a multiple of {limit}")
        elif isinstance(limit, dict) or name not in ("ge", "gt", "le", "lt", "min_length", "max_length"):
            raise Unknown(f"{path}: its bound {name} is not known")


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        nested = [v for v in level if isinstance(v, (list, dict))]
        level = [x for v in nested for x in (v.values() if isinstance(v, dict) else v)]
        if depth > MAX_DEPTH:
            break
    return depth
