"""Child process of `attnfit learn`: builds a release's own argument parser from its source files and describes it.

Runs as `python -I -S -B flags_worker.py SOURCE_ROOT`: no site packages, so no torch, pydantic or transformers. The
modules that define the flags (`vllm/config/*`, `arg_utils.py`, `cli_args.py`, `argparse_utils.py`) are executed as
they are; everything else they import is a `Stub`, which refuses to be called for a truth value, compared or
iterated. A stub that reaches a flag makes that flag's type or default *unknown*; it is never guessed.

Standard library only, and nothing of attnfit: it must run alone.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
import types
import typing
from typing import Any

sys.dont_write_bytecode = True


class StubLeak(Exception):
    """Someone asked a stub for a value."""


class Stub:
    """Stands for what is not loaded. Attributes, calls and subscripts give further stubs; values are refused."""

    def __init__(self, name: str, known: bool = False) -> None:
        # known: a class that is neither an enum, a dataclass nor a dict, which is all that a flag's type asks of it
        known = known or name in ("torch.dtype", "torch.device")
        self.__dict__.update(_name=name, _known=known, __module__="stub", __name__=name.rpartition(".")[2], __qualname__=name)

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
                    setattr(cls, name, dataclasses.field(default_factory=info.default_factory,
                                                         init=info.init is not False))
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


def _module(name: str, **names: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = []  # type: ignore[attr-defined]
    module.__dict__.update(names)
    return module


def _stub_module(name: str) -> types.ModuleType:
    module = _module(name)
    module.__getattr__ = lambda attr: _stub_attr(name, attr)  # type: ignore[method-assign]
    return module


def _stub_attr(module: str, attr: str) -> Any:
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
    ext = _stub_module("typing_extensions")
    ext.__dict__.update({n: getattr(typing, n) for n in typing.__all__})
    ext.__dict__.setdefault("override", lambda f: f)
    out = {name: _stub_module(name) for name in ("pydantic", "pydantic.fields", "pydantic.dataclasses")}
    for module in out.values():
        module.__dict__.update(pyd)
    out["pydantic"].__dict__["dataclasses"] = out["pydantic.dataclasses"]
    out["pydantic"].__dict__["fields"] = out["pydantic.fields"]
    out["typing_extensions"] = ext
    out["regex"] = re  # the same language for the patterns the flags use
    return out


# ---- loading ---------------------------------------------------------------------------------------------------

REAL = re.compile(
    r"vllm\.(config(\..*)?|engine\.arg_utils|utils\.argparse_utils|utils\.mem_constants|envs"
    r"|entrypoints\.(openai|launchers|common)\.cli_args|(v1\.)?attention\.backends\.registry"
    r"|v1\.attention\.backends\.mla\.prefill\.registry|platforms\.interface\.nothing)"
)
PACKAGES_NOT_RUN = re.compile(r"vllm(\.(engine|utils|entrypoints|v1|attention|model_executor)(\..*)?)?$")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Real modules from SOURCE_ROOT where `REAL` says so, stubs for everything that the standard library lacks."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.outside = outside_modules()
        self.loaded: list[str] = []
        self.trees: dict[str, ast.Module | None] = {}

    def path(self, name: str) -> str | None:
        base = os.path.join(self.root, *name.split("."))
        for path in (base + ".py", os.path.join(base, "__init__.py")):
            if os.path.isfile(path):
                return path
        return None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names:
            return None
        if top == "vllm":
            file = self.path(name)
            if file and REAL.fullmatch(name):
                self.loaded.append(name)
                package = file.endswith("__init__.py")
                return importlib.util.spec_from_file_location(
                    name, file, submodule_search_locations=[os.path.dirname(file)] if package else None
                )
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        name = spec.name
        if name in self.outside:
            return self.outside[name]
        if name == "vllm.platforms":
            module = _stub_module(name)
            module.__dict__["current_platform"] = Platform("current_platform")
            return module
        if name == "vllm.logger":
            module = _stub_module(name)
            quiet = types.SimpleNamespace(
                **{n: lambda *a, **k: None for n in ("debug", "info", "warning", "error", "warning_once",
                                                     "info_once", "debug_once", "error_once", "exception")}
            )
            module.__dict__["init_logger"] = lambda *a, **k: quiet
            module.__dict__["suppress_logging"] = _NullContext
            return module
        if name == "vllm.plugins":
            module = _stub_module(name)
            module.__dict__["load_general_plugins"] = lambda *a, **k: None
            return module
        module = _stub_module(name)
        if name.partition(".")[0] == "vllm":
            module.__getattr__ = lambda attr: self.engine_attr(name, attr)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        return None

    # A name taken from an engine module that is not executed: small closed things (Literal aliases, numbers,
    # strings, enums) are evaluated from that module's syntax tree alone; anything else stays a stub.

    def tree(self, name: str) -> ast.Module | None:
        if name not in self.trees:
            path = self.path(name)
            try:
                self.trees[name] = ast.parse(open(path, encoding="utf-8").read()) if path else None
            except (OSError, SyntaxError, ValueError):
                self.trees[name] = None
        return self.trees[name]

    def engine_attr(self, module: str, attr: str) -> Any:
        if attr == "__version__":
            return "0"
        if attr.startswith("__") and attr.endswith("__"):
            raise AttributeError(attr)
        value = self.evaluate(module, attr, depth=0)
        setattr(sys.modules[module], attr, value)
        return value

    def evaluate(self, module: str, attr: str, depth: int) -> Any:
        if attr == "ToolParserManager":  # asked only for the names it shows in --help
            return types.SimpleNamespace(list_registered=list)
        stub = Stub(f"{module}.{attr}")
        tree = self.tree(module)
        if tree is None or depth > 6:
            return stub
        for node in _top_level(tree):
            if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == attr for a in node.names):
                real = next(a.name for a in node.names if (a.asname or a.name) == attr)
                source = _absolute(module, node, self.path(module) or "")
                if source.partition(".")[0] == "vllm":
                    if REAL.fullmatch(source):
                        return getattr(importlib.import_module(source), real, stub)
                    return self.evaluate(source, real, depth + 1)
                if source in ("typing", "enum", "collections.abc"):
                    return getattr(importlib.import_module(source), real, stub)
                return stub
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                found = self.evaluate(_absolute(module, node, self.path(module) or ""), attr, depth + 1)
                if not isinstance(found, Stub) or found._known:
                    return found
            value = None
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(t, ast.Name) and t.id == attr for t in targets):
                    value = node.value
            if value is not None:
                space = _Names(self, module, depth)
                try:
                    return eval(compile(ast.Expression(value), module, "eval"), space)
                except Exception:
                    return stub
            if isinstance(node, ast.ClassDef) and node.name == attr:
                bases = {ast.unparse(b).rpartition(".")[2] for b in node.bases}
                decorators = " ".join(ast.unparse(d) for d in node.decorator_list)
                if bases & {"Enum", "IntEnum", "StrEnum"} or "dataclass" in decorators or "config" in decorators:
                    space = _Names(self, module, depth)
                    try:
                        exec(compile(ast.Module([node], []), self.path(module) or module, "exec"), space)
                        made = space[attr]
                        made.__module__ = module
                        return made
                    except Exception:
                        return stub
                plain_class = not any(ast.unparse(b).rpartition(".")[2] in ("dict", "TypedDict", "NamedTuple")
                                      for b in node.bases)
                return Stub(f"{module}.{attr}", known=plain_class)
        return stub


class _NullContext:
    def __init__(self, *a: Any, **k: Any) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *a: Any) -> None: ...


class _Names(dict):  # type: ignore[type-arg]
    """Globals that look a missing name up in the engine module's syntax tree."""

    def __init__(self, finder: Finder, module: str, depth: int) -> None:
        super().__init__(__builtins__={k: v for k, v in vars(__import__("builtins")).items() if k in _SAFE},
                         __name__=module)
        self.finder, self.module, self.depth = finder, module, depth

    def __missing__(self, key: str) -> Any:
        if key in _SAFE:
            raise KeyError(key)
        for source in (typing, enum):
            if hasattr(source, key) and key in getattr(source, "__all__", ()):
                return getattr(source, key)
        if key == "dataclass":
            return dataclasses.dataclass
        return self.finder.evaluate(self.module, key, self.depth + 1)


