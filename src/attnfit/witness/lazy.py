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
from .file_text import FileText, Text

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

    def attnfit_flags(self, tree: ast.stmt) -> int:
        """Compiler flags for a top-level statement."""
        return FLAGS

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
                parsed = written.tree
                flags = self.attnfit_flags(parsed)
                tree = ast.Module([self.__transform(parsed, self.__relative)], [])
                written.code = compile(tree, self.__relative, "exec", flags, True)
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


def _level(star: str) -> int:
    return len(star) - len(star.lstrip("."))
