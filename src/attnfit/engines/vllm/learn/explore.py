"""Walk every way through a predicate and write the ways down as one decision tree.

`explore(call)` runs `call` once per path. Nothing here knows an engine; stdlib only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnfit.engines.vllm.learn import paths
from attnfit.engines.vllm.learn.paths import Opaque, Run
from attnfit.engines.vllm.learn.trees import Forest, Leaf

MOST_PATHS = 60_000


def explore(
    forest: Forest,
    call: Callable[[], Any],
    leaks: tuple[type[BaseException], ...] = (),
    before: Callable[[], None] = lambda: None,
    swallowed: Callable[[], str] = str,
    most: int = MOST_PATHS,
    shape: Callable[[Any], Leaf] | None = None,
) -> int:
    """The tree of `call` as a node of `forest`.

    `call` returns the reasons (a list of strings), or whatever `shape` turns into a leaf; `leaks` are exceptions that
    make a path unknown; `before` resets the state between two runs, `swallowed` says what leaked without coming
    through as an exception; `most` bounds the number of paths.
    """
    scripts: list[tuple[Any, ...]] = [()]
    root = _Growing()
    count = 0
    while scripts:
        script = scripts.pop()
        this = Run(script)
        before()
        leaf = _leaf(this, call, leaks, shape)
        if swallowed() and leaf.kind != "unknown":
            leaf = Leaf("unknown", (swallowed(),))
        root.add(this, leaf)
        answers = tuple(decision.answer for decision in this.path)
        for i in range(len(script), len(this.path)):
            for option in this.path[i].options:
                if option != answers[i]:
                    scripts.append((*answers[:i], option))
        count += 1
        if count > most:
            return forest.leaf(Leaf("unknown", (f"more than {most} ways through this predicate",)))
    return root.into(forest)


def reasons(result: Any) -> Leaf:
    """A leaf out of what validate_configuration returns."""
    return Leaf("reasons", tuple(_text(reason) for reason in result))


def _leaf(
    this: Run, call: Callable[[], Any], leaks: tuple[type[BaseException], ...], shape: Callable[[Any], Leaf] | None
) -> Leaf:
    try:
        result: Leaf = paths.during(this, lambda: (shape or reasons)(call()))
    except Opaque as why:
        return Leaf("unknown", (f"{why} ({_place(why)})",))
    except leaks as why:
        return Leaf("unknown", (str(why),))
    except Exception as error:
        place = _place(error)
        if isinstance(error, (TypeError, NameError)):  # more likely ours than the engine's
            return Leaf("unknown", (f"{type(error).__name__}: {error} ({place})",))
        return Leaf("raises", (type(error).__name__, str(error)), place)
    return result._replace(where=this.said) if result.kind == "reasons" and result.payload else result


def _text(reason: Any) -> str:
    if type(reason) is str:
        return reason
    if hasattr(reason, "_pin"):
        return str(reason._pin())
    raise Opaque(f"a reason that is no text: {type(reason).__name__}")


def _place(error: BaseException) -> str:
    """Engine file:line where it was raised."""
    place, step = "", error.__traceback__
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        if name.startswith("vllm/"):
            place = f"{name}:{step.tb_lineno}"
        step = step.tb_next
    return place


class _Growing:
    """A tree under construction: a question, and one subtree per answer seen so far."""

    def __init__(self) -> None:
        self.question: tuple[Any, ...] | None = None
        self.where = ""
        self.kids: dict[Any, _Growing] = {}
        self.leaf: Leaf | None = None

    def add(self, this: Run, leaf: Leaf) -> None:
        node = self
        for decision in this.path:
            if node.question is None:
                node.question, node.where = decision.question, decision.where
            elif node.question != decision.question:
                raise AssertionError(f"asked {decision.question}, earlier {node.question}")
            node = node.kids.setdefault(decision.answer, _Growing())
        node.leaf = leaf

    def into(self, forest: Forest) -> int:
        if self.question is None:
            assert self.leaf is not None
            return forest.leaf(self.leaf)
        kind, name, *rest = self.question
        if kind == "split":
            (groups,) = rest
            return forest.split(
                name,
                [(group, self.kids[i].into(forest)) for i, group in enumerate(groups) if i in self.kids],
                self.where,
            )
        steps, op, const = rest
        answers = [self.kids[answer].into(forest) for answer in (True, False) if answer in self.kids]
        if len(answers) == 1:
            return answers[0]
        return forest.test(name, steps, op, const, answers[0], answers[1], self.where)