_SAFE = frozenset(("int", "float", "str", "bool", "list", "dict", "set", "tuple", "type", "None", "True", "False",
                   "sorted", "min", "max", "len", "range", "__build_class__", "property", "classmethod",
                   "staticmethod", "object", "super", "isinstance", "ValueError", "frozenset"))


def _top_level(tree: ast.Module) -> Any:
    for node in tree.body:
        if isinstance(node, ast.If):
            # `if TYPE_CHECKING: ... else: ...`: at run time the else branch
            test = ast.unparse(node.test)
            yield from node.orelse if test == "TYPE_CHECKING" else node.body
            continue
        if isinstance(node, ast.Try):
            yield from node.body
            continue
        yield node


def _absolute(module: str, node: ast.ImportFrom, path: str) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    up = node.level - (1 if path.endswith("__init__.py") else 0)
    return ".".join(parts[: len(parts) - up] + ([node.module] if node.module else []))


# ---- describing ------------------------------------------------------------------------------------------------


def unknown_type(text: str) -> Any:
    raise StubLeak(text)


def stubs_in(hint: Any) -> list[str]:
    """Names in a type hint whose kind we do not know."""
    if isinstance(hint, Stub):
        return [] if hint._known else [hint._name]
    if isinstance(hint, (str, typing.ForwardRef)):
        return [str(hint)]
    return [s for a in typing.get_args(hint) if typing.get_origin(hint) is not typing.Literal for s in stubs_in(a)]


