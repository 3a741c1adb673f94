"""Make visible what Python gives a value no say in: `is`, `in`, `int()`; note which `return` gave a reason.

The engine's statements pass through here before they are compiled. Line numbers stay, meaning stays.
"""

from __future__ import annotations

import ast

SPEAKS = "supports_combination"  # its `return` statements are where a reason comes from


# Helpers that many predicates call and that return one of a few values: each gets a tree of its own, so that its ways
# do not multiply with those of its callers. A release that lacks one loses nothing.
SUMMARISED = frozenset({"get_flash_attn_version"})


class _Rewriter(ast.NodeTransformer):
    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.functions: list[str] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.functions.append(node.name)
        self.generic_visit(node)
        self.functions.pop()
        if node.name in SUMMARISED and not self.functions:
            node.decorator_list.append(ast.copy_location(ast.Name("__attnfit_summary__", ast.Load()), node))
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        if node.value is not None and self.functions and self.functions[-1] == SPEAKS:
            place = ast.Constant(f"{self.filename}:{node.lineno}")
            call = ast.Call(ast.Name("__attnfit_said__", ast.Load()), [node.value, place], [])
            node.value = ast.copy_location(call, node.value)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) != 1:
            return node
        op = node.ops[0]
        if isinstance(op, (ast.Is, ast.IsNot)):
            helper, negated = "__attnfit_is__", isinstance(op, ast.IsNot)
        elif isinstance(op, (ast.In, ast.NotIn)):
            helper, negated = "__attnfit_in__", isinstance(op, ast.NotIn)
        else:
            return node
        call: ast.expr = ast.Call(ast.Name(helper, ast.Load()), [node.left, node.comparators[0]], [])
        if negated:
            call = ast.UnaryOp(ast.Not(), call)
        return ast.copy_location(call, node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "int" and not node.keywords:
            node.func = ast.copy_location(ast.Name("__attnfit_int__", ast.Load()), node.func)
        return node


def rewrite(tree: ast.stmt, filename: str = "") -> ast.stmt:
    """The same statement with `is`, `in` and `int()` as calls of the helpers that `tracked.install` provides."""
    result: ast.stmt = _Rewriter(filename).visit(tree)
    return ast.fix_missing_locations(result)
