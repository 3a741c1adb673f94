"""How the model classes of a release build their attention layers, read from its source without running it.

For every architecture of the release's registry: the classes it can reach that construct a cache-bearing layer (its
*units*), each with a digest of the statements that decide which layer, with which sizes. `launch/families/` says in
data what those statements mean for the release it was written from; a unit with the same digest means the same in
another release. Usage:

    python -m attnfit.engines.vllm.learn.model_calls SOURCE [ARCHITECTURE ...]  # print the units and their statements
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

#: constructors of cache-bearing layers, by name
LAYERS = frozenset(
    {
        "Attention", "MLAAttention", "ChunkedLocalAttention", "EncoderOnlyAttention", "CrossAttention",
        "StaticSinkAttention", "RSWAAttention", "PrefillPrefixLMAttention", "MultiHeadLatentAttentionWrapper",
        "MambaMixer", "MambaMixer2", "ShortConv", "get_attn_backend",
    }
)  # fmt: skip
#: local names that hold such a constructor, or the class of a layer that contains one
HOLDERS = frozenset(
    {
        "attn_cls", "attn_class", "attention_cls", "attention_class", "layer_type", "attn_layer_type",
        "layer_class", "mixer_cls", "mixer_class", "layer_cls", "decoder_layer_type", "block_cls",
    }
)  # fmt: skip
#: arguments that decide nothing about the question a layer asks
_IGNORED = frozenset(
    {
        "quant_config", "prefix", "cache_config", "scale", "alibi_slopes", "logits_soft_cap", "rotary_emb",
        "max_position_embeddings", "max_position", "rope_parameters", "rope_theta", "rope_scaling", "rms_norm_eps",
        "bias", "bias_o_proj", "qkv_bias", "reduce_results", "enable_eplb", "mla_modules", "topk_indices_buffer",
        "index_group_builder", "indexer", "kv_b_proj", "layer_norm_eps", "rope_head_dim", "hidden_act", "vllm_config",
        "config", "model_config", "parallel_config", "dual_chunk_attention_config", "mrope_positions_factor",
        "attn_temperature_tuning", "reduce_output", "use_qk_norm", "qk_norm", "partial_rotary_factor", "aux_stream",
        "llama_4_scaling_config", "attention_multiplier", "norm_eps", "input_size",
    }
)  # fmt: skip
_NOISE = ("Linear", "Norm", "MLP", "get_rope", "yarn_get_mscale", "MoE", "Embedding")
_BUILTINS = frozenset({"self", "int", "len", "max", "isinstance", "getattr", "hasattr", "True", "False", "None"})
_QUIET = _BUILTINS | _IGNORED
_BASES = frozenset({"AttentionLayerBase", "MambaBase", "MLAAttention", "GatedDeltaNetAttention", "LinearAttention"})
_OTHER_HARDWARE = frozenset({"amd", "cpu", "xpu", "rocm"})
_MODEL_PACKAGES = (
    "vllm.model_executor.models.", "vllm.models.", "vllm.model_executor.layers.mamba", "vllm.model_executor.layers.mla",
)  # fmt: skip
_SKIPPED = frozenset({"utils", "interfaces", "interfaces_base", "registry", "vision", "adapters", "config"})


class Unit(NamedTuple):
    """One class that constructs cache-bearing layers."""

    module: str
    name: str
    line: int
    digest: str
    statements: tuple[str, ...]


class Name(NamedTuple):
    module: str
    name: str


class _Module:
    def __init__(self, name: str, path: Path) -> None:
        self.name, self.package = name, path.name == "__init__.py"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.tree = tree
        self.defs: dict[str, ast.ClassDef | ast.FunctionDef] = {
            node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)
        }
        self.imports: dict[str, Name] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                source = self._source(node)
                if not _OTHER_HARDWARE & set(source.split(".")):
                    for alias in node.names:
                        self.imports.setdefault(alias.asname or alias.name, Name(source, alias.name))

    def _source(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        keep = len(parts) - node.level + (1 if self.package else 0)
        return ".".join([*parts[:keep], *([node.module] if node.module else [])])


class Source:
    """The .py files of one release, parsed on demand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._modules: dict[str, _Module | None] = {}

    def module(self, name: str) -> _Module | None:
        if name not in self._modules:
            base = self.root.joinpath(*name.split("."))
            path = next((p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)
            self._modules[name] = None if path is None else _Module(name, path)
        return self._modules[name]

    def resolve(self, module: str, name: str, depth: int = 0) -> Name | None:
        """Where the class or function that `name` means inside `module` is defined."""
        found = self.module(module)
        if found is None or depth > 8:
            return None
        if name in found.defs:
            return Name(module, name)
        if name in found.imports:
            source, original = found.imports[name]
            return self.resolve(source, original, depth + 1) if source.startswith("vllm") else None
        if found.package:  # packages that load their classes lazily
            for sub in ("nvidia", "nvidia.model", "model"):
                inner = self.resolve(f"{module}.{sub}", name, depth + 1)
                if inner is not None:
                    return inner
        return None

    def node(self, name: Name) -> ast.ClassDef | ast.FunctionDef:
        module = self.module(name.module)
        assert module is not None
        return module.defs[name.name]

    def registry(self) -> dict[str, Name]:
        """Architecture -> the class that the release registers for it."""
        module = self.module("vllm.model_executor.models.registry")
        out: dict[str, Name] = {}
        for node in module.tree.body if module else ():
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
                for key, value in zip(node.value.keys, node.value.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple) and len(value.elts) == 2:
                        where, cls = (str(e.value) for e in value.elts if isinstance(e, ast.Constant))
                        full = where if where.startswith("vllm.") else f"vllm.model_executor.models.{where}"
                        out.setdefault(str(key.value), Name(full, cls))
        return out

    def reachable(self, start: Name) -> list[Name]:
        """Model classes and functions that `start` can come to construct, itself included."""
        first = self.resolve(*start)
        seen: dict[Name, None] = {}
        todo = [first] if first else []
        while todo:
            name = todo.pop(0)
            if name in seen:
                continue
            seen[name] = None
            for node in ast.walk(self.node(name)):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                    found = self.resolve(name.module, node.id)
                    if found is not None and found not in seen and _is_model(found.module):
                        todo.append(found)
        return list(seen)


def _is_model(module: str) -> bool:
    if module.rsplit(".", 1)[-1] in _SKIPPED:
        return False
    return module.startswith(_MODEL_PACKAGES)


def units(source: Source, architecture: Name) -> list[Unit]:
    """The units of one architecture, in order of reach. Empty: it builds no layer that can be seen here."""
    names = source.reachable(architecture)
    carriers = {name for name in names if _bears_cache(source.node(name))}
    calls = {name: list(_calls(source, name)) for name in names}
    grown = True
    while grown:
        before = len(carriers)
        carriers |= {n for n in names if any(c.direct or c.target in carriers for c in calls[n])}
        grown = len(carriers) > before
    out = []
    for name in names:
        wanted = [c.call for c in calls[name] if c.direct or c.held or c.target in carriers]
        lines = tuple(_statements(source.node(name), wanted))
        if lines:
            digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
            out.append(Unit(name.module, name.name, source.node(name).lineno, digest, lines))
    return out


class _Call(NamedTuple):
    call: ast.Call
    direct: bool
    held: bool
    target: Name | None


def _bears_cache(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id in _BASES for b in node.bases)


def _calls(source: Source, name: Name) -> Iterator[_Call]:
    for node in ast.walk(source.node(name)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called = node.func.id
            yield _Call(node, called in LAYERS, called in HOLDERS, source.resolve(name.module, called))


def _statements(node: ast.AST, wanted: Iterable[ast.Call]) -> Iterator[str]:
    """The statements that decide the wanted calls and their arguments, one normalised line each."""
    targets = set(wanted)
    if not targets:
        return
    for function in ast.walk(node):
        if isinstance(function, ast.FunctionDef):
            own = {call for call in targets if any(call is inner for inner in _within(function))}
            if own:
                yield from _slice(function, own)
                targets -= own


def _within(function: ast.FunctionDef) -> Iterator[ast.AST]:
    return ast.walk(function)


def _keys(node: ast.AST) -> set[str]:
    out = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            out.add(inner.id)
        elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == "self":
            out.add(f"self.{inner.attr}")
    return out - _QUIET


def _shape(call: ast.Call) -> str:
    """The call with only the arguments that can change the question."""
    name = ast.unparse(call.func)
    plain = [ast.unparse(a) for i, a in enumerate(call.args) if not (name in LAYERS | HOLDERS and i == 2)]
    named = sorted(f"{k.arg}={ast.unparse(k.value)}" for k in call.keywords if k.arg and k.arg not in _IGNORED)
    return f"{name}({', '.join([a for a in plain if a not in _IGNORED] + named)})"


def _slice(function: ast.FunctionDef, targets: set[ast.Call]) -> Iterator[str]:
    flat: list[tuple[ast.stmt, tuple[str, ...], frozenset[str]]] = []

    def walk(body: list[ast.stmt], conditions: tuple[str, ...], keys: frozenset[str]) -> None:
        for statement in body:
            if isinstance(statement, ast.If):
                test, also = ast.unparse(statement.test), keys | _keys(statement.test)
                walk(statement.body, (*conditions, test), also)
                walk(statement.orelse, (*conditions, f"not ({test})"), also)
            elif isinstance(statement, ast.For):
                over = f"for {ast.unparse(statement.target)} in {ast.unparse(statement.iter)}"
                walk(statement.body, (*conditions, over), keys | _keys(statement.iter))
            elif isinstance(statement, ast.With | ast.Try | ast.FunctionDef):
                walk(statement.body, conditions, keys)
            else:
                flat.append((statement, conditions, keys))

    walk(function.body, (), frozenset())
    chosen: set[int] = set()
    need: set[str] = set()
    for i, (statement, _, keys) in enumerate(flat):
        for inner in ast.walk(statement):
            if isinstance(inner, ast.Call) and inner in targets:
                chosen.add(i)
                need |= keys | _keys(ast.parse(_shape(inner)))
    grown = True
    while grown:
        before = (len(chosen), len(need))
        for i, (statement, _, keys) in enumerate(flat):
            if i in chosen or not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
                continue
            left = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if set().union(*(_keys(t) for t in left)) & need and not _noise(statement.value):
                chosen.add(i)
                need |= keys | _keys(statement.value)
        grown = (len(chosen), len(need)) != before
    for i in sorted(chosen):
        statement, conditions, _ = flat[i]
        calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call) and n in targets]
        text = "; ".join(_shape(call) for call in calls) or ast.unparse(statement)
        yield " & ".join((*conditions, text))


def _noise(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).endswith(_NOISE)


def main(argv: list[str]) -> int:
    source = Source(Path(argv[0]))
    registry = source.registry()
    for architecture in argv[1:] or sorted(registry):
        print(architecture)
        for unit in units(source, registry[architecture]):
            print(f"  {unit.digest} {unit.module}:{unit.line} {unit.name}")
            for line in unit.statements if len(argv) > 1 else ():
                print(f"      {line}")
    return 0


if __name__ == "__main__":
    import sys

    raise SystemExit(main(sys.argv[1:]))
