"""Follow Python classes through a source tree without importing it: bases, method resolution order, members."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

Class = tuple[str, str]  # module, name

#: modules for other platforms, never followed
_OTHER_PLATFORMS = (".amd", ".rocm", ".xpu", ".cpu")


class ClassTree:
    """Classes of `tree/vllm`, found by module and name; imports are followed, CUDA's side of a platform switch."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self._modules: dict[str, _Module | None] = {}

    def find(self, module: str, name: str, depth: int = 0) -> Class | None:
        """Where the class behind `module.name` is defined, or None."""
        m = self._module(module)
        if m is None or depth > 12:
            return None
        if name in m.classes:
            return module, name
        if name in m.aliases:  # X = Y, or X = adapter(Y)
            return self.find(module, m.aliases[name], depth + 1)
        for target, real in m.imports.get(name, []):
            found = self.find(target, real, depth + 1)
            if found is not None:
                return found
        for star in m.stars:
            found = self.find(star, name, depth + 1)
            if found is not None:
                return found
        return None

    def mro(self, cls: Class) -> list[Class] | None:
        """C3 linearisation over the classes that can be followed (others are left out)."""
        try:
            return self._linear(cls, 0)
        except RecursionError:
            return None

    def _linear(self, cls: Class, depth: int) -> list[Class]:
        if depth > 30:
            raise RecursionError
        parents = [b for b in (self._base(cls, e) for e in self._node(cls).bases) if b is not None]
        return [cls, *_merge([*(self._linear(p, depth + 1) for p in parents), list(parents)])]

    def complete(self, chain: list[Class]) -> bool:
        """Whether every base inside vllm could be followed."""
        for cls in chain:
            m = self._module(cls[0])
            for e in self._node(cls).bases:
                name = _base_name(e)
                if name is None:
                    return False
                head = name.split(".")[0]
                inside = m is not None and (
                    head in m.classes
                    or head in m.aliases
                    or any(t.startswith("vllm") for t, _ in m.imports.get(head, []))
                )
                if inside and self._base(cls, e) is None:
                    return False
        return True

    def members(self, chain: list[Class]) -> tuple[dict[str, Any], dict[str, list[str]]]:
        """Attributes with constant values (None: not a constant) and methods with their argument names."""
        attrs: dict[str, Any] = {}
        methods: dict[str, list[str]] = {}
        for cls in reversed(chain):
            node = self._node(cls)
            for stmt in node.body:
                if isinstance(stmt, ast.AnnAssign) and isinstance(stmt.target, ast.Name) and stmt.value is not None:
                    attrs[stmt.target.id] = _constant(stmt.value)
                elif isinstance(stmt, ast.Assign):
                    for t in stmt.targets:
                        if isinstance(t, ast.Name):
                            attrs[t.id] = _constant(stmt.value)
                            methods.pop(t.id, None)
                elif isinstance(stmt, ast.FunctionDef | ast.AsyncFunctionDef):
                    methods[stmt.name] = _arguments(stmt)
                    attrs.pop(stmt.name, None)
            for base in node.bases:
                attrs |= _adapted(base)
            for deco in node.decorator_list:
                attrs |= _decorated(deco)
        return attrs, methods

    def returned(self, chain: list[Class], method: str) -> ast.expr | None:
        """What the first `return` of a method gives, taken from the first class of the chain that defines it."""
        found = self.method(chain, method)
        for node in ast.walk(found) if found is not None else ():
            if isinstance(node, ast.Return) and node.value is not None:
                return node.value
        return None

    def method(self, chain: list[Class], name: str) -> ast.FunctionDef | None:
        """A method as the first class of the chain that has it defines it."""
        for cls in chain:
            for stmt in self._node(cls).body:
                if isinstance(stmt, ast.FunctionDef) and stmt.name == name:
                    return stmt
        return None

    def body(self, cls: Class) -> list[ast.stmt]:
        """The statements of a class's own body."""
        return self._node(cls).body

    def _base(self, cls: Class, expr: ast.expr) -> Class | None:
        name = _base_name(expr)
        if name is None:
            return None
        if "." in name:
            head, _, tail = name.partition(".")
            m = self._module(cls[0])
            for target, real in m.imports.get(head, []) if m else []:
                found = self.find(f"{target}.{real}" if real else target, tail)
                if found is not None:
                    return found
            return None
        found = self.find(cls[0], name)
        if found == cls:  # class X(X), the base imported under the same name
            m = self._module(cls[0])
            for target, real in m.imports.get(name, []) if m else []:
                found = self.find(target, real)
        return None if found == cls else found

    def _node(self, cls: Class) -> ast.ClassDef:
        m = self._module(cls[0])
        assert m is not None
        return m.classes[cls[1]]

    def _module(self, name: str) -> _Module | None:
        if name not in self._modules:
            path = self.tree.joinpath(*name.split("."))
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            package = name if path.is_dir() else name.rpartition(".")[0]
            self._modules[name] = _Module(file, package) if name.startswith("vllm") and file.exists() else None
        return self._modules[name]


