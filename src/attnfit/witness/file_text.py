"""What a source file says, read without running it: its top-level statements and the names each of them binds.

Several loaders of the same release share it. Standard library only.
"""

from __future__ import annotations

import ast
import re
import types

from .chunks import Chunk, split


class Text:
    """What one top-level statement says: the names it binds, its syntax tree (parsed when wanted), its code."""

    __slots__ = ("_chunk", "_tree", "code", "line", "names")

    def __init__(self, tree: ast.stmt | None, chunk: Chunk | None, names: tuple[str, ...]) -> None:
        self._tree, self._chunk, self.names = tree, chunk, names
        self.line = tree.lineno if tree is not None else chunk.line if chunk is not None else 0
        self.code: types.CodeType | None = None  # compiled once, whatever the number of modules that run it

    @property
    def imports(self) -> bool:
        """Whether it is an import."""
        return isinstance(self._tree, (ast.Import, ast.ImportFrom))

    @property
    def tree(self) -> ast.stmt:
        """A fresh tree each time: transforms change it in place."""
        if self._chunk is not None:
            return parse(self._chunk)[0]
        assert self._tree is not None
        return self._tree


class FileText:
    """A file cut into its top-level statements. Loaders of the same release may share it."""

    __slots__ = ("by_name", "imports", "needs", "registering", "stars", "statements")

    def __init__(self, source: str, fixed: set[str], registers: re.Pattern[str] | None) -> None:
        self.statements: list[Text] = []
        self.stars: list[str] = []  # modules of `from x import *`
        self.needs: dict[str, int] = {}  # top-level packages it imports, and the line that does
        self.imports: list[tuple[int, str, str]] = []  # (level, module, name) of each `from` import
        self.registering: list[str] = []  # names whose statements register themselves elsewhere; modules imported
        # for what they do (`import a.b`) come first
        imported: set[str] = set()
        pending: list[tuple[ast.stmt | None, Chunk | None, set[str], set[str]]] = []
        for chunk in split(source):
            if chunk.name:
                pending.append((None, chunk, {chunk.name}, set()))
                if registers is not None and registers.search(chunk.text):
                    self.registering.append(chunk.name)
                continue
            for tree in (part for whole in parse(chunk) for part in _one_import_each(whole)):
                names, touched = bound(tree), mutated(tree)
                if registers is not None and registers.match(f"@{_called(tree)}("):
                    names = {f"<line {tree.lineno}>"}  # `register_x(...)` binds nothing
                    self.registering.extend(names)
                if isinstance(tree, (ast.Import, ast.ImportFrom)):
                    imported.update(names)
                    self._import(tree, registers is not None)
                if registers is not None and not names and registers.search(_as_decorator(tree)):
                    names = {f"<line {tree.lineno}>"}
                    self.registering.extend(names)
                if names or touched:
                    pending.append((tree, None, names, touched))
        self.by_name: dict[str, list[Text]] = {}
        for statement, piece, names, touched in pending:
            # `torch.backends.x(...)` is an effect on somebody else's module
            text = Text(statement, piece, tuple((names | (touched - imported)) - fixed))
            self.statements.append(text)
            for name in text.names:
                self.by_name.setdefault(name, []).append(text)

    def _import(self, tree: ast.Import | ast.ImportFrom, registers: bool) -> None:
        self.needs.setdefault(_package(tree), tree.lineno)
        alias = tree.names[0]
        if isinstance(tree, ast.ImportFrom):
            self.imports.append((tree.level, tree.module or "", alias.name))
            if alias.name == "*":
                self.stars.append("." * tree.level + (tree.module or ""))
        elif registers and "." in alias.name and not alias.asname:
            self.registering.insert(0, alias.name)


def _one_import_each(tree: ast.stmt) -> list[ast.stmt]:
    """One statement per imported name: a package's `from .x import (A, B, C)` must not load A for the sake of C."""
    if isinstance(tree, ast.Import):
        return [ast.copy_location(ast.Import([alias]), tree) for alias in tree.names]
    if isinstance(tree, ast.ImportFrom):
        return [ast.copy_location(ast.ImportFrom(tree.module, [alias], tree.level), tree) for alias in tree.names]
    return [tree]


def _called(tree: ast.stmt) -> str:
    """The name of the function that a statement calls and does nothing else; '' for any other."""
    call = tree.value if isinstance(tree, ast.Expr) else None
    return call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""


def _as_decorator(tree: ast.stmt) -> str:
    """`register_x(...)` on a line of its own, as `@register_x(` would be written; "" for any other statement."""
    called = tree.value.func if isinstance(tree, ast.Expr) and isinstance(tree.value, ast.Call) else None
    return f"@{called.id}(" if isinstance(called, ast.Name) else ""


def _package(tree: ast.Import | ast.ImportFrom) -> str:
    """The top-level package an import statement needs; '' for a relative one."""
    if isinstance(tree, ast.Import):
        return tree.names[0].name.partition(".")[0]
    return "" if tree.level else (tree.module or "").partition(".")[0]


def parse(chunk: Chunk) -> list[ast.stmt]:
    """The chunk's statements, with the line numbers they have in the file."""
    return ast.parse("\n" * (chunk.line - 1) + chunk.text).body


NESTED = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)  # scopes of their own


def bound(tree: ast.AST) -> set[str]:
    """Names a statement binds at its own level (not inside functions and classes)."""
    names: set[str] = set()
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Import):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.AnnAssign) and node.value is None:
            continue
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, (ast.Store, ast.Del)):
                names.add(node.id)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            todo.extend(node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(node.value, ast.NamedExpr):
                todo.append(node.value)
        elif isinstance(node, NESTED) or (isinstance(node, ast.Expr) and not isinstance(node.value, ast.NamedExpr)):
            continue
        else:
            todo.extend(ast.iter_child_nodes(node))
    return names


def mutated(tree: ast.AST) -> set[str]:
    """Names whose objects a statement changes in place: `X[k] = v`, `X.a = v`, `X.append(v)`, `setattr(X, ...)`."""
    names: set[str] = set()
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, (ast.Subscript, ast.Attribute)):
                    names.add(_root(target))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            if isinstance(call.func, ast.Attribute):
                names.add(_root(call.func))
            elif isinstance(call.func, ast.Name) and call.func.id == "setattr" and call.args:
                names.add(_root(call.args[0]))
        elif isinstance(node, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
            children = ast.iter_child_nodes(node)
            todo.extend(child for child in children if isinstance(child, (ast.stmt, ast.ExceptHandler)))
        elif isinstance(node, ast.ExceptHandler):
            todo.extend(node.body)
    names.discard("")
    return names


def _root(node: ast.AST) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""
