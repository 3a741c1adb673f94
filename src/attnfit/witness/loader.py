"""Loads an engine release's own source files with nothing else installed. Standard library only."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import fakes, guard, stubs
from .facts import Facts
from .file_text import FileText
from .lazy import MISSING, LazyModule

HELPERS = "attnfit_facts"  # what our own account imports
Outside = Callable[[Any, Callable[..., Any], Callable[[str], Any]], Mapping[str, types.ModuleType]]


class Namespace(types.ModuleType):
    """A package without an `__init__.py`: what lies in its folder, and nothing else."""

    def __init__(self, name: str, submodule: Callable[[str, str], Any]) -> None:
        super().__init__(name)
        vars(self).update(__path__=[], _submodule=submodule)

    def __getattr__(self, leaf: str) -> Any:
        value = MISSING if leaf.startswith("__") else self._submodule(self.__name__, leaf)
        if value is MISSING:
            raise AttributeError(f"module {self.__name__!r} has no attribute {leaf!r}")
        return value


class Shelf:
    """What several loaders of the same source files have in common: where files lie, and what they say."""

    def __init__(self) -> None:
        self.texts: dict[str, FileText] = {}
        self.files: dict[tuple[Path, str], Path | None] = {}
        self.registering: dict[str, list[str]] = {}  # package -> its files in which something registers itself


class Loader:
    """The module table of one release: its own source files, and stand-ins for everything else.

    `root` holds the engine's `package` (a source tree or an unpacked wheel); `facts` answers what engine code asks its
    surroundings; `outside(facts, import_module, home)` gives the modules that replace others (see fakes.outside);
    `known` is a folder of our own accounts of what engines ask other packages, laid out as those packages are; `real`
    names the modules engine code gets as they are. `transform(statement, file name)` may rewrite each top-level
    statement before it is compiled; the names it introduces are given in `helpers` and visible to all engine code.

    `registers` matches the text of definitions that register themselves when their file is imported; they then run
    with the first name that is wanted of it. `stand_in(name)` makes the module for a package that is there and known
    only by name. Loaders of one root with the same `transform` and overrides may share a `shelf`.
    """

    module_class: type[LazyModule] = LazyModule  # what a source file becomes

    def __init__(
        self,
        root: str | Path,
        *,
        package: str,
        facts: Facts,
        outside: Outside = fakes.outside,
        known: Path | None = None,
        real: frozenset[str] = fakes.REAL,
        transform: guard.Transform | None = None,
        helpers: Mapping[str, Any] | None = None,
        registers: re.Pattern[str] | None = None,
        stand_in: Callable[[str], types.ModuleType] = fakes.StubModule,
        shelf: Shelf | None = None,
    ) -> None:
        self.root, self.package = Path(root), package
        self.facts, self.situation = facts, facts.situation
        stubs.name_sources(package)
        self.modules: dict[str, types.ModuleType] = {}
        self._real, self._known_folder = real, known
        self._known: dict[str, LazyModule] = {}
        self._registers, self._stand_in = registers, stand_in
        self._shelf = Shelf() if shelf is None else shelf
        self._imported: set[str] = set()  # packages whose own registering files were seen to
        self.overrides: dict[str, dict[str, Any]] = {}  # module -> names fixed beforehand
        self._outside = outside(self.facts, self.import_module, self.modules.get)
        self._transform = transform
        self._builtins = guard.checked_builtins()
        self._builtins["__import__"] = self._import
        self._builtins.update(helpers or {})

    def transform(self, statement: ast.stmt, filename: str) -> ast.stmt:
        """The caller's rewriting first, then ours on what is left of the identity checks."""
        if self._transform is not None:
            statement = ast.fix_missing_locations(self._transform(statement, filename))
        return guard.rewrite(statement, filename)

    def import_module(self, name: str, package: str | None = None) -> Any:
        """importlib.import_module for engine code (and for us)."""
        if name.startswith("."):
            name = self._absolute(name.lstrip("."), package or "", len(name) - len(name.lstrip(".")))
        return self._module(name)

    def source(self, name: str) -> LazyModule:
        """One of the engine's own modules."""
        module = self._module(name) if self.has_source(name) else None
        if not isinstance(module, LazyModule):
            raise ImportError(f"{name} is not among the source files")
        return module

    def has_source(self, name: str) -> bool:
        return self._file(name) is not None

    def _file(self, name: str, root: Path | None = None) -> Path | None:
        key, known = (root or self.root, name), self._shelf.files
        if key not in known:
            known[key] = self._find(*key)
        return known[key]

    @staticmethod
    def _find(root: Path, name: str) -> Path | None:
        base = root.joinpath(*name.split("."))
        for file in (base / "__init__.py", base.with_name(base.name + ".py")):
            if file.is_file():
                return file
        return None

    def _module(self, name: str) -> Any:
        found = self.modules.get(name)
        if found is not None:
            return self._importable(found)
        if name in self._outside:
            module: Any = self._outside[name]
            if name.partition(".")[0] in self.facts.env and not self.facts.present(name):
                raise stubs.as_real(ModuleNotFoundError(f"No module named {name.partition('.')[0]!r}"))
            return module
        elif name.partition(".")[0] == self.package:
            return self._importable(self._own(name))
        elif name in self._real:
            module = importlib.import_module(name)
        elif name.partition(".")[0] in sys.stdlib_module_names:
            module = fakes.StubModule(name)
        else:
            if not self.facts.present(name):
                raise stubs.as_real(ModuleNotFoundError(f"No module named {name.partition('.')[0]!r}"))
            top = name.partition(".")[0]
            folder = self._known_folder
            file = self._file(name, folder) if folder is not None else None
            if file is not None and folder is not None:
                if name not in self._known:
                    self._known[name] = self._lazy(name, file, folder)
                return self._known[name]
            module = self._stand_in(name)
            if name != top:
                parent, _, leaf = name.rpartition(".")
                existing = vars(self._module(parent)).get(leaf)
                if isinstance(existing, types.ModuleType):
                    module = existing
                else:
                    setattr(self._module(parent), leaf, module)
            if top in self.facts.env:
                return module  # its presence is a circumstance: ask again every time
        self.modules[name] = module
        return module

    def _importable(self, module: Any) -> Any:
        """The module, unless a package that it imports on top is absent (or unknown: then it leaks)."""
        if isinstance(module, LazyModule):
            for package in module.attnfit_needs:
                if not self.facts.present(package):
                    module.attnfit_lacks(package)
        return module

    def _own(self, name: str) -> Any:
        file = self._file(name)
        if file is None:
            if (self.root / Path(*name.split("."))).is_dir():
                module: Any = Namespace(name, self._submodule)
                self.modules[name] = module
                return module
            if not self.facts.present(name):
                raise stubs.as_real(ModuleNotFoundError(f"No module named {name!r}"))
            return fakes.StubModule(name)
        module = self._lazy(name, file, self.root)
        self.modules[name] = module
        return module

    def _lazy(self, name: str, file: Path, root: Path) -> LazyModule:
        relative = file.relative_to(root).as_posix()
        try:
            module = self.module_class(
                name,
                file,
                relative,
                self.situation,
                self._builtins,
                self.transform,
                lambda leaf: self._submodule(name, leaf),
                self.overrides.get(name, {}),
                self._shelf.texts,
                self._registers,
            )
            settled = self.facts.always | sys.stdlib_module_names | {"", self.package, HELPERS}
            module.attnfit_needs = {need: line for need, line in module.attnfit_needs.items() if need not in settled}
            return module
        except (SyntaxError, ValueError, OSError) as error:  # newer syntax than this Python's, or no text at all
            stubs.leak(f"{relative} cannot be read: {type(error).__name__}: {error}")

    def _submodule(self, package: str, leaf: str) -> Any:
        name = f"{package}.{leaf}"
        fact = self.facts.fact_of.get(name, name)
        if self._file(name) is not None or (self.root / Path(*name.split("."))).is_dir():
            return self._module(name)
        return self._module(name) if fact in self.facts.env and self.facts.present(name) else MISSING

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Any = None,
        fromlist: Any = (),
        level: int = 0,
    ) -> Any:
        if level:
            name = self._absolute(name, str((globals or {}).get("__package__", "")), level)
        module = self._module(name)
        if self._registers is not None and name not in self._imported:
            self._imported.add(name)
            self._let_register(name)
        if fromlist:
            return module
        return self._module(name.partition(".")[0])

    def _let_register(self, package: str) -> None:
        """The files of its own that a package imports, where something in them registers itself."""
        module = self.modules.get(package)
        if not isinstance(module, LazyModule) or "__path__" not in vars(module):
            return
        known = self._shelf.registering
        if package not in known:
            known[package] = list(self._registering(package, module.attnfit_imports))
        for name in known[package]:
            self.source(name).register()

    def _registering(self, package: str, imports: list[tuple[int, str, str]]) -> Iterator[str]:
        for level, origin, leaf in imports:
            if level:
                name = f"{package}.{origin or leaf}" if level == 1 else ""
            else:
                name = f"{package}.{leaf}" if origin == package else origin
            file = self._file(name) if name.startswith(f"{package}.") else None
            if file is not None and self._registers is not None and self._registers.search(file.read_text("utf-8")):
                yield name

    @staticmethod
    def _absolute(name: str, package: str, level: int) -> str:
        parts = package.split(".")
        base = ".".join(parts[: len(parts) - (level - 1)])
        return f"{base}.{name}" if name else base
