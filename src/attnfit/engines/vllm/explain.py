"""What a rule requires and what it found: read off the way a question took through the rule's tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnfit.engines.vllm import rules
from attnfit.engines.vllm.tree import ABSENT, Leaf, Node, Outside, Values, path, walk

if TYPE_CHECKING:
    from attnfit.engines.vllm.book import Book

_BLAMELESS = "model_config"  # never what a user would change
_WORDS = {"==": "", "<": "below ", "<=": "at most ", ">": "above ", ">=": "at least ", "in": ""}
_NOT = {"==": "not ", "<": "at least ", "<=": "above ", ">": "at most ", ">=": "below ", "in": "not "}


class Explainer:
    """Explains the refusals of one book; sentences said once are kept."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._branches: dict[int, tuple[Node, ...]] = {}  # id(node) -> its different branches
        self._required: dict[tuple[int, tuple[int, ...]], str] = {}

    def why(self, root: Node, values: Values) -> tuple[str, str]:
        """(required, observed): the last question on the way whose other answer would have been accepted."""
        passed = path(root, values)
        names = self._book.names
        for node in reversed(passed):
            if names[node[0]] == _BLAMELESS:
                continue
            value = values[node[0]]
            taken = node[1][value] if len(node) == 2 else node[2] if node[1](value) else node[3]
            accepting = tuple(id(b) for b in self._different(node) if b is not taken and _accepts(b, values))
            if accepting:
                return self._say(node, accepting), _observed(names[node[0]], value)
        for node in reversed(passed):
            if names[node[0]] != _BLAMELESS:
                return "", _observed(names[node[0]], values[node[0]])
        return "", ""

    def _different(self, node: Node) -> tuple[Node, ...]:
        found = self._branches.get(id(node))
        if found is None:
            below = node[1].values() if len(node) == 2 else node[2:]
            found = self._branches[id(node)] = tuple({id(n): n for n in below}.values())
        return found

    def _say(self, node: Node, accepting: tuple[int, ...]) -> str:
        key = (id(node), accepting)
        found = self._required.get(key)
        if found is None:
            name = self._book.names[node[0]]
            if len(node) == 2:
                answers = [_value(name, value) for value, below in node[1].items() if id(below) in accepting]
                found = f"{_short(name)} {', '.join(answers)}"
            else:
                found = _tested(_short(name), *self._book.forest.tests[id(node)], id(node[2]) in accepting)
            self._required[key] = found
        return found


def _accepts(node: Node, values: Values) -> bool:
    if node.__class__ is tuple:
        try:
            node = walk(node, values)
        except (Outside, TypeError, ZeroDivisionError, rules.NoNumber):
            return False
    leaf: Leaf = node
    return leaf.kind == "reasons" and not leaf.texts


def _tested(subject: str, term: str, op: str, const: Any, wanted: bool) -> str:
    """The answer `wanted` to a test, in words."""
    parts = term.split(" ")
    if op == "true":
        return f"{subject} set" if wanted else f"no {subject}"
    if op in ("none", "absent"):
        return f"no {subject}" if wanted else subject
    if parts[1:2] == ["%"] and op == "==" and const == 0 and wanted:
        return f"{subject} a multiple of {parts[2]}"
    words = _WORDS if wanted else _NOT
    shown = ", ".join(map(str, const)) if isinstance(const, list) else str(const)
    return f"{' '.join([subject, *parts[1:]])} {words.get(op, op)}{shown}"


def _observed(name: str, value: Any) -> str:
    return f"{_short(name)} {_value(name, value)}"


def _short(name: str) -> str:
    """Without the room it comes from, and a helper without its arguments."""
    return name.removeprefix("hf.").removeprefix("env.").removeprefix("get_").partition("(")[0]


def _value(name: str, value: Any) -> str:
    if value is ABSENT:
        return "absent"
    if name == "capability":
        return ".".join(map(str, value))
    return {True: "yes", False: "no", None: "none"}[value] if isinstance(value, bool | None) else str(value)
