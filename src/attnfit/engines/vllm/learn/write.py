"""A survey as plain data: the body of a rule book. Runs in the witness; stdlib only."""

from __future__ import annotations

from typing import Any

from attnfit.engines.vllm.learn import platform_choice
from attnfit.engines.vllm.learn.survey import Survey
from attnfit.engines.vllm.learn.tracked import CLOSE, OPEN
from attnfit.engines.vllm.learn.trees import Forest, Leaf


def template(text: str) -> str:
    """Tracked markers as {field}; the engine's own braces doubled."""
    return text.replace("{", "{{").replace("}", "}}").replace(OPEN, "{").replace(CLOSE, "}")


def body(survey: Survey) -> dict[str, Any]:
    """Explore everything and write it down: fields, selector, priority, messages, helpers, trees, backends."""
    choice = platform_choice.refusals(survey)
    priority = platform_choice.priority(survey)
    backends: dict[str, Any] = {}
    for name in survey.release.names:
        load = survey.load_tree(name)
        leaves = survey.forest.leaves(load)
        fails = all(leaf.kind == "raises" for leaf in leaves)
        backends[name] = (load, [] if fails else survey.rules(name))
    writer = _Writer(survey)
    roots = [priority, *survey.helpers.values()]
    roots += [tree for load, rules in backends.values() for tree in (load, *(t for _, t, _ in rules))]
    writer.share(roots)
    written = {
        "fields": {name: list(field.labels) for name, field in survey.fields.items() if name in writer.used(roots)},
        "selector": list(survey.question),
        "ignored": [name for name,
        value in survey.question.items() if name not in survey.fields and name not in survey.numbers],
        "drops": choice.pop("drops"),
        "messages": {name: template_message(text) for name, text in choice.items()},
        "priority": writer.reference(priority),
        "helpers": {name: writer.reference(tree) for name, tree in survey.helpers.items()},
        "backends": {
            name: {
                "path": survey.release.enum[name].value,
                "load": writer.reference(load),
                "rules": [[code, writer.reference(tree), at] for code, tree, at in rules if not writer.accepts(tree)],
            }
            for name, (load, rules) in backends.items()
        },
    }  # fmt: skip
    written["trees"] = writer.trees
    return written


def template_message(text: str) -> str:
    """A refusal of the selection: its own placeholders stay."""
    known = ("{reasons}", "{reasons!r}", "{backend}", "{type}", "{error}")
    for i, name in enumerate(known):
        text = text.replace(name, f"\x04{i}\x05")
    text = template(text)
    for i, name in enumerate(known):
        text = text.replace(f"\x04{i}\x05", name)
    return text


class _Writer:
    def __init__(self, survey: Survey) -> None:
        self.survey, self.forest = survey, survey.forest
        self.trees: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._order: list[int] = []

    def used(self, roots: list[int]) -> set[str]:
        """Fields that any tree asks about."""
        return {
            self.forest.nodes[n][1] for n in _below(self.forest, roots) if not isinstance(self.forest.nodes[n], Leaf)
        }

    def accepts(self, tree: int) -> bool:
        node = self.forest.nodes[tree]
        return isinstance(node, Leaf) and node.kind == "reasons" and not node.payload

    def share(self, roots: list[int]) -> None:
        """Name every tree that is used more than once."""
        uses: dict[int, int] = {}
        for n in roots:
            uses[n] = uses.get(n, 0) + 1
        for n in _below(self.forest, roots):
            for child in self.forest.children(n):
                uses[child] = uses.get(child, 0) + 1
        for n, count in sorted(uses.items()):
            if count > 1 and not isinstance(self.forest.nodes[n], Leaf):
                self._names[n] = f"t{len(self._names) + 1}"
        for n, name in self._names.items():
            self.trees[name] = self._tree(n)

    def reference(self, n: int) -> Any:
        return self._names.get(n) or self._tree(n)

    def _tree(self, n: int) -> Any:
        node = self.forest.nodes[n]
        if isinstance(node, Leaf):
            return self._leaf(node)
        if node[0] == "split":
            labels = self.survey.fields[node[1]].labels
            return {"by": node[1], "cases": [[[labels[v] for v in values], self.reference(c)] for values, c in node[2]]}
        _, name, steps, op, const, yes, no = node
        term = " ".join([name, *(f"{step} {operand}" for step, operand in steps)])
        test = [term, op, list(const) if isinstance(const, tuple) else const]
        return {"if": test[:2] if const is None else test, "then": self.reference(yes), "else": self.reference(no)}

    def _leaf(self, leaf: Leaf) -> Any:
        if leaf.kind == "reasons":
            texts = [template(text) for text in leaf.payload]
            return {"refuse": texts, "at": leaf.where} if leaf.where else texts
        if leaf.kind == "raises":
            return {"raises": [leaf.payload[0], template(leaf.payload[1])], "at": leaf.where}
        return {leaf.kind: leaf.payload[0]}


def _below(forest: Forest, roots: list[int]) -> set[int]:
    seen: set[int] = set()
    todo = list(roots)
    while todo:
        n = todo.pop()
        if n not in seen:
            seen.add(n)
            todo.extend(forest.children(n))
    return seen
