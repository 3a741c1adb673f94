"""Drop branches that no question can take: a helper's value excludes capabilities, a capability excludes values.

Exploring a helper once makes it independent of its callers; here its ways are held against theirs again. Dropping is
safe: a branch goes only if every way to it contradicts itself, on the same candidates that prove a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attnfit.engines.vllm.learn.paths import mask_of
from attnfit.engines.vllm.learn.trees import Forest, Leaf

State = dict[str, Any]  # field -> frozenset of value indices, or mask of candidates
MOST = 4000  # ways through a helper; beyond, nothing is dropped


class Pruner:
    """Prunes trees of one forest. `helpers` and `values`: per helper field its tree and its values in order."""

    def __init__(
        self,
        forest: Forest,
        helpers: Mapping[str, int],
        values: Mapping[str, tuple[Any, ...]],
        sizes: Mapping[str, int],
        start: Callable[[str], int],
    ) -> None:
        self.forest, self.helpers, self.values, self.sizes, self.start = forest, helpers, values, sizes, start
        self._ways: dict[str, list[tuple[int, State]]] = {}

    def prune(self, root: int) -> int:
        """The root of the pruned tree."""
        if not self._asks(root) & self.helpers.keys():
            return root
        return self._rebuild(root, {}, {})

    def _asks(self, root: int) -> set[str]:
        seen: set[int] = set()
        fields: set[str] = set()
        todo = [root]
        while todo:
            number = todo.pop()
            if number in seen:
                continue
            seen.add(number)
            node = self.forest.nodes[number]
            if not isinstance(node, Leaf):
                fields.add(node[1])
                todo.extend(self.forest.children(number))
        return fields

    def _rebuild(self, number: int, state: State, decided: dict[str, frozenset[int]]) -> int:
        node = self.forest.nodes[number]
        if isinstance(node, Leaf):
            return number
        name, at = node[1], self.forest.at[number]
        if node[0] == "split":
            cases = []
            for values, child in node[2]:
                if name in self.helpers:
                    left = decided.get(name, frozenset(range(self.sizes[name]))) & set(values)
                    left = frozenset(v for v in left if self._possible(state, {**decided, name: frozenset((v,))}))
                    below, then = state, {**decided, name: left}
                else:
                    left = state.get(name, frozenset(range(self.sizes[name]))) & set(values)
                    left = frozenset(v for v in left if self._possible({**state, name: frozenset((v,))}, decided))
                    below, then = {**state, name: left}, decided
                if left:
                    cases.append((tuple(sorted(left)), self._rebuild(child, below, then)))
            return self.forest.split(name, cases, at)
        _, _, steps, op, const, yes, no = node
        answers: list[int | None] = []
        mask, now = mask_of(steps, op, const), state.get(name, self.start(name))
        for child, hit in ((yes, now & mask), (no, now & ~mask)):
            below = {**state, name: hit}
            answers.append(self._rebuild(child, below, decided) if hit and self._possible(below, decided) else None)
        first, second = answers
        if first is None or second is None:
            return next(a for a in answers if a is not None)
        return self.forest.test(name, steps, op, const, first, second, at)

    def _possible(self, state: State, decided: dict[str, frozenset[int]]) -> bool:
        """Whether some way through every decided helper agrees with the state."""
        if not decided:
            return True
        name = next(iter(decided))
        rest = {n: v for n, v in decided.items() if n != name}
        wanted = decided[name]
        for value, way in self.ways(name):
            if value in wanted:
                both = _both(state, way)
                if both is not None and self._possible(both, rest):
                    return True
        return False

    def ways(self, name: str) -> list[tuple[int, State]]:
        """Every way through a helper: (index of the value, what it demands)."""
        found = self._ways.get(name)
        if found is None:
            found = self._ways[name] = []
            todo: list[tuple[int, State]] = [(self.helpers[name], {})]
            while todo:
                number, state = todo.pop()
                node = self.forest.nodes[number]
                if isinstance(node, Leaf):
                    found.append((self.values[name].index(node.payload[0]), state))
                    if len(found) > MOST:
                        found[:] = [(i, {}) for i in range(self.sizes[name])]
                        break
                elif node[0] == "split":
                    for values, child in node[2]:
                        left = state.get(node[1], frozenset(range(self.sizes[node[1]]))) & set(values)
                        if left:
                            todo.append((child, {**state, node[1]: frozenset(left)}))
                else:
                    mask, now = mask_of(*node[2:5]), state.get(node[1], self.start(node[1]))
                    todo += [
                        (c, {**state, node[1]: hit})
                        for c, hit in ((node[5], now & mask), (node[6], now & ~mask))
                        if hit
                    ]
        return found


def _both(one: State, other: State) -> State | None:
    result = dict(one)
    for name, allowed in other.items():
        if name in result:
            allowed = result[name] & allowed
            if not allowed:
                return None
        result[name] = allowed
    return result