def watch_hints(arg_utils: Any, unsure: dict[tuple[str, str], list[str]]) -> None:
    """Replace the type of every flag whose hint holds a name of unknown kind by `unknown_type`."""
    name = "_compute_kwargs" if hasattr(arg_utils, "_compute_kwargs") else "get_kwargs"
    original = getattr(arg_utils, name)

    def watched(cls: Any) -> Any:
        kwargs = original(cls)
        for field in dataclasses.fields(cls):
            found = stubs_in(field.type)
            if found and field.name in kwargs and kwargs[field.name].get("type") is not unknown_type:
                unsure[(cls.__name__, field.name)] = found
                kwargs[field.name]["type"] = unknown_type
                kwargs[field.name].pop("choices", None)
        return kwargs

    setattr(arg_utils, name, watched)


def describe_type(t: Any) -> Any:
    """A parser `type=` callable as data: a name, or {"optional": inner}; None when it is not one we know."""
    if t is None:
        return "str"
    if t in (int, float, str, bool):
        return t.__name__
    if t is json.loads:
        return "json"
    if isinstance(t, type):
        return {"class": t.__name__}
    name = getattr(t, "__name__", "")
    cells: dict[str, Any] = {}
    code = getattr(t, "__code__", None)
    if code is not None and t.__closure__:
        cells = dict(zip(code.co_freevars, (c.cell_contents for c in t.__closure__), strict=True))
    if name == "_optional_type":
        inner = describe_type(cells["return_type"])
        return None if inner is None else {"optional": inner}
    if name == "_parse_type":
        inner = describe_type(cells["return_type"])
        return None if inner is None else {"parsed": inner}
    if name == "parse_dataclass":
        cls = (t.__defaults__ or (None,))[-1]
        return {"dataclass": cls.__name__} if isinstance(cls, type) else None
    if name in ("human_readable_int", "human_readable_int_or_auto", "union_dict_and_str", "parse_reasoning_parser"):
        return name
    if name == "<lambda>" and code is not None:
        shape = code_shape(code)
        return next((k for k, text in LAMBDAS.items() if code_shape(eval(text).__code__) == shape), None)
    return None


def code_shape(code: Any) -> Any:
    """What two functions have in common when they were written alike, wherever they stand."""
    consts = [code_shape(c) if isinstance(c, types.CodeType) else c for c in code.co_consts
              if not (isinstance(c, str) and "<locals>" in c) and c != "<lambda>.<genexpr>"]
    return [code.co_code.hex(), repr(consts), code.co_names, code.co_varnames]


LAMBDAS = {
    "lower_underscore": "lambda s: s.lower().replace('-', '_')",
    "lower": "lambda s: s.lower()",
    "upper": "lambda s: s.upper()",
    "comma_ids": "lambda s: [int(device_id) if device_id.isdigit() else device_id "
                 "for device_id in (part.strip() for part in s.split(','))]",
}


def plain(value: Any) -> Any:
    """A default as JSON; `{"object": class}` for config objects, `{"unknown": why}` for a stub."""
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, Stub):
        return {"unknown": repr(value)}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(v) for v in value)
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if dataclasses.is_dataclass(value):
        return {"object": type(value).__name__}
    if isinstance(value, FieldInfo):
        return plain(value.default)
    return {"unknown": repr(type(value))}


