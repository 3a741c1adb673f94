"""Explain what a config class computes by itself: change one input at a time, then try every rule of the vocabulary.

Part of `attnfit.engines.vllm.learn.hf_probe`.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any

Rule = dict[str, Any]

SKIP = {
    "transformers_version", "return_dict", "output_hidden_states", "chunk_size_feed_forward", "id2label", "label2id",
    "problem_type", "architectures", "ignore_keys_at_rope_validation", "base_model_tp_plan", "base_model_pp_plan",
    "base_model_ep_plan", "base_model_fsdp_plan", "rope_parameters", "rope_scaling", "dtype", "torch_dtype",
}  # fmt: skip


def plain(value: Any) -> bool:
    """JSON-able scalars and lists of scalars, short enough to keep."""
    if value is None or isinstance(value, bool | int | str):
        return True
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    if isinstance(value, list | tuple):
        return all(plain(v) for v in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and plain(v) for k, v in value.items())
    return False


def norm(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [norm(v) for v in value]
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
                if f.name in SKIP or f.name.startswith("_"):
                    continue
                default = f.default
                if default is dataclasses.MISSING:
                    default = f.default_factory() if f.default_factory is not dataclasses.MISSING else None
                self.inputs[f.name] = norm(default)
                self.kinds[f.name] = _kinds(f.type)
        else:
            for name, p in inspect.signature(cls).parameters.items():
                if name in ("self", *SKIP) or p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
                    continue
                self.inputs[name] = norm(p.default) if p.default is not p.empty else None

    def build(self, **kwargs: Any) -> dict[str, Any] | None:
        """Attributes after construction, or None where the class refuses."""
        try:
            return {k: norm(v) for k, v in vars(self.cls(**kwargs)).items()}
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


def explain_all(p: Probe, base: dict[str, Any], subs: dict[str, Any], amap: dict[str, str]) -> dict[str, Any]:
    """attribute -> {"missing": rule, "null": rule, "given": rule}, only where it is not simply the input."""
    names = [
        n for n in {**base, **p.inputs}
        if n not in SKIP and n not in subs and not n.startswith("_") and n not in amap
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
        return {"op": "const", "v": value} if plain(value) else {"op": "?"}
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
    if not all(plain(x) for x in items):
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

    The same meaning as `attnfit.hf.config` (which raises Unknown instead).
    """
    from attnfit.hf.rules import apply

    try:
        return apply(rule, inputs)
    except Exception:
        return _NOTHING


_NOTHING = object()
