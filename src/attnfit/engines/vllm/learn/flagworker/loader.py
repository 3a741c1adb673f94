"""Executes a release's own flag modules from its source files; everything else they import is a stub.

Standard library only: this runs inside the isolated child.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys
import types
import typing
from typing import Any

from attnfit.engines.vllm.learn.flagworker.source import parsed_file
from attnfit.engines.vllm.learn.flagworker.stubs import NullContext, Platform, Stub, outside_modules, stub_module

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
            module = stub_module(name)
            module.__dict__["current_platform"] = Platform("current_platform")
            return module
        if name == "vllm.logger":
            module = stub_module(name)
            quiet = types.SimpleNamespace(
                **{
                    n: lambda *a, **k: None
                    for n in (
                        "debug",
                        "info",
                        "warning",
                        "error",
                        "warning_once",
                        "info_once",
                        "debug_once",
                        "error_once",
                        "exception",
                    )
                }
            )
            module.__dict__["init_logger"] = lambda *a, **k: quiet
            module.__dict__["suppress_logging"] = NullContext
            return module
        if name == "vllm.plugins":
            module = stub_module(name)
            module.__dict__["load_general_plugins"] = lambda *a, **k: None
            return module
        module = stub_module(name)
        if name.partition(".")[0] == "vllm":
            module.__getattr__ = lambda attr: self.engine_attr(name, attr)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        return None

    # A name taken from an engine module that is not executed: small closed things (Literal aliases, numbers,
    # strings, enums) are evaluated from that module's syntax tree alone; anything else stays a stub.

    def tree(self, name: str) -> ast.Module | None:
        if name not in self.trees:
            self.trees[name] = parsed_file(self.path(name))
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
                plain_class = not any(
                    ast.unparse(b).rpartition(".")[2] in ("dict", "TypedDict", "NamedTuple") for b in node.bases
                )
                return Stub(f"{module}.{attr}", known=plain_class)
        return stub


class _Names(dict):  # type: ignore[type-arg]
    """Globals that look a missing name up in the engine module's syntax tree."""

    def __init__(self, finder: Finder, module: str, depth: int) -> None:
        super().__init__(
            __builtins__={k: v for k, v in vars(__import__("builtins")).items() if k in _SAFE}, __name__=module
        )
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


_SAFE = frozenset(
    (
        "int",
        "float",
        "str",
        "bool",
        "list",
        "dict",
        "set",
        "tuple",
        "type",
        "None",
        "True",
        "False",
        "sorted",
        "min",
        "max",
        "len",
        "range",
        "__build_class__",
        "property",
        "classmethod",
        "staticmethod",
        "object",
        "super",
        "isinstance",
        "ValueError",
        "frozenset",
    )
)


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