def describe(parser: Any) -> list[dict[str, Any]]:
    """Every action of an argparse parser, in the parser's own order. Also run under a real engine by the proofs."""
    out = []
    for a in parser._actions:
        kind = type(a).__name__
        row: dict[str, Any] = {"options": list(a.option_strings), "dest": a.dest, "action": ACTIONS.get(kind) or own_action(type(a))}
        if kind == "EnableDisableAction":
            # hidden spellings stay registered with the parser but not in the action
            known = [o for o, b in parser._option_string_actions.items() if b is a]
            row["options"] = known
            if known != list(a.option_strings):
                row["shown"] = list(a.option_strings)
            row["negative"] = sorted(o for o in known if o in a.negative_option_strings)
        elif kind == "BooleanOptionalAction":
            row["negative"] = [o for o in a.option_strings if o.startswith("--no-")]
        if a.nargs is not None and row["action"] not in ("bool", "true", "false", "help", "version"):
            row["nargs"] = a.nargs
        if a.const is not None and row["action"] == "store":
            row["const"] = plain(a.const)
        if row["action"] not in ("bool", "true", "false", "help", "version"):
            row["type"] = describe_type(a.type)
        if a.choices is not None:
            row["choices"] = [plain(c) for c in a.choices]
        row["default"] = "==SUPPRESS==" if a.default == "==SUPPRESS==" else plain(a.default)
        if getattr(a, "required", False):
            row["required"] = True
        out.append(row)
    return out


ACTIONS = {
    "_StoreAction": "store", "_StoreTrueAction": "true", "_StoreFalseAction": "false", "_AppendAction": "append",
    "BooleanOptionalAction": "bool", "EnableDisableAction": "bool", "_HelpAction": "help",
    "_VersionAction": "version", "LoRAParserAction": "lora", "_StoreConstAction": "const",
}


def own_action(cls: Any) -> str:
    """An action class of the engine's own: "store" when all it does besides warning is to store the value."""
    try:
        tree = ast.parse(open(sys.modules[cls.__module__].__file__ or "", encoding="utf-8").read())
        call = next(f for c in tree.body if isinstance(c, ast.ClassDef) and c.name == cls.__name__
                    for f in c.body if isinstance(f, ast.FunctionDef) and f.name == "__call__")
    except (OSError, SyntaxError, StopIteration, AttributeError, TypeError):
        return str(cls.__name__)
    body = [ast.unparse(s) for s in call.body]
    stores = "setattr(namespace, self.dest, values)"
    if stores in body and all(s == stores or s.startswith(("warnings.warn(", "logger.warning")) for s in body):
        return "store"
    return str(cls.__name__)


