"""Engine modules whose top-level statements run one by one, when a name they bind is first wanted.

A class pulls in exactly the bases, constants and helpers it uses, all of them the release's real ones; nothing else
of the engine runs, so little needs a stub, and a cold start stays short. A statement that read the situation (the
capability, an environment fact, the current config) while it ran is run again when that part of the situation changes.
Standard library only.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import re
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from . import blame, stubs
from .chunks import Chunk, split

FLAGS = __future__.annotations.compiler_flag  # annotations stay text: they would pull in half the engine
MISSING = object()


class Situation:
    """Which part ("facet") of the question's circumstances the running statements have read."""

    def __init__(self) -> None:
        self.stack: list[set[str]] = []
        self.versions: dict[str, int] = {}
        self.reads: set[str] = set()  # since the question was put

    def read(self, facet: str) -> None:
        """Called by everything that hands a circumstance to engine code."""
        self.reads.add(facet)
        if self.stack:
            self.stack[-1].add(facet)

    def changed(self, facet: str) -> None:
        """What was computed from this facet no longer counts."""
        self.versions[facet] = self.versions.get(facet, 0) + 1


class Builtins(dict):  # type: ignore[type-arg]
    """A module's builtins; a name found nowhere else is looked for among the module's statements."""

    module: LazyModule

    def __missing__(self, name: str) -> Any:
        value = self.module.demand(name)
        if value is MISSING:
            raise KeyError(name)
        return value


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


class Statement:
    """One top-level statement of a module, and whether it has run there."""

    __slots__ = ("error", "line", "names", "running", "seen", "text")

    def __init__(self, text: Text) -> None:
        self.text, self.names, self.line = text, text.names, text.line
        self.running = False
        self.seen: dict[str, int] | None = None  # facet -> version at the time it ran; None: not run
        self.error: BaseException | None = None


