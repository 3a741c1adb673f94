"""Facts about a release's quantisation methods, read from its source text: nothing is imported, nothing is run.

    python -m attnfit.engines.vllm.learn.quant_tables SOURCE_TREE TABLE.json     # facts of an existing table anew

Of each method's config class: minimum capability, activation dtypes, the checkpoint keys that it cannot do without and
the values that it takes. What a class does with them is `engines/vllm/launch/quant_config.py`, by the class's name.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

from attnfit.engines.vllm.learn.classes import Class, ClassTree

_PACKAGE = "vllm.model_executor.layers.quantization"
_FOLDER = "vllm/model_executor/layers/quantization"
#: class-level constants that say which values a method takes
_VALUES = ("TYPE_MAP", "SUPPORTED_BITS", "SUPPORTED_DTYPES", "SUPPORTED_FORMATS", "SUPPORTED_BACKENDS")
#: rules that not every release has -> where their words stand in a release that has them
_CHECKS = {
    "gptq_desc_act": (f"{_FOLDER}/utils/gptq_utils.py", "def normalize_and_validate_gptq_desc_act"),
    "modelopt_any": (f"{_FOLDER}/modelopt.py", '.startswith("modelopt")'),
    "modelopt_legacy": ("vllm/transformers_utils/model_arch_config_convertor.py", "is_legacy_modelopt"),
    "fp_quant_pseudo": (f"{_FOLDER}/fp_quant.py", "Pseudoquantization is not supported"),
    "modelopt_fp8_algos": (f"{_FOLDER}/modelopt.py", "Unsupported ModelOpt FP8 quant_algo for vLLM"),
    "modelopt_fp4_algos": (f"{_FOLDER}/modelopt.py", "Unsupported ModelOpt NVFP4 quant_algo"),
    "ct_actorder": (
        f"{_FOLDER}/compressed_tensors/compressed_tensors.py",
        "Compressed-tensors group/dynamic activation",
    ),
    "ct_needs_groups": (
        f"{_FOLDER}/compressed_tensors/compressed_tensors.py",
        '\n        for k, v in config["config_groups"].items()',  # not behind a condition
    ),
    "awq_batch_invariant": (f"{_FOLDER}/awq_marlin.py", "VLLM_BATCH_INVARIANT"),
}


def quant_facts(tree: Path, classes: ClassTree) -> dict[str, Any]:
    """The quantisation part of a release's table (`learn.tables`)."""
    module = _parse(tree / _FOLDER / "__init__.py")
    return {
        "quantization": _literal(module, "QuantizationMethods"),
        "deprecated_quantization": _deprecated(module),
        "modelopt_algos": _modelopt_algos(tree),
        "modelopt_producer_algos": _producer_algos(tree),
        "quant_checks": [name for name, (file, words) in _CHECKS.items() if _says(tree / file, words)],
        "quant_classes": _quant_classes(module, classes),
    }


def _says(file: Path, words: str) -> bool:
    return file.exists() and words in file.read_text(encoding="utf-8")


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _constant(module: ast.Module, name: str) -> ast.expr | None:
    """What a module-level name is set to."""
    for node in module.body:
        if isinstance(node, ast.Assign) and [ast.unparse(t) for t in node.targets] == [name]:
            return node.value
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name:
            return node.value
    return None