def describe_hint(hint: Any, classes: dict[str, Any]) -> Any:
    """A type hint as data. Unknown parts become {"unknown": text}."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is None or hint is type(None):
        return "null"
    if hint is Any:
        return "any"
    if isinstance(hint, Stub):
        return {"unknown": hint._name}
    if isinstance(hint, (str, typing.ForwardRef)):
        return {"unknown": getattr(hint, "__forward_arg__", hint)}
    if origin is typing.Annotated:
        inner = describe_hint(args[0], classes)
        marks = [m for m in args[1:]]
        if any(isinstance(m, Mark) and m.name == "SkipValidation" for m in marks):
            return "any"
        for m in marks:
            if isinstance(m, types.FunctionType) and "_coerce_quant_key" in repr(m.__code__.co_names):
                return {"named": "QUANT_KEY_NAMES"}
            if isinstance(m, FieldInfo):
                inner = {"bounded": inner, **m.constraints} if m.constraints else inner
            else:
                return {"unknown": repr(m)}
        return inner
    if origin is typing.Literal:
        return {"literal": list(args)}
    if origin in (typing.Union, types.UnionType):
        return {"union": [describe_hint(a, classes) for a in args]}
    if origin in (list, set, frozenset):
        return {origin.__name__: describe_hint(args[0], classes)}
    if origin is tuple:
        return {"tuple": [("..." if a is Ellipsis else describe_hint(a, classes)) for a in args]}
    if origin is dict:
        return {"dict": [describe_hint(a, classes) for a in args]}
    if hint in (bool, int, float, str, list, dict, set, tuple):
        return hint.__name__
    if isinstance(hint, type):
        if issubclass(hint, enum.Enum):
            classes.setdefault(hint.__name__, hint)
            return {"enum": hint.__name__}
        if dataclasses.is_dataclass(hint):
            classes.setdefault(hint.__name__, hint)
            return {"dataclass": hint.__name__}
    return {"unknown": re.sub(r" at 0x[0-9a-f]+", "", str(hint))}


def describe_class(cls: Any, classes: dict[str, Any], root: str) -> dict[str, Any]:
    """A config class or enum: fields, bounds, and which checks of its own it runs (file, line, digest of source)."""
    file = os.path.relpath(sys.modules[cls.__module__].__dict__.get("__file__", "") or "", root) \
        if cls.__module__ in sys.modules and sys.modules[cls.__module__].__dict__.get("__file__") else cls.__module__
    if issubclass(cls, enum.Enum):
        meta = type(cls)
        return {"enum": {m: plain(v.value) for m, v in cls.__members__.items()}, "where": file,
                "meta": "" if meta in (enum.EnumMeta,) else meta.__name__}
    fields: dict[str, Any] = {}
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as e:
        return {"unknown": f"{type(e).__name__}: {e}", "where": file}
    infos = getattr(cls, "__attnfit_infos__", {})
    for field in dataclasses.fields(cls):
        row: dict[str, Any] = {"type": describe_hint(hints.get(field.name, field.type), classes)}
        default = field.default
        info = infos.get(field.name)
        if info is not None and info.constraints:
            row["bounds"] = {k: plain(v) for k, v in info.constraints.items()}
        if isinstance(default, FieldInfo):
            row["required"] = True
        elif default is not dataclasses.MISSING:
            row["default"] = plain(default)
        elif field.default_factory is dataclasses.MISSING:
            row["required"] = True
        if not field.init:
            row["init"] = False
        fields[field.name] = row
    return {"fields": fields, "where": file, "extra": getattr(cls, "__attnfit_config__", {}).get("extra", "ignore"),
            "checks": checks_of(cls, root)}


def checks_of(cls: Any, root: str) -> list[dict[str, Any]]:
    out = []
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            func = getattr(member, "__func__", member)
            func = getattr(func, "__wrapped__", func) if name == "__post_init__" else func
            mark = getattr(func, "__attnfit_check__", None)
            if name in ("__post_init__", "__post_init_post_parse__") and isinstance(func, types.FunctionType):
                mark = ("post_init", "after", [])
            if mark is None or not isinstance(func, types.FunctionType):
                continue
            kind, mode, names = mark
            path, line = func.__code__.co_filename, func.__code__.co_firstlineno
            out.append({"name": name, "kind": kind, "mode": mode, "fields": names,
                        "where": f"{os.path.relpath(path, root)}:{line}", "digest": digest(path, base.__name__, name)})
    return out


def digest(path: str, cls: str, name: str) -> str:
    """First 12 hex digits of the SHA-256 of the function's syntax tree (comments and layout do not count)."""
    try:
        tree = ast.parse(open(path, encoding="utf-8").read())
    except (OSError, SyntaxError):
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == cls:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == name:
                    return hashlib.sha256(ast.dump(item).encode()).hexdigest()[:12]
    return ""


def probe_syntax(make_parser: Any, arg_utils: Any, argparse_utils: Any) -> dict[str, Any]:
    """How this release's FlexibleArgumentParser treats the list before argparse, found by trying it."""

    def outcome(args: list[str]) -> Any:
        parser = make_parser()
        parser.add_argument("model_tag", nargs="?")
        for flag in ("--probe", "-cc", "--model", "--served-model-name", "--config", "--optimization-level"):
            parser.add_argument(flag)
        parser.add_argument("--switch", action=__import__("argparse").BooleanOptionalAction)
        parser.error = lambda message: (_ for _ in ()).throw(StubLeak(message))
        try:
            return vars(parser.parse_args(args))
        except (StubLeak, Exception) as e:
            return f"{type(e).__name__}: {e}"

    human = getattr(arg_utils, "human_readable_int", None) or argparse_utils.human_readable_int
    try:
        suffixes = "kmgt" if human("1t") == 10**12 else "kmg"
    except ValueError:
        suffixes = "kmg"
    served = outcome(["serve", "--served-model-name", "x"])
    dotted = outcome(["--probe.a", "1k"])
    loader = make_parser()
    loader.add_argument("--switch", action=__import__("argparse").BooleanOptionalAction)

    def load(value: Any) -> Any:
        argparse_utils.yaml = types.SimpleNamespace(safe_load=lambda f: value)
        try:
            return loader.load_config_file("PROBE.yaml")
        except Exception as e:
            return f"{type(e).__name__}: {e}"

    argparse_utils.open = lambda *a, **k: _NullContext()
    bad_name = ""
    try:
        loader.load_config_file("x.json")
    except ValueError as e:
        bad_name = str(e)
    missing = outcome(["serve", "m", "--config"])
    syntax = {
        "suffixes": suffixes,
        "json_ints": hasattr(arg_utils, "_expand_json_human_readable_numbers"),
        "dotted_ints": isinstance(dotted, dict) and dotted.get("probe") == '{"a": 1000}',
        "O_dot": isinstance(outcome(["-O.x=1"]), dict) and outcome(["-O.x=1"]).get("cc") == '{"x": 1}',
        "served_name_check": isinstance(served, str) and served.startswith("ValueError"),
        "model_eq": "unrecognized" in str(outcome(["serve", "--model="])),
        "yaml_dict": load({"k": {"a": 1}}) == ["--k", '{"a": 1}'],
        "no_key": load({"switch": False}) == ["--no-switch"],
        "extension_message": bad_name.replace("json", "{}"),
        "missing_message": missing if isinstance(missing, str) else "",
        "task_hint": "Hint: --task" in str(outcome(["serve", "m", "--task", "embed"])),
    }
    del argparse_utils.open
    return {k: v for k, v in syntax.items() if v is not False}


