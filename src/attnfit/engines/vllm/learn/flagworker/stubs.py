"""What stands for everything that is not loaded: torch, pydantic, transformers, and most of the engine.

A stub gives further stubs, and refuses to be asked for a value (`StubLeak`): what depends on one is unknown.
Standard library only: this runs inside the isolated child.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from typing import Any


class StubLeak(Exception):
    """Someone asked a stub for a value."""


class Stub:
    """Stands for what is not loaded. Attributes, calls and subscripts give further stubs; values are refused."""

    def __init__(self, name: str, known: bool = False) -> None:
        # known: a class that is neither an enum, a dataclass nor a dict, which is all that a flag's type asks of it
        known = known or name in ("torch.dtype", "torch.device")
        self.__dict__.update(
            _name=name, _known=known, __module__="stub", __qualname__=name, __name__=name.rpartition(".")[2]
        )

    def __repr__(self) -> str:
        return f"<stub {self._name}>"

    def __getattr__(self, attr: str) -> Any:
        if attr.startswith("__") and attr.endswith("__"):
            raise AttributeError(attr)
        return Stub(f"{self._name}.{attr}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type)):
            return args[0]  # used as a decorator
        return Stub(f"{self._name}()")

    def __getitem__(self, item: Any) -> Any:
        return Stub(f"{self._name}[]")

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return ()

    def __or__(self, other: Any) -> Any:
        return typing.Union[self, other]  # noqa: UP007

    def __ror__(self, other: Any) -> Any:
        return typing.Union[other, self]  # noqa: UP007

    def __hash__(self) -> int:
        return hash(self._name)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Stub):
            return bool(self._name == other._name)
        if isinstance(other, (type, typing.TypeVar, typing.ForwardRef)) or type(other).__module__ == "typing":
            return False  # typing compares type hints
        raise StubLeak(f"{self!r} == {other!r}")

    def _refuse(self, *args: Any) -> Any:
        raise StubLeak(f"{self!r} was asked for a value")

    __bool__ = __iter__ = __len__ = __contains__ = __lt__ = __gt__ = __le__ = __ge__ = _refuse
    __int__ = __float__ = __index__ = __add__ = __radd__ = __sub__ = __mul__ = __truediv__ = _refuse

    def __deepcopy__(self, memo: Any) -> Stub:
        return self


# ---- stand-ins for the few outside names whose meaning the flags depend on -------------------------------------


MISSING = type("Missing", (), {"__repr__": lambda self: "<required>"})()


class FieldInfo:
    """pydantic.fields.FieldInfo as far as `_compute_kwargs` reads it."""

    def __init__(self, default: Any = MISSING, **kw: Any) -> None:
        self.default = default
        self.default_factory = kw.pop("default_factory", None)
        self.init = kw.pop("init", None)
        self.constraints = {k: v for k, v in kw.items() if k in CONSTRAINTS}
        self.metadata: list[Any] = []

    __hash__ = object.__hash__


CONSTRAINTS = ("ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length", "pattern", "strict")


class Mark:
    """A pydantic annotation (`SkipValidation[X]`) kept inside typing.Annotated."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getitem__(self, item: Any) -> Any:
        return typing.Annotated[item, self]

    def __call__(self, *args: Any, **kw: Any) -> Any:
        return Stub(self.name)


def _recording(kind: str) -> Any:
    def factory(*names: Any, mode: str = "after", **kw: Any) -> Any:
        def decorate(func: Any) -> Any:
            raw = getattr(func, "__func__", func)
            raw.__attnfit_check__ = (kind, mode, [n for n in names if isinstance(n, str)])
            return func

        return decorate

    return factory


def _dataclass(cls: Any = None, *, config: Any = None, **kw: Any) -> Any:
    """pydantic.dataclasses.dataclass without validation and without running `__post_init__`."""

    def decorate(cls: Any) -> Any:
        infos = dict(getattr(cls, "__attnfit_infos__", {}))
        for name in vars(cls).get("__annotations__", {}):
            infos.pop(name, None)
            info = vars(cls).get(name)
            if isinstance(info, FieldInfo):
                infos[name] = info
                if info.default_factory is not None:
                    setattr(
                        cls, name, dataclasses.field(default_factory=info.default_factory, init=info.init is not False)
                    )
                elif info.default is not MISSING:
                    setattr(cls, name, _default_field(info))
        post = vars(cls).get("__post_init__")
        if isinstance(post, types.FunctionType):
            cls.__post_init__ = _nothing(post)
        made = dataclasses.dataclass(cls, **kw)
        made.__attnfit_infos__ = infos
        made.__attnfit_config__ = dict(config) if isinstance(config, dict) else {}
        return made

    return decorate if cls is None else decorate(cls)


def _default_field(info: FieldInfo) -> Any:
    init = info.init is not False
    if type(info.default).__hash__ is None:  # mutable: dataclasses wants a factory
        return dataclasses.field(default_factory=lambda: info.default, init=init)
    return dataclasses.field(default=info.default, init=init)


def _nothing(post: Any) -> Any:
    def skipped(self: Any, *args: Any) -> None:
        return None

    skipped.__wrapped__ = post  # type: ignore[attr-defined]
    return skipped


class Platform(Stub):
    """`current_platform` of a CUDA build: the parsers we describe are those of the CUDA wheels."""

    device_type = "cuda"
    device_name = "cuda"

    def __getattr__(self, attr: str) -> Any:
        if attr.startswith("is_"):
            return lambda *a, **k: attr in ("is_cuda", "is_cuda_alike")
        if attr in ("pre_register_and_update", "import_kernels"):
            return lambda *a, **k: None
        return super().__getattr__(attr)


class NullContext:
    def __init__(self, *a: Any, **k: Any) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *a: Any) -> None: ...


def _module(name: str, **names: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = []
    module.__dict__.update(names)
    return module


def stub_module(name: str) -> types.ModuleType:
    module = _module(name)
    module.__getattr__ = lambda attr: stub_attr(name, attr)  # type: ignore[method-assign]
    return module


def stub_attr(module: str, attr: str) -> Any:
    if attr == "__version__":
        return "0"
    if attr.startswith("__") and attr.endswith("__"):
        raise AttributeError(attr)
    return Stub(f"{module}.{attr}")


def outside_modules() -> dict[str, types.ModuleType]:
    pyd: dict[str, Any] = {
        "Field": lambda default=MISSING, **kw: FieldInfo(default, **kw),
        "FieldInfo": FieldInfo,
        "ConfigDict": dict,
        "field_validator": _recording("field"),
        "model_validator": _recording("model"),
        "dataclass": _dataclass,
        "SkipValidation": Mark("SkipValidation"),
        "InstanceOf": Mark("InstanceOf"),
        "ValidationError": type("ValidationError", (ValueError,), {}),
    }
    ext = stub_module("typing_extensions")
    ext.__dict__.update({n: getattr(typing, n) for n in typing.__all__})
    ext.__dict__.setdefault("override", lambda f: f)
    out = {name: stub_module(name) for name in ("pydantic", "pydantic.fields", "pydantic.dataclasses")}
    for module in out.values():
        module.__dict__.update(pyd)
    out["pydantic"].__dict__["dataclasses"] = out["pydantic.dataclasses"]
    out["pydantic"].__dict__["fields"] = out["pydantic.fields"]
    out["typing_extensions"] = ext
    out["regex"] = re  # the same language for the patterns the flags use
    return out