def _literal(module: ast.Module, name: str) -> list[str]:
    """The members of a module-level `Literal[...]`."""
    value = _constant(module, name)
    if not isinstance(value, ast.Subscript):
        return []
    return [n.value for n in ast.walk(value.slice) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def _deprecated(module: ast.Module) -> list[str]:
    value = _constant(module, "DEPRECATED_QUANTIZATION_METHODS")
    return [] if value is None else [str(word) for word in ast.literal_eval(value)]


def _modelopt_algos(tree: Path) -> list[str]:
    """`QUANT_ALGOS`, in the release's order; since 0.30 it unpacks the keys of another table."""
    module = _parse(tree / _FOLDER / "modelopt.py")
    value = _constant(module, "QUANT_ALGOS")
    out: list[str] = []
    for element in value.elts if isinstance(value, ast.List) else ():
        if isinstance(element, ast.Starred):
            table = _constant(module, ast.unparse(element.value))
            keys = table.keys if isinstance(table, ast.Dict) else ()
            out += [str(key.value) for key in keys if isinstance(key, ast.Constant)]
        elif isinstance(element, ast.Constant):
            out.append(str(element.value))
    return out


def _producer_algos(tree: Path) -> dict[str, str]:
    """ModelOpt algorithm -> method, where the checkpoint names its producer instead of a method."""
    for file, function in (
        ("vllm/transformers_utils/model_arch_config_convertor.py", "_normalize_quantization_config"),
        ("vllm/config/model.py", "_parse_quant_hf_config"),
    ):
        if not (tree / file).exists():
            continue
        for node in ast.walk(_parse(tree / file)):
            if isinstance(node, ast.FunctionDef) and node.name == function:
                return {word: method for test in ast.walk(node) for word, method in _assigned(test)}
    return {}


def _assigned(node: ast.AST) -> list[tuple[str, str]]:
    """`if quant_algo in {...}: quant_cfg["quant_method"] = "..."` as pairs."""
    if not (isinstance(node, ast.If) and "quant_algo" in ast.unparse(node.test)):
        return []
    first = node.body[0]
    if not (isinstance(first, ast.Assign) and isinstance(first.value, ast.Constant)):
        return []
    words = [n.value for n in ast.walk(node.test) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [(word, str(first.value.value)) for word in words]


def _quant_classes(module: ast.Module, classes: ClassTree) -> dict[str, Any]:
    """quantisation method -> its config class."""
    out: dict[str, Any] = {}
    for node in ast.walk(module):
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if not (isinstance(target, ast.Name) and target.id == "method_to_config" and isinstance(node, ast.AnnAssign)):
            continue
        if not isinstance(node.value, ast.Dict):
            continue
        imports = _inner_imports(module)
        for key, value in zip(node.value.keys, node.value.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Name):
                out[str(key.value)] = _quant_class(classes, imports, value.id)
    return out


def _inner_imports(module: ast.Module) -> dict[str, tuple[str, str]]:
    out: dict[str, tuple[str, str]] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom):
            base = f"{_PACKAGE}.{node.module}" if node.level else (node.module or "")
            for a in node.names:
                out.setdefault(a.asname or a.name, (base, a.name))
    return out


def _quant_class(classes: ClassTree, imports: dict[str, tuple[str, str]], name: str) -> dict[str, Any]:
    """min_capability (75 means 7.5), dtypes, files, keys (each a list of spellings) and the values it takes."""
    found = classes.find(*imports[name]) if name in imports else None
    chain = classes.mro(found) if found is not None else None
    if chain is None:
        return {"class": name}
    out: dict[str, Any] = {"class": name, "at": f"{chain[0][0]}:{chain[0][1]}"}
    low = classes.returned(chain, "get_min_capability")
    if isinstance(low, ast.Constant):
        out["min_capability"] = low.value
    kinds = classes.returned(chain, "get_supported_act_dtypes")
    if isinstance(kinds, ast.List):
        names = {"half": "float16"}
        words = [ast.unparse(e).removeprefix("torch.") for e in kinds.elts]
        out["dtypes"] = [names.get(w, w) for w in words]
    files = classes.returned(chain, "get_config_filenames")
    if isinstance(files, ast.List):
        out["files"] = ast.literal_eval(files)
    keys = _keys(classes, chain)
    if keys:
        out["keys"] = keys
    if values := _values(classes, chain[0]):
        out["values"] = values
    return out


def _keys(classes: ClassTree, chain: list[Class]) -> list[list[str]]:
    """The spellings of each key that `from_config` reads without a default, in its order, whatever other keys say."""
    method = classes.method(chain, "from_config")
    out: list[list[str]] = []
    for call in _straight(method.body if method is not None else []):
        if ast.unparse(call.func) == "cls.get_from_keys" and len(call.args) == 2:
            try:
                out.append([str(word) for word in ast.literal_eval(call.args[1])])
            except ValueError:
                continue
    return out


def _straight(body: list[ast.stmt]) -> list[ast.Call]:
    """Calls in the order of the text, outside branches, loops and functions within."""
    out: list[ast.Call] = []
    for stmt in body:
        if isinstance(stmt, ast.Assign | ast.Expr | ast.Return | ast.AnnAssign):
            calls = [node for node in ast.walk(stmt) if isinstance(node, ast.Call)]
            out += sorted(calls, key=lambda call: (call.lineno, call.col_offset))
    return out


def _values(classes: ClassTree, cls: Class) -> dict[str, Any]:
    """The constants of `_VALUES` in a class's own body, as sorted or listed plain values."""
    out: dict[str, Any] = {}
    for stmt in classes.body(cls):
        if not (isinstance(stmt, ast.Assign) and isinstance(stmt.targets[0], ast.Name)):
            continue
        name = stmt.targets[0].id
        if name in _VALUES and isinstance(stmt.value, ast.Dict):
            out[name] = [ast.literal_eval(key) for key in stmt.value.keys if key is not None]
        elif name in _VALUES and isinstance(stmt.value, ast.Set | ast.List | ast.Tuple):
            out[name] = [ast.literal_eval(element) for element in stmt.value.elts]
    return out


def main(argv: list[str]) -> int:
    tree, path = Path(argv[0]), Path(argv[1])
    table = json.loads(path.read_text(encoding="utf-8"))
    table.update(quant_facts(tree, ClassTree(tree)))
    path.write_text(json.dumps(table, separators=(",", ":")) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
