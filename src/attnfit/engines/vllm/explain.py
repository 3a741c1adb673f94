"""What a rule requires and what it found: read off the way a question took through the rule's tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnfit.engines.vllm.tree import ABSENT, Node, Outside, Values, path, walk

if TYPE_CHECKING:
    from attnfit.engines.vllm.book import Book

_BLAMELESS = ("model_config",)  # never what a user would change
_WORDS = {"==": "", "<": "below ", "<=": "at most ", ">": "above ", ">=": "at least ", "in": ""}
_NOT = {"==": "not ", "<": "at least ", "<=": "above ", ">": "at most ", ">=": "below ", "in": "not "}


def why(book: Book, root: Node, values: Values) -> tuple[str, str]:
    """(required, observed): the last question on the way whose other answer would have been accepted."""
    passed = [n for n in path(root, values) if book.names[n[0]] not in _BLAMELESS]
    for node in reversed(passed):
        accepted = _accepted(node, values)
        if accepted:
            return _say(book, node, accepted, values)
    return ("", _observed(book, passed[-1], values)) if passed else ("", "")


def _accepted(node: Node, values: Values) -> list[Any]:
    """The other answers to a node's question that end in no reason."""
    value = values[node[0]]
    if len(node) == 2:
        known: dict[int, bool] = {}  # many answers share a branch
        for below in node[1].values():
            if id(below) not in known:
                known[id(below)] = _accepts(below, values)
        return [other for other, below in node[1].items() if known[id(below)] and other != value]
    answer, below = (False, node[3]) if node[1](value) else (True, node[2])
    return [answer] if _accepts(below, values) else []


def _accepts(node: Node, values: Values) -> bool:
    try:
        leaf = walk(node, values)
    except (Outside, TypeError, ZeroDivisionError):
        return False
    return leaf.kind == "reasons" and not leaf.texts


def _say(book: Book, node: Node, accepted: list[Any], values: Values) -> tuple[str, str]:
    name = book.names[node[0]]
    if len(node) == 2:
        return f"{_short(name)} {', '.join(_value(name, a) for a in accepted)}", _observed(book, node, values)
    term, op, const = book.forest.tests[id(node)]
    parts = term.split(" ")
    subject = _short(name)
    words = _WORDS if accepted[0] else _NOT
    if op == "true":
        required = f"{subject} set" if accepted[0] else f"no {subject}"
    elif op in ("none", "absent"):
        required = f"no {subject}" if accepted[0] else f"{subject}"
    elif parts[1:2] == ["%"] and op == "==" and const == 0 and accepted[0]:
        required = f"{subject} a multiple of {parts[2]}"
    else:
        subject = " ".join([subject, *parts[1:]])
        shown = ", ".join(map(str, const)) if isinstance(const, list) else str(const)
        required = f"{subject} {words.get(op, op)}{shown}"
    return required, _observed(book, node, values)


def _observed(book: Book, node: Node, values: Values) -> str:
    name = book.names[node[0]]
    return f"{_short(name)} {_value(name, values[node[0]])}"


def _short(name: str) -> str:
    """Without the room it comes from, and a helper without its arguments."""
    return name.removeprefix("hf.").removeprefix("env.").removeprefix("get_").partition("(")[0]


def _value(name: str, value: Any) -> str:
    if value is ABSENT:
        return "absent"
    if name == "capability":
        return ".".join(map(str, value))
    return {True: "yes", False: "no", None: "none"}[value] if isinstance(value, bool | None) else str(value)
