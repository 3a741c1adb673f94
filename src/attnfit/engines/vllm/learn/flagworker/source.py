"""Reading source files as syntax trees. Standard library only: this runs inside the isolated child."""

from __future__ import annotations

import ast
import hashlib
import sys
from typing import Any


def digest(path: str, cls: str, name: str) -> str:
    """First 12 hex digits of the SHA-256 of the function's syntax tree.

    Comments, layout, docstrings and the Python that runs this do not count.
    """
    for node in ast.walk(parsed_file(path) or ast.Module([], [])):
        if isinstance(node, ast.ClassDef) and node.name == cls:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == name:
                    if ast.get_docstring(item, clean=False) is not None:
                        item.body = item.body[1:]
                    return hashlib.sha256(canonical(item).encode()).hexdigest()[:12]
    return ""


def canonical(node: Any) -> str:
    """A syntax tree as text, the same from every Python: fields that are empty or about layout are left out."""
    if isinstance(node, list):
        return "[" + ",".join(map(canonical, node)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = ((k, v) for k, v in ast.iter_fields(node) if k not in ("ctx", "kind", "type_comment", "type_params"))
    inside = ",".join(f"{k}={canonical(v)}" for k, v in fields if v is not None and v != [])
    return f"{type(node).__name__}({inside})"


def parsed_file(path: str | None) -> ast.Module | None:
    """The syntax tree of a source file; None when it cannot be read or parsed."""
    try:
        with open(path or "", encoding="utf-8") as f:
            return ast.parse(f.read())
    except (OSError, SyntaxError, ValueError):
        return None


def own_action(cls: Any) -> str:
    """An action class of the engine's own: "store" when all it does besides warning is to store the value."""
    tree = parsed_file(getattr(sys.modules.get(cls.__module__), "__file__", None)) or ast.Module([], [])
    call = next(
        (
            f
            for c in tree.body
            if isinstance(c, ast.ClassDef) and c.name == cls.__name__
            for f in c.body
            if isinstance(f, ast.FunctionDef) and f.name == "__call__"
        ),
        None,
    )
    if call is None:
        return str(cls.__name__)
    body = [ast.unparse(s) for s in call.body]
    stores = "setattr(namespace, self.dest, values)"
    if stores in body and all(s == stores or s.startswith(("warnings.warn(", "logger.warning")) for s in body):
        return "store"
    return str(cls.__name__)


LAMBDAS = {
    "lower_underscore": "lambda s: s.lower().replace('-', '_')",
    "lower": "lambda s: s.lower()",
    "upper": "lambda s: s.upper()",
    "comma_ids": "lambda s: [int(device_id) if device_id.isdigit() else device_id "
    "for device_id in (part.strip() for part in s.split(','))]",
}


def lambda_shape(code: Any) -> str | None:
    """The name in LAMBDAS of a lambda written like this one; None for any other."""
    tree = parsed_file(code.co_filename)
    if tree is None:
        return None
    here = {canonical(n) for n in ast.walk(tree) if isinstance(n, ast.Lambda) and n.lineno == code.co_firstlineno}
    known = {canonical(ast.parse(text, mode="eval").body): name for name, text in LAMBDAS.items()}
    return known.get(here.pop()) if len(here) == 1 else None
