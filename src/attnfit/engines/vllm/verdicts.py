"""All backends' verdicts for one question, fast: units that read the same fields are answered together, once per key.

The rules of a book are grouped by unit and by the fields their trees read. A group's key (those fields' values) says
what each of its backends adds to its list of reasons; keys met before are looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from attnfit.core import Reason, Status, Verdict
from attnfit.engines.vllm import rules
from attnfit.engines.vllm.explain import Explainer
from attnfit.engines.vllm.tree import ACCEPT, Leaf, Node, Outside, Values, walk

if TYPE_CHECKING:
    from attnfit.engines.vllm.book import Book

MEMO = 20_000  # keys kept per group
UNAVAILABLE = ("ImportError", "ModuleNotFoundError", "OSError")  # what the engine catches while it loads a backend

# What a backend gets from a group: reasons to add, or the verdict that ends its list (unknown, raises, unavailable).
Share = tuple[int, tuple[Reason, ...] | Verdict]


class _Group:
    """Rules of one unit whose trees read the same fields."""

    def __init__(self, fields: tuple[int, ...]) -> None:
        self.key: Callable[[Values], Any] = itemgetter(*fields) if fields else _nothing
        self.members: list[tuple[int, str, Node, str]] = []  # (backend, code, tree, where)
        self.memos: tuple[dict[Any, tuple[Share, ...]], ...] = ({}, {})  # bare, and with explanations
        self.prints = False  # whether a reason shows a number of the config: then 1 and 1.0 are two keys


class Verdicts:
    """The verdict table of one book."""

    def __init__(self, book: Book) -> None:
        self._book, self._explainer = book, Explainer(book)
        entries = book.written.backends
        self.names = list(entries)
        chains = [[("load", 0), *_numbered(code for code, _, _ in entry["rules"])] for entry in entries.values()]
        order = {unit: place for place, unit in enumerate(_merged(chains))}
        groups: dict[Any, _Group] = {}
        for b, (name, chain) in enumerate(zip(self.names, chains, strict=True)):
            entry = entries[name]
            for unit, (code, tree, where) in zip(chain, [["load", entry["load"], ""], *entry["rules"]], strict=True):
                node = book.forest.node(tree)
                if node is ACCEPT:
                    continue
                fields, printed = fields_of(node)
                group = groups.setdefault((order[unit], fields), _Group(fields))
                group.prints |= any(name.startswith("hf.") for name in printed)
                group.members.append((b, code, node, where))
        self.groups = [groups[key] for key in sorted(groups)]
        self._accepts = [Verdict(name, Status.ACCEPTS) for name in self.names]
        self._bare: dict[tuple[int, str, str], tuple[Reason, ...]] = {}  # reasons that print no field of the question

    def of(self, values: Values, explained: bool) -> list[Verdict]:
        """One verdict per backend, in the engine's own order of backends.

        Unless `explained`, reasons have no `required` and no `observed`: saying them costs more than the verdict.
        """
        found: list[list[Reason]] = [[] for _ in self.names]
        ended: dict[int, Verdict] = {}
        for group in self.groups:
            key, memo = group.key(values), group.memos[explained]
            try:
                shares = memo.get(key)
            except rules.NoNumber:
                shares, key = None, None
            if shares is None:
                shares = self._shares(group, values, explained)
                if key is not None and len(memo) < MEMO and not (group.prints and rules.has_float(key)):
                    memo[key] = shares
            for b, share in shares:
                if share.__class__ is tuple:
                    found[b] += share
                else:
                    ended.setdefault(b, share)  # type: ignore[arg-type]
        refuses, names, accepts = Status.REFUSES, self.names, self._accepts
        verdicts = [Verdict(names[b], refuses, tuple(r)) if r else accepts[b] for b, r in enumerate(found)]
        for b, verdict in ended.items():
            verdicts[b] = verdict
        return verdicts

    def _shares(self, group: _Group, values: Values, explained: bool) -> tuple[Share, ...]:
        shares: list[Share] = []
        said: dict[int, Leaf | str | None] = {}  # many members share a tree
        for b, code, tree, where in group.members:
            if id(tree) in said:
                outcome = said[id(tree)]
            else:
                outcome = said[id(tree)] = self._outcome(tree, values)
            if outcome is None:
                continue
            if isinstance(outcome, str):
                shares.append((b, Verdict(self.names[b], Status.UNKNOWN, unknown=outcome)))
            elif outcome.kind == "raises":
                text = rules.text(outcome.texts[0], values, self._book.numbers)
                shares.append((b, self._raises(self.names[b], code, outcome, text)))
            else:
                why = self._explainer.why(tree, values) if explained else None
                shares.append((b, self._reasons(outcome, code, outcome.where or where, values, why)))
        return tuple(shares)

    def _reasons(
        self, leaf: Leaf, code: str, where: str, values: Values, why: tuple[str, str] | None
    ) -> tuple[Reason, ...]:
        key = (id(leaf), code, where)
        if why is None and key in self._bare:
            return self._bare[key]
        texts = [rules.text(text, values, self._book.numbers) for text in leaf.texts]
        reasons = tuple([Reason(code, text, *(why or ("", "")), where) for text in texts])
        if why is None and not leaf.fields:
            self._bare[key] = reasons
        return reasons

    def _outcome(self, tree: Node, values: Values) -> Leaf | str | None:
        """None: accepted; a string: why unknown; else the leaf that refuses or raises."""
        try:
            leaf = walk(tree, values)
        except Outside as outside:
            return self._book.outside(outside)
        except rules.NoNumber as why:
            return str(why)
        if leaf.kind == "unknown":
            return str(leaf.value)
        return leaf if leaf.texts else None

    def _raises(self, name: str, code: str, leaf: Leaf, text: str) -> Verdict:
        error = f"{leaf.value}: {text}"
        if code != "load" or leaf.value not in UNAVAILABLE:
            return Verdict(name, Status.REFUSES, (Reason("raises", error, where=leaf.where),))
        shown = self._book.written.messages["unavailable"].format(type=leaf.value, error=text)
        return Verdict(name, Status.REFUSES, (Reason("unavailable", shown, "its module", error, leaf.where),))


def fields_of(root: Node) -> tuple[tuple[int, ...], set[str]]:
    """The fields a tree reads, and those its reasons print."""
    fields: set[int] = set()
    printed: set[str] = set()
    seen: set[int] = set()
    todo = [root]
    while todo:
        node = todo.pop()
        if node.__class__ is tuple and id(node) not in seen:
            seen.add(id(node))
            fields.add(node[0])
            todo.extend(node[1].values() if len(node) == 2 else node[2:])
        elif isinstance(node, Leaf):
            printed.update(node.fields)
    return tuple(sorted(fields)), printed


def _nothing(_: Values) -> tuple[()]:
    return ()


def _numbered(codes: Any) -> list[tuple[str, int]]:
    """The units of one backend; a code that comes twice is two units."""
    count: dict[str, int] = {}
    out = []
    for code in codes:
        out.append((code, count.get(code, 0)))
        count[code] = count.get(code, 0) + 1
    return out


def _merged(chains: list[list[tuple[str, int]]]) -> list[tuple[str, int]]:
    """One order of all units in which every backend's own order is kept."""
    after: dict[tuple[str, int], set[tuple[str, int]]] = {}
    for chain in chains:
        for i, unit in enumerate(chain):
            after.setdefault(unit, set()).update(chain[:i])
    order: list[tuple[str, int]] = []
    left = dict(after)
    while left:
        ready = next((u for u, before in left.items() if not (before & left.keys())), None)
        if ready is None:
            raise ValueError("two backends of this book give their reasons in contradicting order")
        order.append(ready)
        del left[ready]
    return order
