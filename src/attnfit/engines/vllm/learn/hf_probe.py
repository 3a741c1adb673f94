"""What a release's config classes make of a config.json, written down as data.

Run by an interpreter that has the release's transformers (and vLLM, for its own config classes); it needs neither a
GPU nor model code from a hub:

    PYTHONPATH=src VENV/bin/python -m attnfit.engines.vllm.learn.hf_probe transformers OUT.json
    PYTHONPATH=src VENV/bin/python -m attnfit.engines.vllm.learn.hf_probe vllm OUT.json

Every class is constructed many times with one input changed, and each attribute it sets by itself is explained by one
rule of a small closed vocabulary (see `hf/config.py`, which evaluates them). What no rule explains is
written as `{"op": "?"}`: whoever reads that attribute gets "unknown", never a guess.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

from attnfit.engines.vllm.learn.hf_explain import Probe, explain_all, plain

_BASE = "PreTrainedConfig"


def probe_class(cls: type) -> dict[str, Any] | None:
    """The table entry of one class, or None where it cannot be built without arguments."""
    p = Probe(cls)
    base = p.build()
    if base is None:
        return None
    entry: dict[str, Any] = {"where": cls.__module__.replace(".", "/") + ".py"}
    amap = dict(getattr(cls, "attribute_map", {}) or {})
    subs = _subs(cls, base)
    entry["defaults"] = {k: v for k, v in p.inputs.items() if plain(v) and k not in subs and len(json.dumps(v)) < 400}
    if amap:
        entry["map"] = amap
    if subs:
        entry["subs"] = subs
    strict = {k: v for k, v in p.kinds.items() if v != "*" and k not in subs}
    if getattr(cls, "__class_validators__", None) is not None and strict:
        entry["kinds"] = strict
    checks = sorted(
        v.__name__ for v in getattr(cls, "__class_validators__", []) if _BASE not in getattr(v, "__qualname__", _BASE)
    )
    if checks:
        entry["checks"] = checks
    opaque = [k for k, v in p.inputs.items() if k not in subs and k not in entry["defaults"]]
    if opaque:
        entry["opaque"] = opaque
    theta = getattr(cls, "default_theta", None)
    if theta is not None and theta != 10_000.0:
        entry["theta"] = theta
    rope = base.get("rope_parameters")
    if isinstance(rope, dict) and rope:
        entry["rope"] = {k: v for k, v in rope.items() if plain(v)}
    entry["rules"] = explain_all(p, base, subs, amap)
    entry |= _text_side(p, subs)
    return entry


def _text_side(p: Probe, subs: dict[str, Any]) -> dict[str, Any]:
    """`text`: where get_text_config() finds the text model; `flat`: a text sub-config fed from top-level keys."""
    out: dict[str, Any] = {}
    try:
        made = p.cls()
        text = made.get_text_config()
    except Exception:
        return out
    path = _path_to(made, text, 0)
    if path is not None:
        out["text"] = path
    for key in subs:
        sub = getattr(made, key, None)
        if sub is None or not hasattr(sub, "hidden_size"):
            continue
        try:
            moved = getattr(p.cls(hidden_size=sub.hidden_size * 2), key)
            if moved.hidden_size == sub.hidden_size * 2 and "hidden_size" not in p.inputs:
                out["flat"] = key
        except Exception:
            continue
    return out


def _path_to(node: Any, target: Any, depth: int) -> str | None:
    if node is target:
        return ""
    if depth > 2:
        return None
    for key, value in vars(node).items():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            rest = _path_to(value, target, depth + 1)
            if rest is not None:
                return f"{key}.{rest}".rstrip(".")
    return None


def _subs(cls: type, base: dict[str, Any]) -> dict[str, Any]:
    """Nested configs: how the class of each is chosen, and what stands there when config.json has no such part.

    `optional`: nothing; `init`: the class with these keys; `made`: something the class makes in code of its own.
    """
    out: dict[str, Any] = {}
    spec = getattr(cls, "sub_configs_defaults", None) or {}
    for key, s in spec.items():
        auto = not (inspect.isclass(s.config_class) and hasattr(s.config_class, "to_dict"))
        out[key] = {"type": s.model_type, "auto": auto, "optional": bool(s.optional)}
        if not auto:
            out[key]["class"] = s.config_class.__name__
        if s.init_kwargs:
            out[key] |= {"init": s.init_kwargs} if plain(s.init_kwargs) else {"made": True}
    nested = getattr(cls, "sub_configs", None)
    for key, c in (nested if isinstance(nested, dict) else {}).items():
        if key not in out:
            auto = not hasattr(c, "to_dict")
            out[key] = {"type": None if auto else c.model_type, "auto": auto, "class": c.__name__}
            out[key] |= {"optional": True} if base.get(key) is None else {"made": True}
    for key, value in base.items():
        if hasattr(value, "to_dict") and hasattr(value, "model_type") and key not in out:
            out[key] = {"type": value.model_type, "auto": False, "made": True, "class": type(value).__name__}
    return out


def probe_all(classes: dict[str, type]) -> dict[str, Any]:
    """model_type -> class for a whole registry, plus every class reached through sub-configs."""
    table: dict[str, Any] = {}
    todo: list[type] = list(classes.values())
    types = {mt: c.__name__ for mt, c in classes.items()}
    skipped: list[str] = []
    while todo:
        cls = todo.pop()
        if cls.__name__ in table or cls.__name__ in skipped:
            continue
        entry = probe_class(cls)
        if entry is None:
            skipped.append(cls.__name__)
        else:
            table[cls.__name__] = entry
        nested = getattr(cls, "sub_configs", None)
        if isinstance(nested, dict):
            todo += [c for c in nested.values() if hasattr(c, "to_dict")]
        try:
            made = cls()
            todo += [type(v) for v in vars(made).values() if hasattr(v, "to_dict") and hasattr(v, "model_type")]
        except Exception:
            pass
    return {"model_types": dict(sorted(types.items())), "classes": dict(sorted(table.items())),
            "unprobed": sorted(skipped)}  # fmt: skip


def main(argv: list[str]) -> int:
    """`transformers OUT` or `vllm OUT`; writes the table with its provenance."""
    logging.disable(logging.CRITICAL)
    what, out = argv
    transformers = importlib.import_module("transformers")
    if what == "auto":  # only what the auto classes know, into a table that exists
        with open(out) as f:
            data = json.load(f) | _auto_tables()
        with open(out, "w") as f:
            f.write(_lines(data))
        return 0
    if what.startswith("subs-"):  # only the nested configs, into a table that exists
        with open(out) as f:
            data = json.load(f)
        _refresh_subs(data, _vllm_classes() if what == "subs-vllm" else _transformers_classes())
        with open(out, "w") as f:
            f.write(_lines(data))
        return 0
    collect: Callable[[], dict[str, type]]
    collect = _vllm_classes if what == "vllm" else _transformers_classes
    data = probe_all(collect())
    source = f"transformers=={transformers.__version__}"
    if what == "vllm":
        from importlib.metadata import version

        source = f"vllm=={version('vllm')} with {source}"
    data = {"source": source, "how": "constructed and probed by attnfit.engines.vllm.learn.hf_probe", **data}
    if what == "transformers":
        data |= _auto_tables()
    with open(out, "w") as f:
        f.write(_lines(data))
    return 0


def _refresh_subs(data: dict[str, Any], classes: dict[str, type]) -> None:
    todo = list(classes.values())
    seen: set[str] = set()
    while todo:
        cls = todo.pop()
        if cls.__name__ in seen or cls.__name__ not in data["classes"]:
            continue
        seen.add(cls.__name__)
        base = Probe(cls).build() or {}
        todo += [type(v) for v in base.values() if hasattr(v, "to_dict") and hasattr(v, "model_type")]
        subs = _subs(cls, base)
        if subs:
            data["classes"][cls.__name__]["subs"] = subs


def _lines(data: dict[str, Any]) -> str:
    """Compact JSON, one class a line: small, and a change shows as a small diff."""
    dump = functools.partial(json.dumps, separators=(",", ":"))
    head = ",\n".join(f"{dump(k)}:{dump(v)}" for k, v in data.items() if k != "classes")
    body = ",\n".join(f"{dump(k)}:{dump(v)}" for k, v in data["classes"].items())
    return "{" + head + ',\n"classes":{\n' + body + "\n}}\n"


def _transformers_classes() -> dict[str, type]:
    mapping = importlib.import_module("transformers").CONFIG_MAPPING
    out: dict[str, type] = {}
    for mt in mapping:
        try:
            out[mt] = mapping[mt]
        except Exception:
            continue
    return out


def _auto_tables() -> dict[str, Any]:
    """model_type -> base model class name, used where config.json names no architecture."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    generation_class = importlib.import_module("transformers").GenerationConfig
    names: set[str] = set()
    for key, mapping in vars(auto).items():
        if key.endswith("_MAPPING_NAMES") and hasattr(mapping, "values"):
            for value in mapping.values():
                names.update([value] if isinstance(value, str) else value)
    try:
        generation = sorted(generation_class._get_default_generation_params())
    except AttributeError:
        generation = []
    return {
        "base_models": {k: v for k, v in auto.MODEL_MAPPING_NAMES.items() if isinstance(v, str)},
        "generation_keys": generation,
        "model_classes": sorted(names),
    }


def _vllm_classes() -> dict[str, type]:
    registry = importlib.import_module("vllm.transformers_utils.config")._CONFIG_REGISTRY
    out: dict[str, type] = {}
    for mt in registry:
        try:
            out[mt] = registry[mt]
        except Exception:
            continue
    return out


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
