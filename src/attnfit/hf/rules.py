"""The closed vocabulary in which a config class' own arithmetic is written down (by `learn.hf_probe`).

A rule is `{"op": ..., inputs by name}`. Field names are attributes of the same config.
"""

from __future__ import annotations

from typing import Any

Rule = dict[str, Any]


class NoRule(Exception):
    """The rule does not say what the value is (or not for these inputs)."""


def _int(inputs: dict[str, Any], key: str) -> int:
    value = inputs[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise NoRule(f"{key} is not a whole number")
    return value


def apply(rule: Rule, inputs: dict[str, Any]) -> Any:
    """The attribute's value. Raises NoRule, KeyError (an input is missing) or ZeroDivisionError."""
    op = rule["op"]
    if op == "const":
        return rule["v"]
    if op == "copy":
        return inputs[rule["a"]]
    if op == "if":
        return inputs[rule["a"]] if inputs[rule["flag"]] else None
    if op == "unless":
        return None if inputs[rule["flag"]] else inputs[rule["a"]]
    if op in _ARITHMETIC:
        return _ARITHMETIC[op](_int(inputs, rule["a"]), _int(inputs, rule["b"]))
    if op == "muldiv":
        return _int(inputs, rule["a"]) * _int(inputs, rule["b"]) // _int(inputs, rule["c"])
    if op == "scale":
        return _int(inputs, rule["a"]) * int(rule["k"])
    if op == "ceildiv":
        return -(-_int(inputs, rule["a"]) // int(rule["k"]))
    if op in _LISTS:
        n = _int(inputs, rule["n"])
        if not 0 <= n <= 100_000:
            raise NoRule(f"{rule['n']} out of range")
        return [_LISTS[op](rule, inputs, i) for i in range(n)]
    raise NoRule(f"the config class computes it from {', '.join(rule.get('from', [])) or 'its inputs'}")


_ARITHMETIC = {
    "floordiv": lambda a, b: a // b,
    "truediv": lambda a, b: a / b,
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
}


def _every(rule: Rule, inputs: dict[str, Any], i: int) -> Any:
    k = int(rule["k"]) if "k" in rule else _int(inputs, rule["b"])
    return rule["hit"] if (i + int(rule["offset"])) % k == 0 else rule["miss"]


def _head(rule: Rule, inputs: dict[str, Any], i: int) -> Any:
    k = int(rule["k"]) if "k" in rule else _int(inputs, rule["b"])
    return rule["hit"] if i < k else rule["miss"]


def _tail_if(rule: Rule, inputs: dict[str, Any], i: int) -> Any:
    return rule["hit"] if inputs[rule["flag"]] and i >= _int(inputs, rule["b"]) else rule["miss"]


_LISTS = {
    "repeat": lambda rule, inputs, i: rule["v"],
    "every": _every,
    "head": _head,
    "tail_if": _tail_if,
}
