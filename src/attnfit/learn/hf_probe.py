"""What a release's config classes make of a config.json, written down as data.

Run by an interpreter that has the release's transformers (and vLLM, for its own config classes); it needs neither a
GPU nor model code from a hub:

    PYTHONPATH=src VENV/bin/python -m attnfit.learn.hf_probe transformers OUT.json
    PYTHONPATH=src VENV/bin/python -m attnfit.learn.hf_probe vllm OUT.json

Every class is constructed many times with one input changed, and each attribute it sets by itself is explained by one
rule of a small closed vocabulary (see `engines/vllm/launch/hf.py`, which evaluates them). What no rule explains is
written as `{"op": "?"}`: whoever reads that attribute gets "unknown", never a guess.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

Rule = dict[str, Any]

_SKIP = {
    "transformers_version", "return_dict", "output_hidden_states", "chunk_size_feed_forward", "id2label", "label2id",
    "problem_type", "architectures", "ignore_keys_at_rope_validation", "base_model_tp_plan", "base_model_pp_plan",
    "base_model_ep_plan", "base_model_fsdp_plan", "rope_parameters", "rope_scaling", "dtype", "torch_dtype",
}  # fmt: skip
_BASE = "PreTrainedConfig"


def _plain(value: Any) -> bool:
    """JSON-able scalars and lists of scalars, short enough to keep."""
    if value is None or isinstance(value, bool | int | str):
        return True
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    if isinstance(value, list | tuple):
        return all(_plain(v) for v in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and _plain(v) for k, v in value.items())
    return False


def _norm(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_norm(v) for v in value]
    return value


class Probe:
    """One config class, its declared inputs, and how to build it."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.inputs: dict[str, Any] = {}
        self.kinds: dict[str, str] = {}
        own_init = "__init__" in cls.__dict__ and not _is_wrapped(cls)
        if dataclasses.is_dataclass(cls) and not own_init:
            for f in dataclasses.fields(cls):
                if f.name in _SKIP or f.name.startswith("_"):
                    continue
                default = f.default
                if default is dataclasses.MISSING:
                    default = f.default_factory() if f.default_factory is not dataclasses.MISSING else None
                self.inputs[f.name] = _norm(default)
                self.kinds[f.name] = _kinds(f.type)
        else:
            for name, p in inspect.signature(cls).parameters.items():
                if name in ("self", *_SKIP) or p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
                    continue
                self.inputs[name] = _norm(p.default) if p.default is not p.empty else None

    def build(self, **kwargs: Any) -> dict[str, Any] | None:
        """Attributes after construction, or None where the class refuses."""
        try:
            return {k: _norm(v) for k, v in vars(self.cls(**kwargs)).items()}
        except Exception:
            return None


def _is_wrapped(cls: type) -> bool:
    """transformers 5 wraps a dataclass' own __init__; a class with a hand-written one is not wrapped."""
    return hasattr(vars(cls).get("__init__"), "__wrapped__")


def _kinds(annotation: Any) -> str:
    """The types a strict field takes, one letter each: i f b s n l d, or * for anything else."""
    text = annotation if isinstance(annotation, str) else str(annotation)
    out = ""
    for word, letter in (
        ("int", "i"), ("float", "f"), ("bool", "b"), ("str", "s"), ("None", "n"), ("list", "l"), ("dict", "d"),
    ):  # fmt: skip
        if word in text:
            out += letter
    known = {"class", "int", "float", "bool", "str", "none", "nonetype", "list", "dict", "|", "optional", "typing"}
    words = text.replace("[", " ").replace("]", " ").replace("|", " ").replace("'", " ").replace("<", " ")
    rest = [w for w in words.replace(">", " ").replace(",", " ").replace(".", " ").split() if w.lower() not in known]
    return "*" if rest or not out else out


