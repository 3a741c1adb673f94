"""Cut a flat predicate (`validate_configuration`) into units that can be explored one by one.

Such a function is a list of independent statements, each appending its reason. Exploring them together would multiply
their paths; cut apart, the order of the units is the order of the reasons. A function of any other shape stays whole.
"""

from __future__ import annotations

import ast
import copy
from typing import NamedTuple


class Unit(NamedTuple):
    code: str  # stable name of the reason, from the method it asks: supports_head_size -> head_size
    method: str  # that method's name, "" if none
    function: ast.FunctionDef
    line: int


def cut(function: ast.FunctionDef) -> list[Unit]:
    """The units of a flat predicate, in order; one unit named after the function where it is not flat."""
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    whole = [Unit(function.name, "", function, function.lineno)]
    if len(body) < 3 or not isinstance(body[0], ast.Assign) or not isinstance(body[-1], ast.Return):
        return whole
    first, last = body[0], body[-1]
    target = first.targets[0]
    if not (isinstance(target, ast.Name) and isinstance(first.value, ast.List) and not first.value.elts):
        return whole
    if not (isinstance(last.value, ast.Name) and last.value.id == target.id):
        return whole
    groups: list[list[ast.stmt]] = []
    bound: set[str] = set()
    for statement in body[1:-1]:
        if groups and bound & _names(statement, ast.Load):
            groups[-1].append(statement)
        else:
            groups.append([statement])
            bound = set()
        bound |= _names(statement, ast.Store)
    seen: set[str] = set()
    for group in groups:  # nothing may pass from one unit to another except by append
        stored = {name for s in group for name in _names(s, ast.Store)}
        if seen & {name for s in group for name in _names(s, ast.Load)} or not all(
            _appends_only(s, target.id) for s in group
        ):
            return whole
        seen |= stored
    units = []
    for group in groups:
        piece = copy.copy(function)
        piece.body = [first, *group, last]
        method = _method(group)
        units.append(Unit(_code(method), method, piece, group[0].lineno))
    return units


def _names(statement: ast.stmt, context: type[ast.expr_context]) -> set[str]:
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, context)}


def _appends_only(statement: ast.stmt, name: str) -> bool:
    uses = sum(isinstance(n, ast.Name) and n.id == name for n in ast.walk(statement))
    appends = sum(
        isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "append"
        and isinstance(n.func.value, ast.Name) and n.func.value.id == name
        for n in ast.walk(statement)
    )  # fmt: skip
    returns = any(isinstance(n, ast.Return) for n in ast.walk(statement))
    return uses == appends and not returns


def _method(group: list[ast.stmt]) -> str:
    for statement in group:
        for node in ast.walk(statement):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "cls"
                and node.attr.startswith(("supports_", "is_"))
            ):
                return node.attr
    return ""


def _code(method: str) -> str:
    return method.removeprefix("supports_").removeprefix("is_") or "other"
