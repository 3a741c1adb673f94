"""Facts about a release's models, read from its source text: nothing is imported, nothing is run.

    python -m attnfit.engines.vllm.learn.tables SOURCE_TREE RELEASE OUT.json

SOURCE_TREE holds `vllm/...`. The table says which architectures the release knows (in its own order), what each
model class declares about itself (hybrid, multimodal, pipeline parallel, ...), which model types have a config class
of vLLM's own, which are MLA, and what the per-architecture hooks do to the KV cache dtype.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

from attnfit.engines.vllm.learn.classes import ClassTree
from attnfit.engines.vllm.learn.quant_tables import quant_facts

#: flags a model class may carry -> how they are called here
FLAGS = {
    "is_hybrid": "hybrid",
    "is_attention_free": "attention_free",
    "has_inner_state": "inner_state",
    "has_noops": "noops",
    "supports_multimodal": "multimodal",
    "supports_multimodal_raw_input_only": "raw_input_only",
    "is_pooling_model": "pooling",
    "supports_hc_sp": "hc_sp",
    "supports_replayssm": "replayssm",
}

#: rules that not every release has -> where their words stand in a release that has them
CHECKS = {
    "kv_checkpoint": ("vllm/utils/torch_utils.py", "def resolve_kv_cache_dtype_string"),
    "kv_mismatch": ("vllm/config/vllm.py", "def _reject_mismatched_float_kv_cache"),
    "gqa_dcp": ("vllm/config/model.py", "Decode context parallelism for GQA/MQA requires"),
    "dcp_divides": ("vllm/config/parallel.py", "must be divisible by dcp_size"),
    "pcp_dcp": ("vllm/config/parallel.py", "valid DCP sizes are"),
    "nixl_dcp": ("vllm/config/vllm.py", "NIXL transfer parallel size"),
    "nvfp4_mla": ("vllm/config/vllm.py", "nvfp4 KV cache is not supported with MLA"),
    "mamba_align": ("vllm/model_executor/models/config.py", 'mamba_cache_mode = "align"'),
    "mamba_chunked": ("vllm/model_executor/models/config.py", "Chunked prefill is required for Mamba prefix caching"),
    "mamba_block": ("vllm/config/vllm.py", "--mamba-block-size can only be set with"),
    "lora": ("vllm/config/lora.py", "LoRA is not supported for"),
    "microbatches": ("vllm/config/vllm.py", "all2all backends on this "),
    "replayssm": ("vllm/config/vllm.py", "--use-replayssm is not supported for"),
    "online_fp8": ("vllm/config/quantization.py", "_ONLINE_SHORTHANDS"),
    "non_causal_mla": ("vllm/config/model.py", 'getattr(self.hf_text_config, "is_causal", True)'),
}


def _says(file: Path, words: str) -> bool:
    return file.exists() and words in file.read_text(encoding="utf-8")


def release_table(tree: Path, release: str) -> dict[str, Any]:
    """All tables of one release, with where each was read."""
    registry = "vllm/model_executor/models/registry.py"
    module = _parse(tree / registry)
    tables = _dicts(module)
    models = _merged(module, tables, "_VLLM_MODELS")
    classes = ClassTree(tree)
    archs: dict[str, Any] = {}
    for arch, target in models.items():
        where, name = target[0], target[1]
        mod = where if where.startswith("vllm.") else f"vllm.model_executor.models.{where}"
        archs[arch] = {"at": f"{mod}:{name}", **_model_info(classes, mod, name)}
    convertor = "vllm/transformers_utils/model_arch_config_convertor.py"
    arch_source = convertor if (tree / convertor).exists() else "vllm/config/model.py"
    out: dict[str, Any] = {
        "release": release,
        "source": f"{registry}, {arch_source}, vllm/model_executor/models/config.py "
        "(read by attnfit.engines.vllm.learn.tables)",
        "architectures": archs,
        "removed": dict(tables.get("_PREVIOUSLY_SUPPORTED_MODELS", {})),
        "plugins": dict(tables.get("_OOT_SUPPORTED_MODELS", {})),
        "config_classes": _config_registry(_parse(tree / "vllm/transformers_utils/config.py")),
        "mla_model_types": _strings_near(_parse(tree / arch_source), "is_deepseek_mla", "deepseek_v3"),
        "mm_prefix_model_types": max(
            (
                _strings_near(_parse(tree / f), "is_mm_prefix_lm", "gemma3")
                for f in (arch_source, "vllm/config/model.py")
            ),
            key=len,
        ),
        "float16_refused": sorted(
            _dicts(_parse(tree / "vllm/config/model.py")).get("_FLOAT16_NOT_SUPPORTED_MODELS", {})
        ),
        "cache_dtypes": _literal(_parse(tree / "vllm/config/cache.py"), "CacheDType"),
        "kv_hooks": _kv_hooks(tree),
        **quant_facts(tree, classes),
        "checks": [name for name, (file, words) in CHECKS.items() if _says(tree / file, words)],
        "transformers": _pin(tree),
    }
    if arch_source == convertor:
        out["convertors"] = _names(_parse(tree / convertor), "MODEL_ARCH_CONFIG_CONVERTORS")
    return out


def _model_info(classes: ClassTree, module: str, name: str) -> dict[str, Any]:
    """What the registry's _ModelInfo would say; `unresolved` where the class could not be followed."""
    found = classes.find(module, name)
    if found is None:
        return {"unresolved": True}
    chain = classes.mro(found)
    if chain is None:
        return {"unresolved": True}
    attrs, methods = classes.members(chain)
    on = [short for flag, short in FLAGS.items() if attrs.get(flag) is True]
    # since 0.13 the text side is called embed_input_ids, before that get_input_embeddings
    embeds = "embed_input_ids" in methods or "get_input_embeddings" in methods
    if "compute_logits" in methods and "forward" in methods and embeds:
        on.append("generates")
    forward = methods.get("forward", [])
    if (attrs.get("supports_pp") is True) and ("intermediate_tensors" in forward or "**" in forward):
        on.append("pp")
    if attrs.get("supports_lora") is True:
        on.append("lora")
    out: dict[str, Any] = {"is": on} if on else {}
    for key in ("attn_type", "default_seq_pooling_type", "default_tok_pooling_type", "score_type"):
        if isinstance(attrs.get(key), str):
            out[key] = attrs[key]
    if not classes.complete(chain):
        out["partial"] = True
    return out