class LazyModule(types.ModuleType):
    """One source file of the engine."""

    def __init__(
        self,
        name: str,
        file: Path,
        relative: str,
        situation: Situation,
        builtins: dict[str, Any],
        transform: Callable[[ast.stmt, str], ast.stmt],
        submodule: Callable[[str], Any],
        overrides: dict[str, Any],
        texts: dict[str, FileText],
        registers: re.Pattern[str] | None = None,
    ) -> None:
        super().__init__(name)
        space = vars(self)
        table = Builtins(builtins)
        table.module = self
        is_package = file.name == "__init__.py"
        space.update(
            __builtins__=table,
            __file__=str(file),
            __name__=name,
            __package__=name if is_package else name.rpartition(".")[0],
        )
        if is_package:
            space["__path__"] = [str(file.parent)]
        space.update(overrides)
        self.__relative = relative
        self.__situation = situation
        self.__transform = transform
        self.__submodule = submodule
        self.__stored: dict[str, tuple[Any, frozenset[str]]] = {}  # values that depend on the situation
        self.__current: list[int] = []  # lines of the statements that are running
        self.__later: list[Statement] = []  # changes further down the file than what is running
        self.__statements: dict[Text, Statement] = {}  # of those that were wanted
        text = texts.get(str(file))
        if text is None:
            text = texts[str(file)] = FileText(file.read_text("utf-8"), set(overrides), registers)
        self.__stars = text.stars
        self.attnfit_needs = dict(text.needs)  # packages without which importing this file fails
        self.attnfit_imports = text.imports
        own = name.partition(".")[0] + "."
        self.__registering = [each for each in text.registering if "." not in each or each.startswith(own)]
        self.__by_name = text.by_name
        for taken in OWN_NAMES & text.by_name.keys():  # asked for before it is run, it would be ours
            if not all(each.imports for each in text.by_name[taken]):
                stubs.leak(f"{relative} defines {taken!r}, a name that the witness has for itself there")

    def __getattr__(self, name: str) -> Any:
        value = self.demand(name)
        if value is MISSING and not (name.startswith("__") and name.endswith("__")):
            own = self.demand("__getattr__")
            if own is not MISSING:
                with contextlib.suppress(AttributeError):
                    value = own(name)
            if value is MISSING and "__path__" in vars(self):
                value = self.__submodule(name)
        if value is MISSING:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return value

    def defines(self, name: str) -> bool:
        """Whether a top-level statement binds the name."""
        return name in self.__by_name

    def statements(self, name: str) -> Iterator[ast.stmt]:
        """The untransformed trees that bind a name (for reading defaults off the source)."""
        return (text.tree for text in self.__by_name.get(name, ()))

    def attnfit_lacks(self, package: str) -> NoReturn:
        """Importing the file fails, in its own line, for want of a package."""
        line = self.attnfit_needs[package]
        said = f"raise ModuleNotFoundError({f'No module named {package!r}'!r}, name={package!r})"
        exec(compile("\n" * (line - 1) + said, self.__relative, "exec"), {})
        raise AssertionError("a raise statement was passed")

    def register(self) -> None:
        """Run what registers itself elsewhere when the file is imported."""
        pending, self.__registering = self.__registering, []
        for name in pending:
            if "." in name:
                module = vars(self)["__builtins__"]["__import__"](name, vars(self), None, ("*",))
                if isinstance(module, LazyModule):
                    module.register()
            else:
                self.demand(name)

    def run_all(self) -> None:
        """Run every statement that binds a name, in order."""
        for name in list(self.__by_name):
            self.demand(name)

    def demand(self, name: str) -> Any:
        """The value of a global name, running what binds it first; MISSING if nothing does."""
        space = vars(self)
        if self.__registering and not self.__current and name in self.__by_name:
            self.register()
        statements = self.__stated(name)
        if any(self.__stale(statement) for statement in statements):
            for statement in statements:
                if not statement.running:
                    statement.seen = None
        for statement in statements:
            if statement.running:
                continue
            if self.__current and statement.line > self.__current[-1] and name in space:
                self.__later.append(statement)
                continue
            if statement.seen is None:
                self.__run(statement)
            if statement.error is not None:
                raise statement.error.with_traceback(None)
        if name in space:
            return space[name]
        if name in self.__stored:
            value, facets = self.__stored[name]
            for facet in facets:
                self.__situation.read(facet)
            return value
        for star in self.__stars:
            target = space["__builtins__"]["__import__"](star.lstrip("."), space, None, ("*",), _level(star))
            value = target.demand(name) if isinstance(target, LazyModule) else getattr(target, name, MISSING)
            if value is not MISSING:
                return value
        return MISSING

    def __stated(self, name: str) -> list[Statement]:
        """The statements that bind a name, each made at the first time it is wanted."""
        known = self.__statements
        found = []
        for text in self.__by_name.get(name, ()):
            if text not in known:
                known[text] = Statement(text)
            found.append(known[text])
        return found

    def __stale(self, statement: Statement) -> bool:
        versions = self.__situation.versions
        return any(versions.get(facet, 0) != version for facet, version in (statement.seen or {}).items())

    def __run(self, statement: Statement) -> None:
        situation, space = self.__situation, vars(self)
        for name in statement.names:
            self.__stored.pop(name, None)
        statement.error = None
        facets: set[str] = set()
        situation.stack.append(facets)
        statement.running = True
        stubs.STATE.loading += 1
        self.__current.append(statement.line)
        written = statement.text
        try:
            if written.code is None:
                tree = ast.Module([self.__transform(written.tree, self.__relative)], [])
                written.code = compile(tree, self.__relative, "exec", FLAGS, True)
            exec(written.code, space)
        except (stubs.StubLeak, ImportError) as error:
            statement.error = error  # a real ImportError means to the engine what it means to us
            if isinstance(error, ImportError) and blame.from_engine(error):
                stubs.as_real(error)  # said here: the traceback is not kept
        except Exception as error:
            where = f"{self.__relative}:{statement.line}"
            text = f"{', '.join(statement.names)} could not be loaded: {type(error).__name__}: {error} ({where})"
            statement.error = stubs.StubLeak(text)
            statement.error.__cause__ = error
        finally:
            stubs.STATE.loading -= 1
            statement.running = False
            self.__current.pop()
            situation.stack.pop()
            statement.seen = {facet: situation.versions.get(facet, 0) for facet in facets}
            if situation.stack:
                situation.stack[-1] |= facets
        while self.__later and not self.__current:
            later = self.__later.pop(0)
            if later.seen is None:
                self.__run(later)
        if facets:  # kept aside: a plain global would be read without anyone noticing
            for name in statement.names:
                if name in space:
                    self.__stored[name] = (space.pop(name), frozenset(facets))


OWN_NAMES = frozenset(name for name in vars(LazyModule) if not name.startswith("_"))


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


def _level(star: str) -> int:
    return len(star) - len(star.lstrip("."))


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