def _variants(value: Any) -> list[Any]:
    """Other values of the same kind to try in place of `value`."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value * 2 if value else 3, value * 3 if value else 7]
    if isinstance(value, float):
        return [value + 0.25]
    return []


def probe_class(cls: type) -> dict[str, Any] | None:
    """The table entry of one class, or None where it cannot be built without arguments."""
    p = Probe(cls)
    base = p.build()
    if base is None:
        return None
    entry: dict[str, Any] = {"where": cls.__module__.replace(".", "/") + ".py"}
    amap = dict(getattr(cls, "attribute_map", {}) or {})
    subs = _subs(cls, base)
    entry["defaults"] = {k: v for k, v in p.inputs.items() if _plain(v) and k not in subs and len(json.dumps(v)) < 400}
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
        entry["rope"] = {k: v for k, v in rope.items() if _plain(v)}
    entry["rules"] = _rules(p, base, subs, amap)
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
    out: dict[str, Any] = {}
    spec = getattr(cls, "sub_configs_defaults", None) or {}
    for key, s in spec.items():
        auto = not (inspect.isclass(s.config_class) and hasattr(s.config_class, "to_dict"))
        out[key] = {"type": s.model_type, "auto": auto, "optional": bool(s.optional)}
        if not auto:
            out[key]["class"] = s.config_class.__name__
    nested = getattr(cls, "sub_configs", None)
    for key, c in (nested if isinstance(nested, dict) else {}).items():
        if key not in out:
            auto = not hasattr(c, "to_dict")
            out[key] = {"type": None if auto else c.model_type, "auto": auto, "optional": True, "class": c.__name__}
    for key, value in base.items():
        if hasattr(value, "to_dict") and hasattr(value, "model_type") and key not in out:
            out[key] = {"type": value.model_type, "auto": False, "optional": True, "class": type(value).__name__}
    return out


def _rules(p: Probe, base: dict[str, Any], subs: dict[str, Any], amap: dict[str, str]) -> dict[str, Any]:
    """attribute -> {"missing": rule, "null": rule, "given": rule}, only where it is not simply the input."""
    names = [
        n for n in {**base, **p.inputs}
        if n not in _SKIP and n not in subs and not n.startswith("_") and n not in amap
    ]  # fmt: skip
    out: dict[str, Any] = {}
    for name in names:
        rules: dict[str, Rule] = {}
        declared = name in p.inputs
        if not declared or base.get(name) != p.inputs[name]:
            rules["missing"] = _explain(p, name, {}, base)
        if not declared:  # given in config.json: kept, or overwritten?
            rules |= _given(p, name, base.get(name))
        else:
            if p.inputs[name] is not None or "missing" in rules:
                null = p.build(**{name: None})
                if null is not None and null.get(name) is not None:
                    rules["null"] = _explain(p, name, {name: None}, null)
            rules |= _given(p, name, p.inputs[name] if p.inputs[name] is not None else base.get(name))
        if rules:
            out[name] = rules
    return out


def _given(p: Probe, name: str, like: Any) -> dict[str, Rule]:
    """How a value given in config.json survives: {} when kept as it is."""
    values = _variants(like)
    if isinstance(like, list) and like and all(isinstance(x, str) for x in like):
        values = [list(reversed(like))] if list(reversed(like)) != like else []
    for value in values:
        got = p.build(**{name: value})
        if got is None:
            continue
        if got.get(name) != value:
            return {"given": _explain(p, name, {name: value}, got)}
        return {}
    return {}


def _explain(p: Probe, name: str, fixed: dict[str, Any], now: dict[str, Any]) -> Rule:
    """The rule behind attribute `name` when the inputs `fixed` are given."""
    value = now.get(name)
    if hasattr(value, "to_dict"):
        return {"op": "?"}
    needs = _needs(p, name, fixed, now)
    for flag in [k for k in needs if isinstance(p.inputs[k], bool)]:
        # an input may take part only behind a switch
        flipped = {**fixed, flag: not p.inputs[flag]}
        after = p.build(**flipped)
        if after is not None:
            needs += [k for k in _needs(p, name, flipped, after) if k not in needs]
    if not needs:
        return {"op": "const", "v": value} if _plain(value) else {"op": "?"}
    samples = _samples(p, name, fixed, needs)
    if len(samples) < 4:
        return {"op": "?", "from": needs}
    own = fixed.get(name) if name in fixed else p.inputs.get(name)
    for rule in _candidates(name, needs, samples):
        if all(evaluate(rule, {name: own, **inputs}) == got for inputs, got in samples):
            return rule
    return {"op": "?", "from": needs}


def _needs(p: Probe, name: str, fixed: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The inputs that change attribute `name` when only they are changed."""
    value = now.get(name)
    needs: list[str] = []
    for key, default in p.inputs.items():
        if key in fixed or key == name:
            continue
        for other in _variants(default) + _choices(default, now.get(key)):
            got = p.build(**fixed, **{key: other})
            if got is not None and got.get(name) != value:
                needs.append(key)
                break
    return needs


def _choices(default: Any, now: Any) -> list[Any]:
    """Inputs that default to None take part through the value the class gave them."""
    if default is None and isinstance(now, int) and not isinstance(now, bool):
        return [now * 2 if now else 3]
    return []


