"""What engine code gets for the modules that are not its own: the standard library, a logger, other packages.

Parts of the standard library that would look at this machine are replaced by ones that answer from the question's
explicit environment facts, or leak. Standard library only.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import os
import posixpath
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from . import stubs
from .facts import Facts
from .stubs import Stub

_REAL = """
    __future__ abc ast base64 bisect builtins collections collections.abc contextlib contextvars copy
    datetime decimal enum fractions hashlib heapq inspect itertools json keyword math numbers operator pprint queue
    random re string struct textwrap threading time traceback types typing uuid warnings weakref dataclasses
"""
REAL = frozenset(_REAL.split())  # pure: the same everywhere


class StubModule(types.ModuleType):
    """A module known only by name: every attribute is a stub."""

    def __init__(self, name: str, /, **known: Any) -> None:
        super().__init__(name)
        vars(self).update(known)
        vars(self)["__path__"] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        value = Stub(f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class KnownModule(StubModule):
    """A module some of whose names are known to exist, or not, by an environment fact."""

    def __init__(self, name: str, facts: Facts, exists: Mapping[str, str]) -> None:
        super().__init__(name)
        vars(self)["_facts"], vars(self)["_exists"] = facts, exists

    def __getattr__(self, name: str) -> Any:
        if name in self._exists:
            if not self._facts.fact(self._exists[name]):
                raise AttributeError(name)
            return stubs.Existing(f"{self.__name__}.{name}")
        return super().__getattr__(name)


class Logger:
    """Swallows every message unformatted; a stub among the arguments does no harm."""

    def isEnabledFor(self, level: Any) -> bool:
        return False

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def functools_module() -> types.ModuleType:
    """functools without memory: a cached verdict must not outlive its question."""
    module = types.ModuleType("functools")
    vars(module).update({name: getattr(functools, name) for name in dir(functools) if not name.startswith("__")})

    def forgetful(function: Callable[..., Any]) -> Callable[..., Any]:
        if stubs.is_stub(function):
            return function

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        vars(call).update(cache_clear=lambda: None)
        return call

    def lru_cache(maxsize: Any = 128, typed: bool = False) -> Callable[..., Any]:
        return forgetful(maxsize) if callable(maxsize) else forgetful

    vars(module).update(cache=forgetful, lru_cache=lru_cache)
    return module


def os_module(facts: Facts) -> types.ModuleType:
    """os with the question's environment variables and no file system but the engine's own files."""
    path = StubModule("os.path")
    for name in ("join", "dirname", "basename", "normpath", "split", "splitext", "isabs", "sep", "expanduser"):
        setattr(path, name, getattr(posixpath, name))
    path.abspath = path.realpath = posixpath.normpath  # type: ignore[attr-defined]
    for name in ("exists", "isfile", "isdir"):
        setattr(path, name, facts.file_exists)
    path.islink = lambda name: False  # type: ignore[attr-defined]
    module = StubModule(
        "os",
        path=path,
        environ=Environ(facts),
        getenv=lambda name, default=None: Environ(facts).get(name, default),
        sep="/",
        pathsep=":",
        linesep="\n",
        PathLike=os.PathLike,
        fspath=os.fspath,
        name="posix",
    )
    return module


class Environ:
    """os.environ as the question states it. Anything but reading one variable leaks."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def get(self, name: str, default: Any = None) -> Any:
        return self._facts.variable(name, default)

    def __getitem__(self, name: str) -> Any:
        value = self._facts.variable(name, None)
        if value is None:
            raise KeyError(name)
        return value

    def __contains__(self, name: str) -> bool:
        return self._facts.variable(name, None) is not None

    def __setitem__(self, name: str, value: Any) -> None:
        pass  # set while loading (thread counts, compile caches); never read back

    def setdefault(self, name: str, value: Any) -> Any:
        return self.get(name, value)

    def __getattr__(self, name: str) -> Any:
        stubs.leak(f"os.environ.{name}")


def importlib_module(facts: Facts, import_module: Callable[..., Any]) -> types.ModuleType:
    """importlib that finds the engine's own modules and knows packages by the environment facts."""
    util = StubModule("importlib.util", find_spec=lambda name, package=None: facts.spec(name))
    metadata = StubModule("importlib.metadata", PackageNotFoundError=type("PackageNotFoundError", (ImportError,), {}))
    machinery = StubModule("importlib.machinery", ModuleSpec=importlib.machinery.ModuleSpec)
    return StubModule("importlib", util=util, metadata=metadata, machinery=machinery, import_module=import_module)


def dataclasses_module(home: Callable[[str], types.ModuleType | None]) -> types.ModuleType:
    """dataclasses; it looks the class's module up in sys.modules, where engine modules are not."""
    import dataclasses

    module = types.ModuleType("dataclasses")
    vars(module).update({name: getattr(dataclasses, name) for name in dir(dataclasses) if not name.startswith("__")})

    def dataclass(cls: Any = None, /, **options: Any) -> Any:
        if cls is None:
            return lambda decorated: dataclass(decorated, **options)
        owner = home(cls.__module__)
        if owner is None:
            return dataclasses.dataclass(cls, **options)
        for name in ("ClassVar", "InitVar", "KW_ONLY", "typing", "dataclasses"):
            getattr(owner, name, None)  # string annotations are looked up in the module's dict
        before = sys.modules.get(cls.__module__)
        sys.modules[cls.__module__] = owner
        try:
            return dataclasses.dataclass(cls, **options)
        finally:
            if before is None:
                del sys.modules[cls.__module__]
            else:
                sys.modules[cls.__module__] = before

    vars(module)["dataclass"] = dataclass
    return module


def typing_extensions_module() -> types.ModuleType:
    import typing

    names = {name: getattr(typing, name) for name in dir(typing) if not name.startswith("__")}
    names.setdefault("deprecated", lambda *args, **kwargs: lambda decorated: decorated)
    return StubModule("typing_extensions", **names)


def outside(facts: Facts, import_module: Callable[..., Any], home: Callable[[str], Any]) -> dict[str, types.ModuleType]:
    """Module name -> replacement, for the part of the standard library that would look at this machine.

    `facts` answers what engine code asks, `import_module` and `home` are the loader's: a module by name, and the engine
    module a class was defined in. An engine adds what it asks of other packages.
    """
    shutil = StubModule("shutil", which=facts.which)
    system = StubModule(
        "sys",
        version_info=sys.version_info,
        platform="linux",
        byteorder=sys.byteorder,
        maxsize=sys.maxsize,
        version=sys.version,
        modules={},
    )
    machine = StubModule("platform", machine=lambda: facts.machine, system=lambda: "Linux")
    modules = [
        functools_module(),
        os_module(facts),
        importlib_module(facts, import_module),
        shutil,
        system,
        machine,
        dataclasses_module(home),
        typing_extensions_module(),
    ]
    modules.append(types.ModuleType("attnfit_facts"))
    vars(modules[-1]).update(fact=facts.fact, capability=lambda: facts.capability)
    table = {module.__name__: module for module in modules}
    table["os.path"] = table["os"].path
    for name in ("util", "metadata", "machinery"):
        table[f"importlib.{name}"] = getattr(table["importlib"], name)
    return table
