"""Other people's Triton kernels, loaded from their source files under the real torch and Triton.

A file's statements run one by one and only as far as they are wanted (`attnfit.witness`), so that what has no say in a
launch needs no installation. A kernel brings everything that its text names, because Triton looks it up by itself. A
value that we do not have and that was about to decide something raises `StubLeak`: the answer is then unknown.
"""

from __future__ import annotations

import ast
import linecache
import logging
import os
import resource
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnfit.kernels.fit.records import Case, Unknown
from attnfit.witness import fakes, isolate, lazy, stubs
from attnfit.witness.facts import Facts
from attnfit.witness.lazy import LazyModule, Situation
from attnfit.witness.loader import Loader

REAL = ("torch", "triton", "numpy", "packaging")  # packages that engine code gets as they are
JIT = ("jit", "autotune", "heuristics")  # decorators of Triton and Gluon


class OneAsk(Situation):
    """A loader that is used for one ask forgets nothing, so nothing needs to be noted."""

    def read(self, facet: str) -> None:
        """Nothing to note."""


class _Real(frozenset[str]):
    """The modules that are no stand-ins: the pure part of the standard library, and all of the packages above."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and name.partition(".")[0] in REAL)


def _is_kernel(tree: ast.stmt) -> bool:
    """Whether Triton will read the text of what the statement defines."""
    if isinstance(tree, ast.FunctionDef):
        return any(name in ast.unparse(decorator) for decorator in tree.decorator_list for name in JIT)
    inner = (getattr(tree, part, ()) for part in ("body", "orelse"))  # `if available: @triton.jit def ...`
    return isinstance(tree, ast.If) and any(_is_kernel(each) for part in inner for each in part)


class KernelModule(LazyModule):
    """A source file, some of whose functions are kernels."""

    def demand(self, name: str) -> Any:
        value = super().demand(name)
        whole: set[str] = vars(self).setdefault("__attnfit_whole__", set())
        if name not in whole and self.defines(name):
            whole.add(name)
            for tree in filter(_is_kernel, self.statements(name)):
                for node in ast.walk(tree):
                    if isinstance(node, ast.Name) and node.id != name and self.defines(node.id):
                        self.demand(node.id)
        return value

    def attnfit_flags(self, tree: ast.stmt) -> int:
        """A kernel's annotations are types that Triton reads: they stay what the file makes them."""
        if not _is_kernel(tree):
            return lazy.FLAGS
        return lazy.FLAGS if self.defines("annotations") else 0  # from __future__ import annotations


class KernelLoader(Loader):
    """The module table of one release whose kernels are to be launched under a recorder, for one ask.

    `root` holds `package`; `facts` states the circumstances (capability, environment facts, variables) and was made
    with a `OneAsk`; `given` are modules of ours that replace others. Names that are fixed beforehand go into
    `overrides` (module -> name -> value).
    """

    module_class = KernelModule

    def __init__(
        self,
        root: str | Path,
        *,
        package: str,
        facts: Facts,
        given: Mapping[str, types.ModuleType] | None = None,
        stand_in: Callable[[str], types.ModuleType] = fakes.StubModule,
    ) -> None:
        def outside(facts: Facts, import_module: Callable[..., Any], home: Callable[[str], Any]) -> Any:
            quiet = fakes.StubModule("logging", getLogger=lambda *args: fakes.Logger(), Logger=logging.Logger)
            return {**fakes.outside(facts, import_module, home), "logging": quiet, **(given or {})}

        super().__init__(root, package=package, facts=facts, outside=outside, real=_Real(fakes.REAL), stand_in=stand_in)

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Any = None,
        fromlist: Any = (),
        level: int = 0,
    ) -> Any:
        if not level and name.partition(".")[0] in REAL:
            return __import__(name, None, None, fromlist)
        return super()._import(name, globals, locals, fromlist, level)

    def _lazy(self, name: str, file: Path, root: Path) -> LazyModule:
        """Triton and `inspect` find a function's module in `sys.modules`, and its text under the release's own path."""
        module = super()._lazy(name, file, root)
        text, relative = file.read_text("utf-8"), file.relative_to(root).as_posix()
        linecache.cache[relative] = (len(text), None, text.splitlines(keepends=True), relative)
        sys.modules[name] = module
        return module


def told(name: str, call: Callable[[], Any], note: str = "") -> Case:
    """A case whose call says `Unknown` where a stand-in was about to decide, or an import has nothing to stand in."""

    def asked() -> None:
        with _shut_in():
            call()

    return Case(name, asked, note)


def adapted(cases: Callable[[], Iterator[Case]]) -> Iterator[Case]:
    """The cases of an adapter, which loads somebody else's files to make them. Raises Unknown."""
    made: Iterator[Case] = iter(())
    with _shut_in():
        made = cases()
    while True:
        case: Case | None = None
        with _shut_in():
            case = next(made, None)
        if case is None:
            return
        yield case


#: audit events (sys.audit) that a launch function has no need of; reading files is what torch does all the time
_FORBIDDEN = ("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.",
              "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.chown",
              "os.kill", "os.truncate", "shutil.", "urllib.", "http.", "ftplib.", "smtplib.")  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_state = {"hooked": False, "shut": False}


@contextmanager
def _shut_in() -> Iterator[None]:
    """While somebody else's code runs: no network, no writing, no other process. What it lacks becomes `Unknown`."""
    if not _state["hooked"]:
        tempfile.gettempdir()  # found by writing; torch asks while it loads its own parts
        isolate._namespaces()  # no network for the rest of this process either, where the system allows that
        sys.addaudithook(_audit)
        _state["hooked"] = True
    _state["shut"] = True
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # what C++ writes no audit event tells of
    try:
        yield
    except stubs.StubLeak as leak:
        raise Unknown(str(leak)) from leak
    except isolate.Refused as refused:
        raise Unknown(str(refused)) from refused
    except ImportError as missing:
        raise Unknown(f"the release's files could not be loaded: {missing}") from missing
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        _state["shut"] = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _state["shut"]:
        return
    if event == "open":
        path, mode, flags = (*arguments, None, None, None)[:3]
        writes = isinstance(mode, str) and any(letter in mode for letter in "wax+")
        if (writes or (isinstance(flags, int) and flags & _WRITING)) and path != os.devnull:
            raise isolate.Refused(f"writing {path!r} is refused while an engine's code runs")
    elif event.startswith(_FORBIDDEN):
        raise isolate.Refused(f"{event} is refused while an engine's code runs")
