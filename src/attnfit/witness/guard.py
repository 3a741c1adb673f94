"""Rewrites engine code on load so that the checks Python gives objects no say in still see stubs.

`x is None`, `isinstance(x, T)`, `hasattr(x, "a")`, `callable(x)` and `type(x)` never ask a stub; they would answer
silently. Standard library only.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from typing import Any

from . import stubs

SEEN = "__attnfit_seen__"
TYPE_OF = "__attnfit_type__"
Transform = Callable[[ast.stmt, str], ast.stmt]  # (top-level statement, file name) -> statement


def _wrap(helper: str, node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Constant):
        return node
    call = ast.Call(ast.copy_location(ast.Name(helper, ast.Load()), node), [node], [])
    return ast.copy_location(call, node)


def rewrite(statement: ast.stmt, filename: str = "") -> ast.stmt:
    """The statement with identity and type checks routed through stub-aware helpers. Changes it in place."""
    todo: list[ast.AST] = [statement]
    while todo:  # a plain walk: ast.NodeTransformer is a third of a cold start
        node = todo.pop()
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                todo.append(value)
            elif type(value) is list:
                todo.extend(item for item in value if isinstance(item, ast.AST))
        if isinstance(node, ast.Compare):
            if any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
                node.left = _wrap(SEEN, node.left)
                node.comparators = [_wrap(SEEN, side) for side in node.comparators]
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id == "type" and len(node.args) == 1 and not node.keywords:
                node.func = ast.copy_location(ast.Name(TYPE_OF, ast.Load()), node.func)
        elif isinstance(node, ast.Match):
            node.subject = _wrap(SEEN, node.subject)
    return statement


def _isinstance(value: Any, kind: Any) -> bool:
    if stubs.is_stub(value):
        stubs.leak(f"isinstance({stubs.path_of(value)}, ...)")
    return isinstance(value, kind)


def _hasattr(value: Any, name: str) -> bool:
    if stubs.is_stub(value):
        stubs.leak(f"hasattr({stubs.path_of(value)}, {name!r})")
    known = getattr(type(value), "__attnfit_has__", None)  # one of ours that knows what is there, if not its value
    if known is not None and (answer := known(value, name)) is not None:
        return bool(answer)
    if stubs.is_stub(getattr(value, name, None)):
        stubs.leak(f"hasattr(..., {name!r}) found only a stub")
    return hasattr(value, name)


def _callable(value: Any) -> bool:
    if stubs.is_stub(value):
        stubs.leak(f"callable({stubs.path_of(value)})")
    return callable(value)


def _type_of(value: Any) -> type:
    if stubs.is_stub(value):
        stubs.leak(f"type({stubs.path_of(value)})")
    return type(value)


def _forbidden(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        stubs.leak(f"{name}() was called")

    return call


def checked_builtins() -> dict[str, Any]:
    """Python's builtins as engine code sees them here."""
    names: dict[str, Any] = dict(vars(builtins))
    names.update(
        {
            SEEN: stubs.seen,
            TYPE_OF: _type_of,
            "isinstance": _isinstance,
            "hasattr": _hasattr,
            "callable": _callable,
            "print": lambda *args, **kwargs: None,
        }
    )
    for name in ("open", "exec", "eval", "compile", "input", "breakpoint", "id"):
        names[name] = _forbidden(name)
    return names
