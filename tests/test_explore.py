"""Exploring a predicate with tracked values finds exactly what running it on every value would."""

from __future__ import annotations

import ast
import itertools
import textwrap
import types
from collections.abc import Callable
from typing import Any

import pytest

from attnfit.engines.vllm.learn import paths
from attnfit.engines.vllm.learn.explore import explore
from attnfit.engines.vllm.learn.helpers import HELPERS
from attnfit.engines.vllm.learn.paths import NUMBER, OPTIONAL, Field, Opaque, Run
from attnfit.engines.vllm.learn.rewrite import rewrite
from attnfit.engines.vllm.learn.tracked import Attributes, Choice, Number
from attnfit.engines.vllm.learn.trees import Forest, Leaf

KV = ("auto", "fp8", "fp8_e5m2", "nvfp4", None)
CAPABILITIES = ((7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0))
SIZES = (0, 8, 64, 65, 72, 128, 192, 256, 257, 512, 576)
BLOCKS = (None, 1, 16, 24, 64)
RANKS = ("absent", None, 0, 64, 512, 513)

PREDICATES = {
    "members": "return ['kv'] if kv not in ('auto', None, 'fp8') else []",
    "prefix": "return [f'no {kv}'] if kv is not None and kv.startswith('fp8') and kv != 'fp8' else []",
    "table": "return ['slow'] if {'auto': 1, 'fp8': 2}.get(kv, 0) > 1 else []",
    "order": "return [] if (8, 0) <= cap < (12, 0) else ['capability']",
    "family": "return ['no'] if cap[0] * 10 + cap[1] in {80, 86} or cap[0] == 12 else []",
    "unpacked": "major, minor = cap\nreturn ['odd'] if minor and major == 8 else []",
    "multiple": "return [] if size % 8 == 0 and size <= 256 else ['size']",
    "division": "return ['big'] if size // 64 > 3 and (size - 1) % 2 else []",
    "listed": "return [] if size in [64, 128, 256] else [f'size {size}']",
    "optional": "return [] if block is None or block % 16 == 0 else ['block']",
    "truth": "return ['given'] if block else ['none or zero']",
    "default": "rank = getattr(hf, 'rank', 64)\nreturn [] if rank in (64, None) else [f'rank {rank}']",
    "presence": "return ['has'] if hasattr(hf, 'rank') and hf.rank is not None else []",
    "raises": "return ['small'] if hf.rank is not None and hf.rank < 100 else []",
    "converted": "rank = getattr(hf, 'rank', None)\nreturn [] if rank is None or int(rank) == 512 else ['rank']",
    "together": "return ['both'] if kv == 'fp8' and cap >= (9, 0) and size > 128 and block is not None else []",
    "none_of_it": "return [] if kv.endswith('4') else ['plain']",
    "swallowed": (
        "try:\n    return ['small'] if hf.rank < 100 else []\n"
        "except (AttributeError, TypeError):\n    return ['unusable']"
    ),
}


def compiled(body: str) -> Callable[..., Any]:
    source = "def predicate(kv, cap, size, block, hf):\n" + textwrap.indent(body, "    ")
    space: dict[str, Any] = dict(HELPERS)
    exec(compile(ast.Module([rewrite(ast.parse(source).body[0])], []), "vllm/p.py", "exec"), space)
    function: Callable[..., Any] = space["predicate"]
    return function


def tree_of(predicate: Callable[..., Any]) -> tuple[Forest, int]:
    forest = Forest()
    kv, cap = Field("kv", KV, KV), Field("cap", CAPABILITIES, CAPABILITIES, False)

    def call() -> Any:
        return predicate(
            Choice(kv), Choice(cap), Number("size", NUMBER), Number("block", OPTIONAL), Attributes("hf.", "Hf")
        )

    return forest, explore(forest, call)


def walk(forest: Forest, number: int, values: dict[str, Any]) -> Leaf:
    node = forest.nodes[number]
    while not isinstance(node, Leaf):
        value = values[node[1]]
        if node[0] == "split":
            index = (KV if node[1] == "kv" else CAPABILITIES).index(value)
            number = next(child for members, child in node[2] if index in members)
        else:
            _, _, steps, op, const, yes, no = node
            for step, operand in steps:
                value = paths.STEPS[step](value, operand)
            number = yes if paths.OPS[op](value, const) else no
        node = forest.nodes[number]
    return node


def told(leaf: Leaf, values: dict[str, Any]) -> Any:
    if leaf.kind == "raises":
        return leaf.payload[0]
    texts = []
    for text in leaf.payload:
        for name, value in values.items():
            text = text.replace(f"\x02{name}\x03", str(value))
        texts.append(text)
    return texts


@pytest.mark.parametrize("name", PREDICATES)
def test_the_tree_says_what_the_predicate_says(name: str) -> None:
    predicate = compiled(PREDICATES[name])
    forest, root = tree_of(predicate)
    for kv, cap, size, block, rank in itertools.product(KV, CAPABILITIES, SIZES, BLOCKS, RANKS):
        hf = types.SimpleNamespace() if rank == "absent" else types.SimpleNamespace(rank=rank)
        try:
            expected = predicate(kv, cap, size, block, hf)
        except (AttributeError, TypeError) as error:
            expected = type(error).__name__
        values = {
            "kv": kv,
            "cap": cap,
            "size": size,
            "block": block,
            "hf.rank": paths.ABSENT if rank == "absent" else rank,
        }
        leaf = walk(forest, root, values)
        if leaf.kind == "unknown":  # a TypeError may be ours: allowed only where the engine fails too
            assert expected == "TypeError", leaf
            continue
        assert told(leaf, values) == expected, values


@pytest.mark.parametrize(
    "body",
    [
        "return ['x'] if hash(size) else []",
        "return ['x'] if size / 2 > 3 else []",
        "return ['x'] if size > block else []",
        "return ['x'] if {64: 1}.get(size) else []",
        "return ['x'] if size > 100000 else []",
        "return [size]",
        "return ['x'] if hf.rank * hf.other > 3 else []",
        "return ['x'] if range(size) else []",
    ],
)
def test_an_opaque_use_is_unknown_never_a_guess(body: str) -> None:
    forest, root = tree_of(compiled(body))
    kinds = {leaf.kind for leaf in forest.leaves(root)}
    assert "unknown" in kinds
    assert not any(leaf.kind == "reasons" and leaf.payload == ("x",) for leaf in forest.leaves(root))


def test_no_except_of_the_engine_swallows_an_opaque_use() -> None:
    body = "try:\n    return ['x'] if size / 2 > 3 else []\nexcept Exception:\n    return ['fine']"
    forest, root = tree_of(compiled(body))
    assert [leaf.kind for leaf in forest.leaves(root)] == ["unknown"]


def test_a_question_nobody_asks_is_not_in_the_tree() -> None:
    forest, root = tree_of(compiled("return ['x'] if kv == 'fp8' and kv != 'auto' else []"))
    assert forest.nodes[root][0] == "split"
    assert {forest.nodes[n].payload for _, n in forest.nodes[root][2]} == {("x",), ()}


def test_equal_comparisons_become_one_membership() -> None:
    forest, root = tree_of(compiled("return [] if size == 64 or size == 128 or size == 256 else ['no']"))
    assert forest.nodes[root][1:5] == ("size", (), "in", (64, 128, 256))


def test_a_tracked_value_outside_a_run_raises() -> None:
    with pytest.raises(Opaque, match="outside a run"):
        bool(Choice(Field("kv", KV, KV)))
    run = Run(())
    run.number("n", NUMBER)
    assert not run.path
