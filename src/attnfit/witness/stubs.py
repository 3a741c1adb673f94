"""Stand-ins for what is not in a release's source files: torch, compiled kernels, other packages.

A stub may be passed around while modules load (decorators, base classes, default arguments). It must never decide
anything: a truth test, comparison, membership test, iteration, conversion or (during evaluation) a call raises
`StubLeak`, and the answer becomes unknown. Standard library only: this runs inside the isolated child process.
"""

from __future__ import annotations

import sys
from typing import Any, NoReturn, Protocol


class StubLeak(BaseException):
    """A value we do not have was about to decide an answer. Not an Exception, so `except Exception` cannot eat it."""


class State:
    """Whether module-level statements are being executed (stubs may be called) and what leaked so far."""

    def __init__(self) -> None:
        self.loading = 0
        self.leaks: list[str] = []
        self.sources: tuple[str, ...] = ()  # how file names of compiled engine code begin, e.g. "package/"


STATE = State()


def name_sources(package: str) -> None:
    """Files of this package are engine code. Their names are relative, so that they name the release's own file."""
    if f"{package}/" not in STATE.sources:
        STATE.sources += (f"{package}/",)


def location() -> str:
    """`PACKAGE/...py:LINE` of the innermost engine frame, or ''."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.startswith(STATE.sources):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def leak(what: str) -> NoReturn:
    """Record and raise `StubLeak` naming the value and the engine line that wanted it."""
    where = location()
    text = f"{what} ({where})" if where else what
    STATE.leaks.append(text)
    raise StubLeak(text)


def as_real(error: Exception) -> Exception:
    """The error, marked as one that the real package raises as well; any other that comes from our code is a fault."""
    vars(error)["attnfit_as_real"] = True
    return error


def path_of(stub: object) -> str:
    """The dotted name a stub stands for, e.g. "torch.cuda.Stream()"."""
    return str(object.__getattribute__(stub, "_stub_path"))


class Stub:
    """A value known only by name."""

    def __init__(self, path: str) -> None:
        object.__setattr__(self, "_stub_path", path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        child = Stub(f"{path_of(self)}.{name}")
        object.__setattr__(self, name, child)
        return child

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if STATE.loading:
            return Stub(f"{path_of(self)}()")
        leak(f"{path_of(self)} was called")

    def __getitem__(self, key: Any) -> Any:
        if STATE.loading:
            return Stub(f"{path_of(self)}[]")
        leak(f"{path_of(self)} was subscripted")

    def __setitem__(self, key: Any, value: Any) -> None:
        if not STATE.loading:
            leak(f"{path_of(self)} was assigned to")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (stub_class(path_of(self)),)

    def __hash__(self) -> int:
        if STATE.loading:
            return id(self)
        leak(f"{path_of(self)} was used as a key")

    def __instancecheck__(self, instance: Any) -> bool:
        leak(f"isinstance(..., {path_of(self)})")

    def __subclasscheck__(self, subclass: Any) -> bool:
        leak(f"issubclass(..., {path_of(self)})")

    def __repr__(self) -> str:
        return f"<stub {path_of(self)}>"


def _refuse(verb: str) -> Any:
    def method(self: Stub, *args: Any) -> Any:
        leak(f"{path_of(self)} was {verb}")

    return method


def _symbolic(verb: str) -> Any:
    def method(self: Stub, *args: Any) -> Any:
        if STATE.loading:
            return Stub(f"({path_of(self)} {verb} ...)")
        leak(f"{path_of(self)} was {verb}")

    return method


for _name, _verb in {
    "bool": "used as a truth value",
    "len": "measured",
    "iter": "iterated",
    "contains": "searched",
    "int": "converted to int",
    "float": "converted to float",
    "index": "used as an index",
    "str": "printed",
    "format": "printed",
    "fspath": "used as a path",
    "enter": "entered",
    "exit": "left",
    "next": "iterated",
    "eq": "compared",
    "ne": "compared",
    "lt": "compared",
    "le": "compared",
    "gt": "compared",
    "ge": "compared",
}.items():
    setattr(Stub, f"__{_name}__", _refuse(_verb))
_ARITHMETIC = "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul"
for _name in _ARITHMETIC.split():
    setattr(Stub, f"__{_name}__", _symbolic("calculated with"))
    setattr(Stub, f"__r{_name}__", _symbolic("calculated with"))
for _name in ("neg", "pos", "invert", "abs", "round", "trunc", "floor", "ceil", "divmod", "rdivmod", "complex"):
    setattr(Stub, f"__{_name}__", _symbolic("calculated with"))


class StubMeta(type(Protocol)):  # type: ignore[misc]  # so that a stub base mixes with ABC, Protocol and Generic
    """Metaclass of stub base classes: an attribute that no real class defines is itself a stub."""

    def __getattr__(cls, name: str) -> Any:
        return _unknown_attribute(cls._stub_base, name)


def stub_class(path: str) -> type:
    """A class standing for an unknown base class."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if not STATE.loading:
            leak(f"an instance with the unknown base class {path} was made")

    space = {"__init__": init, "_stub_base": path, "__init_subclass__": _ignore_keywords}
    return StubMeta(path, (), {**space, "__getattr__": lambda self, name: _unknown_attribute(path, name)})


_INTERNAL = ("_is_protocol", "_is_runtime_protocol", "_abc_impl", "_abc_registry", "_stub_base", "_fields")


def _unknown_attribute(path: str, name: str) -> Any:
    """What no real class of the engine defines: the unknown base may."""
    if name in _INTERNAL or (name.startswith("__") and name.endswith("__")):
        raise AttributeError(name)
    return Stub(f"{path}.{name}")


@classmethod  # type: ignore[misc]
def _ignore_keywords(cls: type, **kwargs: Any) -> None:
    return None


class Existing(Stub):
    """A function or class that is known to be there, and nothing more."""

    def __bool__(self) -> bool:
        return True


def is_stub(value: object) -> bool:
    """True for a stub value (not for a class that merely has a stub base)."""
    return type(value) is Stub


def seen(value: Any) -> Any:
    """Identity checks go through here: `x is None` on a stub cannot be caught otherwise."""
    if type(value) is Stub:
        leak(f"{path_of(value)} was checked for identity")
    return value
