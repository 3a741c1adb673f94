"""Decision trees of a rule book, ready to be walked.

A node is a tuple: (field, {value: node}) for a branch over a finite field, (field, test, node if true, node if false)
for a test of a number. Anything else is a `Leaf`. `Values` are the question's field values by number.
"""

from __future__ import annotations

import operator
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Values = list[Any]
Node = Any  # tuple or Leaf


class Absent:
    """An attribute that the config does not have."""

    def __repr__(self) -> str:
        return "absent"


ABSENT = Absent()


class Leaf:
    """What a walk ends in. `kind`: "reasons" (`texts`, none: accepted), "raises" (exception name, text),
    "value" (one value), "unknown" (why)."""

    __slots__ = ("fields", "kind", "texts", "value", "where")

    def __init__(self, kind: str, texts: tuple[str, ...] = (), value: Any = None, where: str = "") -> None:
        self.kind, self.texts, self.value, self.where = kind, texts, value, where
        self.fields = tuple(dict.fromkeys(n for t in texts for _, n, _, _ in string.Formatter().parse(t) if n))


ACCEPT = Leaf("reasons")

STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip


def _test(steps: Sequence[tuple[str, int]], op: str, const: Any) -> Callable[[Any], bool]:
    """A test of one number as a function."""
    if op == "none":
        return lambda v: v is None
    if op == "absent":
        return lambda v: v is ABSENT
    if op == "in":
        members = frozenset(const)
        check: Callable[[Any], bool] = lambda v: v in members  # noqa: E731
    elif op == "true":
        check = bool
    else:
        compare = {"==": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[op]
        check = lambda v: compare(v, const)  # noqa: E731
    if not steps:
        return check
    if len(steps) == 1:
        act, operand = STEPS[steps[0][0]], steps[0][1]
        return lambda v: check(act(v, operand))

    def chain(v: Any) -> bool:
        for name, number in steps:
            v = STEPS[name](v, number)
        return check(v)

    return chain


class Forest:
    """Compiles the trees of a book; `number` gives each field its place in `Values`."""

    def __init__(self, trees: Mapping[str, Any], number: Callable[[str], int]) -> None:
        self._written, self._number = trees, number
        self._named: dict[str, Node] = {}
        self.tests: dict[int, tuple[str, str, Any]] = {}  # id(node) -> what it asks, for explanations

    def node(self, written: Any) -> Node:
        """A written tree (or the name of one) as nodes."""
        if isinstance(written, str):
            found = self._named.get(written)
            if found is None:
                found = self._named[written] = self._compile(self._written[written])
            return found
        return self._compile(written)

    def _compile(self, written: Any) -> Node:
        if isinstance(written, list):
            return self._printing(Leaf("reasons", tuple(written))) if written else ACCEPT
        if "by" in written:
            capability = written["by"] == "capability"
            cases: dict[Any, Node] = {}
            for values, below in written["cases"]:
                child = self.node(below)
                for value in values:
                    cases[tuple(map(int, value.split("."))) if capability else value] = child
            return (self._number(written["by"]), cases)
        if "if" in written:
            term, op, *rest = written["if"]
            const = rest[0] if rest else None
            field, *parts = term.split(" ")
            steps = [(parts[i], int(parts[i + 1])) for i in range(0, len(parts), 2)]
            node = (
                self._number(field), _test(steps, op, const), self.node(written["then"]), self.node(written["else"]),
            )  # fmt: skip
            self.tests[id(node)] = (term, op, const)
            return node
        if "refuse" in written:
            return self._printing(Leaf("reasons", tuple(written["refuse"]), where=written["at"]))
        if "raises" in written:
            name, text = written["raises"]
            return self._printing(Leaf("raises", (text,), name, written["at"]))
        if "value" in written:
            return Leaf("value", value=written["value"])
        return Leaf("unknown", value=written["unknown"])

    def _printing(self, leaf: Leaf) -> Leaf:
        for name in leaf.fields:
            self._number(name)
        return leaf


class Outside(Exception):
    """A value that the book's exploration did not cover."""

    def __init__(self, field: int, value: Any) -> None:
        self.field, self.value = field, value


def walk(node: Node, values: Values) -> Leaf:
    """The leaf for these values. Raises Outside for a value the tree does not know."""
    while node.__class__ is tuple:
        if len(node) == 2:
            below = node[1].get(values[node[0]])
            if below is None:
                raise Outside(node[0], values[node[0]])
            node = below
        else:
            node = node[2] if node[1](values[node[0]]) else node[3]
    return node  # type: ignore[no-any-return]


def path(node: Node, values: Values) -> list[Node]:
    """The nodes that a walk passes, from the root down, without the leaf."""
    passed = []
    while node.__class__ is tuple:
        passed.append(node)
        node = node[1][values[node[0]]] if len(node) == 2 else node[2] if node[1](values[node[0]]) else node[3]
    return passed
