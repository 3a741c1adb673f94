"""Which branches and reason texts of a book a set of questions has reached."""

from __future__ import annotations

from typing import Any

from attnfit.engines.vllm.book import Book
from attnfit.engines.vllm.rules import NoNumber
from attnfit.engines.vllm.tree import Leaf, Node, Outside, Values


class Coverage:
    """Counts over all trees of a book: a branch is one answer of one node, a text one reason of one leaf."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self._roots: dict[int, Node] = {}
        for group in book.verdicts.groups:
            for _, _, tree, _ in group.members:
                self._roots[id(tree)] = tree
        for tree in (book.priority, *(tree for _, tree in book.helpers)):
            self._roots[id(tree)] = tree
        self.branches: set[tuple[int, int]] = set()
        self.texts: set[tuple[int, str]] = set()
        self._all_branches, self._all_texts = self._everything()

    def _everything(self) -> tuple[set[tuple[int, int]], set[tuple[int, str]]]:
        branches: set[tuple[int, int]] = set()
        texts: set[tuple[int, str]] = set()
        seen: set[int] = set()
        todo = list(self._roots.values())
        while todo:
            node = todo.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, Leaf):
                texts.update((id(node), text) for text in node.texts)
                continue
            for child in node[1].values() if len(node) == 2 else node[2:]:
                branches.add((id(node), id(child)))
                todo.append(child)
        return branches, texts

    def see(self, values: Values) -> None:
        """Walk every tree with one question's values."""
        for node in self._roots.values():
            try:
                while node.__class__ is tuple:
                    value = values[node[0]]
                    if len(node) == 2:
                        child = node[1].get(value)
                        if child is None:
                            break
                    else:
                        child = node[2] if node[1](value) else node[3]
                    self.branches.add((id(node), id(child)))
                    node = child
                else:
                    self.texts.update((id(node), text) for text in node.texts)
            except (Outside, NoNumber, TypeError):
                continue

    def report(self) -> dict[str, Any]:
        """{"branches": [reached, all], "texts": [reached, all], "missed": [texts never said]}"""
        missed = sorted({text for _, text in self._all_texts - self.texts})
        return {
            "branches": [len(self.branches & self._all_branches), len(self._all_branches)],
            "texts": [len(self.texts & self._all_texts), len(self._all_texts)],
            "missed": missed,
        }  # fmt: skip

    def missed_branches(self) -> list[str]:
        """The branches never taken, as the questions they answer (to see whether they can be taken at all)."""
        out = []
        for node_id, child in self._all_branches - self.branches:
            test = self.book.forest.tests.get(node_id)
            out.append(f"{test or 'case'} -> {child}")
        return out
