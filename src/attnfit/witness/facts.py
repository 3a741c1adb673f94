"""The question's circumstances as engine code may read them: capability, environment facts, variables.

Every environment fact has a name users see (`flashinfer`, `fa3`, `artifactory`...). One that engine code reads and
nobody stated leaks: the answer is then unknown, naming the fact. Each engine derives from `Facts` and fills its
tables. Standard library only.
"""

from __future__ import annotations

import importlib.machinery
from collections.abc import Mapping
from typing import Any, ClassVar

from . import stubs
from .lazy import Situation


class Facts:
    """The circumstances of the question being asked. Values are replaceable and may be tracked objects.

    `root` is the directory of the engine's package: nothing outside it exists for engine code.
    """

    package: ClassVar[str] = ""  # the engine's own package: what of it is no source file is told by `wheel`
    fact_of: ClassVar[Mapping[str, str]] = {}  # importable module -> fact, where the names differ
    file_of: ClassVar[Mapping[str, str]] = {}  # end of a file's name -> fact
    programs: ClassVar[tuple[str, ...]] = ("nvcc", "ninja")  # on the PATH or not: facts of the same name
    always: ClassVar[frozenset[str]] = frozenset()  # packages every installation of the engine has
    machine = "x86_64"

    def __init__(self, situation: Situation, root: str) -> None:
        self.situation, self.root = situation, root.rstrip("/")
        self._capability: Any = None
        self.env: Mapping[str, Any] = {}
        self.variables: Mapping[str, Any] = {}

    @property
    def read(self) -> set[str]:
        """What the current question has looked at, e.g. "env.flashinfer"."""
        return self.situation.reads

    def note(self, facet: str) -> None:
        """Engine code looks at this facet of the situation."""
        self.situation.read(facet)

    @property
    def capability(self) -> Any:
        self.note("capability")
        if self._capability is None:
            stubs.leak("the compute capability was asked for outside any question")
        return self._capability

    def fact(self, name: str) -> Any:
        """An environment fact by its name."""
        self.note(f"env.{name}")
        if name not in self.env:
            stubs.leak(f"environment fact {name!r} is not stated")
        return self.env[name]

    def variable(self, name: str, default: Any) -> Any:
        """An environment variable of the server process."""
        self.note(f"variable.{name}")
        value = self.variables.get(name)
        return default if value is None else value

    def which(self, program: str) -> str | None:
        fact = program.rpartition("/")[2]
        if fact not in self.programs:
            stubs.leak(f"shutil.which({program!r})")
        return f"/usr/local/cuda/bin/{program.rpartition('/')[2]}" if self.fact(fact) else None

    def file_exists(self, path: Any) -> Any:
        if not str(path).startswith(self.root + "/"):
            stubs.leak(f"the file system was asked for {path}")
        relative = str(path)[len(self.root) + 1 :]
        for end, name in self.file_of.items():
            if relative.endswith(end):
                return self.fact(name)
        stubs.leak(f"the file system was asked for {relative}")

    def present(self, module: str) -> Any:
        """Whether a module outside the source files can be imported."""
        top = module.partition(".")[0]
        for name in (module, top):
            fact = self.fact_of.get(name, name)
            if fact in self.env:
                return self.fact(fact)
        if top in self.always:
            return True
        self.note(f"env.{self.fact_of.get(module, top)}")
        if top == self.package:
            if self.env.get("wheel"):
                return False  # every file of the wheel is known, and it is not one of them
            stubs.leak(f"whether {module} is in the wheel is not stated")
        stubs.leak(f"environment fact {top!r} is not stated")

    def spec(self, name: str) -> Any:
        """importlib.util.find_spec"""
        if "." in name and not name.startswith(f"{self.package}.") and name not in self.env:
            stubs.leak(f"environment fact {name!r} is not stated")
        return importlib.machinery.ModuleSpec(name, None) if self.present(name) else None