# products of small primes keep divisions exact in some samples and inexact in others
_STEPS = [(1, 1), (2, 1), (1, 2), (3, 2), (2, 3), (4, 1), (1, 4), (5, 2), (1, 0), (2, 0), (3, 1), (4, 3)]


def _samples(p: Probe, name: str, fixed: dict[str, Any], needs: list[str]) -> list[tuple[dict[str, Any], Any]]:
    out = []
    now = p.build(**fixed) or {}
    flags = [k for k in needs if isinstance(p.inputs[k], bool)]
    for step in _STEPS:
        for on in (False, True) if flags else (False,):
            change: dict[str, Any] = {}
            for i, key in enumerate(needs):
                like = p.inputs[key] if p.inputs[key] is not None else now.get(key)
                if isinstance(like, bool):
                    change[key] = on
                elif isinstance(like, int):
                    change[key] = max(like * step[i % 2], 1)
            got = p.build(**{**fixed, **change})
            if got is not None:
                seen = {k: (change.get(k) if k in change else got.get(k)) for k in needs}
                out.append((seen, got.get(name)))
    return out


def _candidates(name: str, needs: list[str], samples: list[tuple[dict[str, Any], Any]]) -> list[Rule]:
    """Every rule of the vocabulary over the inputs that matter."""
    first = samples[0][1]
    out: list[Rule] = [{"op": "copy", "a": a} for a in needs]
    for a in (*needs, name):
        for flag in needs:
            if flag != a:
                out += [{"op": "if", "flag": flag, "a": a}, {"op": "unless", "flag": flag, "a": a}]
    for a in needs:
        for b in needs:
            if a != b:
                out += [{"op": op, "a": a, "b": b} for op in ("floordiv", "add", "mul", "truediv")]
        out += [{"op": "scale", "a": a, "k": k} for k in (2, 3, 4)]
        out += [{"op": "ceildiv", "a": a, "k": k} for k in (2, 4, 8, 16)]
        for b in needs:
            for c in needs:
                if len({a, b, c}) == 3:
                    out.append({"op": "muldiv", "a": a, "b": b, "c": c})
        if isinstance(first, list):
            out += _list_candidates(a, needs, samples)
    return out


def _list_candidates(n: str, needs: list[str], samples: list[tuple[dict[str, Any], Any]]) -> list[Rule]:
    items = [x for _, got in samples if isinstance(got, list) for x in got]
    if not all(_plain(x) for x in items):
        return []
    words = sorted({json.dumps(x) for x in items})
    kinds = [json.loads(w) for w in words]
    if len(kinds) == 1:
        return [{"op": "repeat", "n": n, "v": kinds[0]}]
    if len(kinds) != 2:
        return []
    out: list[Rule] = []
    others = [b for b in needs if b != n]
    for hit, miss in (kinds, kinds[::-1]):
        two = {"n": n, "hit": hit, "miss": miss}
        for offset in (0, 1):
            out += [{"op": "every", **two, "k": k, "offset": offset} for k in (2, 3, 4, 5, 6, 7, 8)]
            out += [{"op": "every", **two, "b": b, "offset": offset} for b in others]
        out += [{"op": "head", **two, "b": b} for b in others]
        out += [{"op": "head", **two, "k": k} for k in range(1, 9)]
        out += [{"op": "tail_if", **two, "b": b, "flag": f} for b in others for f in others if b != f]
    return out


def evaluate(rule: Rule, inputs: dict[str, Any]) -> Any:
    """The value a rule gives for these inputs; a sentinel that equals nothing where it does not apply.

    The same meaning as `attnfit.engines.vllm.launch.hf.evaluate` (which raises Unknown instead).
    """
    from attnfit.engines.vllm.launch.rules import apply

    try:
        return apply(rule, inputs)
    except Exception:
        return _NOTHING


_NOTHING = object()


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
    collect: Callable[[], dict[str, type]]
    collect = _vllm_classes if what == "vllm" else _transformers_classes
    data = probe_all(collect())
    source = f"transformers=={transformers.__version__}"
    if what == "vllm":
        from importlib.metadata import version

        source = f"vllm=={version('vllm')} with {source}"
    data = {"source": source, "how": "constructed and probed by attnfit.learn.hf_probe", **data}
    if what == "transformers":
        data |= _auto_tables()
    with open(out, "w") as f:
        f.write(_lines(data))
    return 0


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