class _Module:
    def __init__(self, file: Path, package: str) -> None:
        self.classes: dict[str, ast.ClassDef] = {}
        self.aliases: dict[str, str] = {}
        self.imports: dict[str, list[tuple[str, str]]] = {}
        self.stars: list[str] = []
        self.package = package
        self._read(ast.parse(file.read_text(encoding="utf-8")).body)

    def _read(self, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node)
            elif isinstance(node, ast.Import):
                for a in node.names:
                    self.imports.setdefault(a.asname or a.name.split(".")[0], []).append((a.name, ""))
            elif isinstance(node, ast.If):
                test = ast.unparse(node.test)
                other = any(f"is_{p}" in test for p in ("rocm", "xpu", "cpu")) and "not " not in test
                if other:
                    self._read(node.orelse)
                else:
                    self._read(node.body)
                    self._read(node.orelse)
            elif isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
                self._read(node.body)  # a package that imports its classes lazily
            elif isinstance(node, ast.Try):
                self._read(node.body)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self.aliases[target.id] = node.value.id

    def _import_from(self, node: ast.ImportFrom) -> None:
        target = node.module or ""
        if node.level:
            parts = self.package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1])
            target = f"{base}.{target}" if target else base
        if any(p in f"{target}." for p in (f"{o}." for o in _OTHER_PLATFORMS)):
            return
        for a in node.names:
            if a.name == "*":
                self.stars.append(target)
            else:
                self.imports.setdefault(a.asname or a.name, []).append((target, a.name))


def _base_name(expr: ast.expr) -> str | None:
    if isinstance(expr, ast.Call) and isinstance(expr.func, ast.Name) and expr.func.id in _ADAPTERS and expr.args:
        expr = expr.args[0]
    if isinstance(expr, ast.Subscript):
        expr = expr.value
    if isinstance(expr, ast.Name):
        return expr.id
    if isinstance(expr, ast.Attribute) and isinstance(expr.value, ast.Name):
        return f"{expr.value.id}.{expr.attr}"
    return None


def _adapted(base: ast.expr) -> dict[str, Any]:
    """`class X(as_seq_cls_model(Y))`: an adapter makes a pooling model of Y."""
    if isinstance(base, ast.Call) and isinstance(base.func, ast.Name) and base.func.id in _ADAPTERS:
        return dict(_ADAPTERS[base.func.id])
    return {}


#: vllm/model_executor/models/adapters.py
_ADAPTERS: dict[str, dict[str, Any]] = {
    "as_embedding_model": {"is_pooling_model": True},
    "as_seq_cls_model": {"is_pooling_model": True, "score_type": "cross-encoder"},
}


def _constant(value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except ValueError:
        return None


def _arguments(fn: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    a = fn.args
    names = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
    return [*names, "**"] if a.kwarg else names


def _decorated(deco: ast.expr) -> dict[str, Any]:
    """`@attn_type("encoder_only")`, `@default_pooling_type(seq_pooling_type="CLS")`."""
    if not isinstance(deco, ast.Call) or not isinstance(deco.func, ast.Name):
        return {}
    args = [_constant(a) for a in deco.args]
    if deco.func.id == "attn_type" and args:
        return {"attn_type": args[0]}
    if deco.func.id == "default_pooling_type":
        out = {f"default_{k.arg}": _constant(k.value) for k in deco.keywords if k.arg}
        if args:
            out["default_pooling_type"] = args[0]
        return out
    return {}


def _merge(lists: list[list[Class]]) -> list[Class]:
    """C3; where the order is inconsistent (a base that could not be followed) the first candidate is taken."""
    out: list[Class] = []
    lists = [x for x in lists if x]
    while lists:
        for seq in lists:
            if not any(seq[0] in other[1:] for other in lists):
                break
        else:
            seq = lists[0]
        head = seq[0]
        out.append(head)
        lists = [[c for c in x if c != head] for x in lists]
        lists = [x for x in lists if x]
    return out