def function_digests(finder: Any) -> dict[str, str]:
    """Digests of the functions this tool's reading of the parser rests on."""
    path = finder.path("vllm.utils.argparse_utils") or ""
    out = {}
    for name in ("parse_args", "_pull_args_from_config", "load_config_file"):
        out[name] = digest(path, "FlexibleArgumentParser", name)
    return out


def quantization_names(finder: Any) -> dict[str, Any]:
    """The names `--quantization-config` accepts, read from the two tables of vllm/config/quantization.py."""
    out: dict[str, Any] = {}
    for node in (finder.tree("vllm.config.quantization") or ast.Module([], [])).body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if not isinstance(target, ast.Name) or not isinstance(getattr(node, "value", None), ast.Dict):
            continue
        if target.id in ("QUANT_KEY_NAMES", "_ONLINE_SHORTHANDS"):
            names = {}
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                given = [k.arg for k in value.keywords] if isinstance(value, ast.Call) else []
                names[ast.literal_eval(key)] = given
            out[target.id] = {"names": names, "where": f"vllm/config/quantization.py:{node.lineno}"}
    return out


CLI_ARGS = ("vllm.entrypoints.common.cli_args", "vllm.entrypoints.launchers.cli_args",
            "vllm.entrypoints.openai.cli_args")


def extract(root: str) -> dict[str, Any]:
    root = os.path.abspath(root)
    finder = Finder(root)
    sys.meta_path.insert(0, finder)
    sys.argv = ["vllm"]
    cli = next((n for n in CLI_ARGS if finder.path(n)), None)
    if cli is None:
        raise SystemExit("no vllm/entrypoints/*/cli_args.py in this source tree")
    unsure: dict[tuple[str, str], list[str]] = {}
    watch_hints(importlib.import_module("vllm.engine.arg_utils"), unsure)
    make = importlib.import_module(cli).make_arg_parser
    parser_module = importlib.import_module("vllm.utils.argparse_utils")
    parser = make(parser_module.FlexibleArgumentParser())
    rows = describe(parser)
    classes: dict[str, Any] = {}
    for action in parser._actions:
        found = describe_type(action.type)
        while isinstance(found, dict) and "optional" in found:
            found = found["optional"]
        if isinstance(found, dict) and "dataclass" in found:
            _find_class(action.type, classes)
    described_names = quantization_names(finder)
    kinds = finder.evaluate("vllm.v1.kv_cache_interface", "KVCacheSpecKind", 0)
    if isinstance(kinds, type):
        classes["KVCacheSpecKind"] = kinds
    described: dict[str, Any] = dict(described_names)
    while set(classes) - set(described):
        for name in sorted(set(classes) - set(described)):
            described[name] = describe_class(classes[name], classes, root)
    syntax = probe_syntax(parser_module.FlexibleArgumentParser, importlib.import_module("vllm.engine.arg_utils"),
                          parser_module)
    return {"flags": rows, "classes": described, "loaded": sorted(set(finder.loaded)), "syntax": syntax,
            "digests": function_digests(finder),
            "unsure": {".".join(k): v for k, v in unsure.items()}}


def _find_class(t: Any, classes: dict[str, Any]) -> None:
    if getattr(t, "__name__", "") == "_optional_type":
        _find_class(t.__closure__[0].cell_contents, classes)
    elif getattr(t, "__name__", "") == "parse_dataclass":
        cls = t.__defaults__[-1]
        classes[cls.__name__] = cls


if __name__ == "__main__":
    json.dump(extract(sys.argv[1]), sys.stdout)