# ------------------------------------------------------------------------------------------------ small readers
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _assigns(module: ast.Module) -> list[tuple[str, ast.expr]]:
    out = []
    for node in module.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            out.append((node.targets[0].id, node.value))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            out.append((node.target.id, node.value))
    return out


def _dicts(module: ast.Module) -> dict[str, dict[str, Any]]:
    """Module-level dict literals of plain values."""
    out = {}
    for name, value in _assigns(module):
        if isinstance(value, ast.Dict):
            try:
                out[name] = {
                    ast.literal_eval(k): ast.literal_eval(v)
                    for k, v in zip(value.keys, value.values, strict=True)
                    if k is not None
                }
            except ValueError:
                continue
    return out


def _merged(module: ast.Module, tables: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """`{**A, **B}` in order, as Python merges it."""
    value = dict(_assigns(module))[name]
    out: dict[str, Any] = {}
    if isinstance(value, ast.Dict):
        for key, part in zip(value.keys, value.values, strict=True):
            if key is None and isinstance(part, ast.Name):
                out.update(tables[part.id])
    return out


def _config_registry(module: ast.Module) -> dict[str, str]:
    """model_type -> vLLM's own config class."""
    value = dict(_assigns(module)).get("_CONFIG_REGISTRY")
    out: dict[str, str] = {}
    if isinstance(value, ast.Call):
        for kw in value.keywords:
            if kw.arg is not None and isinstance(kw.value, ast.Constant):
                out[kw.arg] = str(kw.value.value)
            elif kw.arg is None and isinstance(kw.value, ast.Dict):
                out.update(ast.literal_eval(kw.value))
    return out


def _literal(module: ast.Module, name: str) -> list[str]:
    """The members of a module-level `Literal[...]`."""
    value = dict(_assigns(module)).get(name)
    if not isinstance(value, ast.Subscript):
        return []
    return [n.value for n in ast.walk(value.slice) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def _names(module: ast.Module, name: str) -> dict[str, str]:
    """A module-level dict of string -> class name."""
    value = dict(_assigns(module)).get(name)
    if not isinstance(value, ast.Dict):
        return {}
    return {
        str(k.value): v.id
        for k, v in zip(value.keys, value.values, strict=True)
        if isinstance(k, ast.Constant) and isinstance(v, ast.Name)
    }


def _strings_near(module: ast.Module, function: str, must: str) -> list[str]:
    """The tuple of model types inside `function` that contains `must`: the longest one."""
    best: list[str] = []
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            for t in ast.walk(node):
                if isinstance(t, ast.Tuple | ast.List):
                    words = [e.value for e in t.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
                    if must in words and len(words) > len(best):
                        best = words
    return best


def _kv_hooks(tree: Path) -> dict[str, Any]:
    """architecture -> the edits its hook makes to cache_config.cache_dtype: [{"from", "to", "sm100", "needs"}].

    `from` is a value or a prefix ending in `*`; `sm100` restricts the edit to compute capability 10.x.
    """
    path = tree / "vllm/model_executor/models/config.py"
    module = _parse(path)
    bodies = {n.name: n for n in module.body if isinstance(n, ast.ClassDef)}
    out: dict[str, Any] = {}
    for arch, cls in _names(module, "MODELS_CONFIG_MAP").items():
        node = bodies.get(cls)
        entry: dict[str, Any] = {
            "class": cls,
            "where": f"vllm/model_executor/models/config.py:{node.lineno}" if node else "",
        }
        edits = _edits(node) if node is not None else []
        if edits:
            entry["edits"] = edits
        out[arch] = entry
    return out


def _edits(cls: ast.ClassDef) -> list[dict[str, Any]]:
    text = ast.unparse(cls)
    family = "is_device_capability_family(100)" in text
    needs = "index_topk" if "'index_topk', None) is None" in text else None
    edits: list[dict[str, Any]] = []
    for node in ast.walk(cls):
        if not isinstance(node, ast.If):
            continue
        test = ast.unparse(node.test)
        for stmt in node.body:
            if _sets_cache_dtype(stmt):
                assert isinstance(stmt, ast.Assign)
                assert isinstance(stmt.value, ast.Constant)
                edits.append(_edit(test, str(stmt.value.value), family, needs))
    for fn in cls.body:  # an assignment at the end of a function that returned early otherwise
        if isinstance(fn, ast.FunctionDef):
            for stmt in fn.body:
                if _sets_cache_dtype(stmt) and isinstance(stmt, ast.Assign) and isinstance(stmt.value, ast.Constant):
                    edits.append(_edit("cache_config.cache_dtype == 'auto'", str(stmt.value.value), family, needs))
    return edits


def _sets_cache_dtype(stmt: ast.stmt) -> bool:
    return (
        isinstance(stmt, ast.Assign)
        and ast.unparse(stmt.targets[0]).endswith("cache_config.cache_dtype")
        and isinstance(stmt.value, ast.Constant)
    )


def _edit(test: str, to: str, family: bool, needs: str | None) -> dict[str, Any]:
    before = "?"
    for node in ast.walk(ast.parse(test, mode="eval")):
        if isinstance(node, ast.Compare) and ast.unparse(node.left).endswith("cache_dtype"):
            right = node.comparators[0]
            if isinstance(right, ast.Constant):
                before = str(right.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("cache_dtype.startswith"):
            before = f"{ast.literal_eval(node.args[0])}*"
    out: dict[str, Any] = {"from": before, "to": to}
    if family:
        out["sm100"] = True
    if needs:
        out["needs"] = needs
    return out


def _pin(tree: Path) -> str:
    """The release's own requirement on transformers, e.g. `<5,>=4.56.0`."""
    for meta in tree.glob("*.dist-info/METADATA"):
        for line in meta.read_text(encoding="utf-8").splitlines():
            if line.startswith("Requires-Dist: transformers"):
                return line.removeprefix("Requires-Dist: transformers").split(";")[0].strip()
    return ""


def main(argv: list[str]) -> int:
    tree, release, out = Path(argv[0]), argv[1], Path(argv[2])
    out.write_text(json.dumps(release_table(tree, release), separators=(",", ":")) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
