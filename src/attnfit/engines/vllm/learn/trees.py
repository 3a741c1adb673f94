"""Decision trees, kept small: equal subtrees are one node, questions that decide nothing disappear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Leaf(NamedTuple):
    """What comes out: `reasons` (texts, none: accepted), `raises` (exception name, text) or `unknown` (why)."""

    kind: str
    payload: tuple[Any, ...]
    where: str = ""


class Forest:
    """Nodes by number. A node is a Leaf, ("split", field, ((value indices, node), ...)) or
    ("test", field, steps, op, constant, node if true, node if false); `at` holds the engine's file:line of each."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.at: list[str] = []
        self._numbers: dict[Any, int] = {}

    def _number(self, node: Any, at: str) -> int:  # `at` of the first of equal nodes is kept
        found = self._numbers.get(node)
        if found is None:
            found = self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
            self.at.append(at)
        return found

    def leaf(self, leaf: Leaf) -> int:
        return self._number(leaf, leaf.where)

    def split(self, field: str, cases: Sequence[tuple[tuple[int, ...], int]], at: str = "") -> int:
        """Branch over a finite field. Nested branches over the same field become one; equal branches too."""
        merged: dict[int, list[int]] = {}
        for values, child in cases:
            node = self.nodes[child]
            if not isinstance(node, Leaf) and node[0] == "split" and node[1] == field:
                for inner, grandchild in node[2]:
                    merged.setdefault(grandchild, []).extend(v for v in inner if v in values)
            else:
                merged.setdefault(child, []).extend(values)
        left = [(tuple(sorted(values)), child) for child, values in merged.items() if values]
        if len(left) == 1:
            return left[0][1]
        return self._number(("split", field, tuple(sorted(left))), at)

    def test(
        self,
        field: str,
        steps: tuple[Any, ...],
        op: str,
        const: Any,
        yes: int,
        no: int,
        at: str = "",
    ) -> int:
        """Branch on one test of a number; a chain of == with the same outcome becomes one `in`."""
        if yes == no:
            return yes
        below = self.nodes[no]
        if op in ("==", "in") and not isinstance(below, Leaf) and below[0] == "test":
            _, field2, steps2, op2, const2, yes2, no2 = below
            if (field2, steps2, yes2) == (field, steps, yes) and op2 in ("==", "in"):
                both = {*(const if op == "in" else (const,)), *(const2 if op2 == "in" else (const2,))}
                return self.test(field, steps, "in", tuple(sorted(both)), yes, no2, at)
        return self._number(("test", field, steps, op, const, yes, no), at)

    def children(self, number: int) -> tuple[int, ...]:
        node = self.nodes[number]
        if isinstance(node, Leaf):
            return ()
        return tuple(child for _, child in node[2]) if node[0] == "split" else node[5:7]

    def leaves(self, number: int) -> list[Leaf]:
        """Every leaf below a node, each once."""
        seen, todo, out = set(), [number], []
        while todo:
            n = todo.pop()
            if n in seen:
                continue
            seen.add(n)
            node = self.nodes[n]
            if isinstance(node, Leaf):
                out.append(node)
            else:
                todo.extend(self.children(n))
        return out
