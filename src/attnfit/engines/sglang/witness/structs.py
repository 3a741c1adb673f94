"""msgspec's Struct as far as argument records use it: fields, defaults, construction. No validation, no encoding.

SGLang keeps its arguments in Structs from 0.5.13 on, and the witness has no packages. Standard library only.
"""

from __future__ import annotations

import copy
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from attnfit.witness.fakes import StubModule
from attnfit.witness.stubs import as_real


class Sentinel:
    """NODEFAULT and UNSET."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        return self.name  # there is one of each, also among copies


class UnsetType(Sentinel):
    def __bool__(self) -> bool:
        return False


NODEFAULT, UNSET = Sentinel("NODEFAULT"), UnsetType("UNSET")


class Field:
    """msgspec.field(...)"""

    def __init__(self, *, default: Any = NODEFAULT, default_factory: Any = NODEFAULT, name: str | None = None) -> None:
        self.default, self.default_factory, self.name = default, default_factory, name


class FieldInfo:
    """One field, as msgspec.structs.fields tells it."""

    def __init__(self, name: str, kind: Any, default: Any, default_factory: Any) -> None:
        self.name = self.encode_name = name
        self.type, self.default, self.default_factory = kind, default, default_factory

    @property
    def required(self) -> bool:
        return self.default is NODEFAULT and self.default_factory is NODEFAULT


def _own_fields(space: dict[str, Any]) -> dict[str, FieldInfo]:
    """The annotated names of a class body; their defaults are taken out of it."""
    fields = {}
    for name, kind in space.get("__annotations__", {}).items():
        if "ClassVar" in kind if isinstance(kind, str) else typing.get_origin(kind) is typing.ClassVar:
            continue
        value = space.pop(name, NODEFAULT)
        field = value if isinstance(value, Field) else Field(default=value)
        if isinstance(field.default, list | dict | set):
            field = Field(default_factory=lambda shared=field.default: copy.copy(shared))
        fields[name] = FieldInfo(name, kind, field.default, field.default_factory)
    return fields


class StructMeta(type):
    """Collects the fields of a Struct and of those it derives from; those that only go by name come last."""

    attnfit_fields: dict[str, FieldInfo]
    attnfit_positional: int
    attnfit_frozen: bool
    attnfit_open: bool  # further attributes may be set

    def __new__(
        meta,
        name: str,
        bases: tuple[type, ...],
        space: dict[str, Any],
        /,
        *,
        frozen: bool = False,
        kw_only: bool = False,
        **options: Any,
    ) -> StructMeta:
        body = dict(space)
        own = _own_fields(body)
        cls = super().__new__(meta, name, bases, body)
        inherited = [base for base in reversed(cls.__mro__[1:]) if isinstance(base, StructMeta)]
        placed: dict[str, FieldInfo] = {}
        named: dict[str, FieldInfo] = {}
        for base in inherited:
            for number, (field, info) in enumerate(base.attnfit_fields.items()):
                _put(field, info, *((placed, named) if number < base.attnfit_positional else (named, placed)))
        for field, info in own.items():
            _put(field, info, *((named, placed) if kw_only else (placed, named)))
        cls.attnfit_fields, cls.attnfit_positional = {**placed, **named}, len(placed)
        cls.attnfit_frozen = frozen or any(base.attnfit_frozen for base in inherited)
        others = (base for base in cls.__mro__[1:] if not isinstance(base, StructMeta) and base is not object)
        cls.attnfit_open = bool(options.get("dict")) or any("__dict__" in vars(base) for base in others)
        cls.attnfit_open |= any(base.attnfit_open for base in inherited)
        type.__setattr__(cls, "__struct_fields__", tuple(cls.attnfit_fields))
        type.__setattr__(cls, "__match_args__", tuple(placed))
        return cls

    def __init__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any], /, **options: Any) -> None:
        super().__init__(name, bases, space)


def _put(name: str, info: FieldInfo, here: dict[str, FieldInfo], not_there: dict[str, FieldInfo]) -> None:
    not_there.pop(name, None)
    here[name] = info


class Struct(metaclass=StructMeta):
    """msgspec.Struct"""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        fields = type(self).attnfit_fields
        if len(args) > type(self).attnfit_positional:
            raise as_real(TypeError("Extra positional arguments provided"))
        given = dict(zip(fields, args, strict=False))
        for name, value in kwargs.items():
            if name not in fields:
                raise as_real(TypeError(f"Unexpected keyword argument '{name}'"))
            if name in given:
                raise as_real(TypeError(f"Argument '{name}' given by name and position"))
            given[name] = value
        own = vars(self)
        for name, field in fields.items():
            if name in given:
                own[name] = given[name]
            elif field.default is not NODEFAULT:
                own[name] = field.default
            elif field.default_factory is not NODEFAULT:
                own[name] = field.default_factory()
            else:
                raise as_real(TypeError(f"Missing required argument '{name}'"))
        finish = getattr(self, "__post_init__", None)
        if finish is not None:
            finish()

    def __setattr__(self, name: str, value: Any) -> None:
        if type(self).attnfit_frozen:
            raise as_real(AttributeError(f"immutable type: '{type(self).__name__}'"))
        cls = type(self)
        if not (cls.attnfit_open or name in cls.attnfit_fields or hasattr(getattr(cls, name, None), "__set__")):
            raise as_real(AttributeError(f"'{cls.__name__}' object has no attribute '{name}'"))
        object.__setattr__(self, name, value)

    def __copy__(self) -> Any:
        made = type(self).__new__(type(self))
        vars(made).update(vars(self))
        return made

    def __reduce__(self) -> Any:
        return _made, (type(self), asdict(self))  # a deep copy is constructed anew

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return astuple(self) == astuple(other)

    def __hash__(self) -> int:
        if type(self).attnfit_frozen:
            return hash(astuple(self))
        raise as_real(TypeError(f"unhashable type: '{type(self).__name__}'"))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in asdict(self).items())})"


def fields(target: Any) -> tuple[FieldInfo, ...]:
    """msgspec.structs.fields"""
    cls: Any = target if isinstance(target, type) else type(target)
    return tuple(cls.attnfit_fields.values())


def asdict(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in type(struct).attnfit_fields}


def astuple(struct: Any) -> tuple[Any, ...]:
    return tuple(asdict(struct).values())


def _made(cls: StructMeta, given: dict[str, Any]) -> Any:
    return cls(**given)


def replace(struct: Any, **changes: Any) -> Any:
    for name in changes:
        if name not in type(struct).attnfit_fields:
            raise as_real(TypeError(f"`{type(struct).__name__}` has no field '{name}'"))
    return type(struct)(**{**asdict(struct), **changes})


def force_setattr(struct: Any, name: str, value: Any) -> None:
    object.__setattr__(struct, name, value)


def defstruct(
    name: str,
    fields: Sequence[Any],
    *,
    bases: tuple[type, ...] | None = None,
    namespace: dict[str, Any] | None = None,
    module: str | None = None,
    **options: Any,
) -> StructMeta:
    """msgspec.defstruct: `fields` are names, (name, type) or (name, type, default)."""
    space = dict(namespace or {})
    kinds: dict[str, Any] = {}
    for field in fields:
        if isinstance(field, str):
            kinds[field] = Any
            continue
        kinds[field[0]] = field[1]
        if len(field) > 2:
            space[field[0]] = field[2]
    space["__annotations__"] = kinds
    if module is not None:
        space["__module__"] = module
    return StructMeta(name, bases or (Struct,), space, **options)


def modules() -> dict[str, types.ModuleType]:
    """msgspec and msgspec.structs, by name."""
    functions: dict[str, Callable[..., Any]] = {
        "fields": fields,
        "replace": replace,
        "asdict": asdict,
        "astuple": astuple,
        "force_setattr": force_setattr,
    }
    structs = StubModule("msgspec.structs", FieldInfo=FieldInfo, **functions)
    top = StubModule(
        "msgspec",
        Struct=Struct,
        StructMeta=StructMeta,
        NODEFAULT=NODEFAULT,
        UNSET=UNSET,
        UnsetType=UnsetType,
        ValidationError=type("ValidationError", (ValueError,), {}),
        Meta=lambda **options: None,
        field=Field,
        defstruct=defstruct,
        structs=structs,
    )
    return {"msgspec": top, "msgspec.structs": structs}
