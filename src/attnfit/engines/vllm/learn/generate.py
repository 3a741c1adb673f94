"""Random questions that reach every branch of a book: half of them shaped like real models, half aimed at one branch.

An aimed question starts from a random way down a random tree; values that satisfy the way are drawn from the constants
that the book's own tests compare with, and their neighbours. Everything follows from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from attnfit.engines.vllm.book import Book
from attnfit.engines.vllm.tree import ABSENT, Node

MODELS: tuple[dict[str, Any], ...] = (  # shapes seen in real configs, so that many questions are plausible ones
    {"use_mla": True, "head_size": 576, "hf": {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "kv_lora_rank": 512}},
    {"use_mla": True, "head_size": 576, "hf": {"qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
    "kv_lora_rank": 512}},
    {"use_mla": True, "head_size": 576, "use_sparse": True,
     "hf": {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 512,
     "index_topk": 2048}},
    {"use_mla": True, "head_size": 576, "use_sparse": True,
     "hf": {"qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "kv_lora_rank": 512,
     "index_topk": 2048}},
    {"use_mla": True, "head_size": 512, "use_sparse": True,
     "hf": {"qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256, "kv_lora_rank": 512,
     "index_topk": 2048}},
    {"use_mla": True, "head_size": 320, "hf": {"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
    "kv_lora_rank": 256}},
    *({"head_size": size, "hf": {}} for size in (64, 80, 96, 128, 192, 256, 512)),
    {"head_size": 256, "hf": {"attn_logit_softcapping": 50.0}},
    {"head_size": 128, "hf": None},
)  # fmt: skip
SIZES = (16, 32, 40, 48, 64, 72, 80, 96, 104, 112, 120, 128, 160, 192, 256, 264, 320, 384, 512, 576, 640, 1024)
BLOCKS = (1, 8, 16, 32, 48, 64, 96, 128, 144, 256, 512, 1024)
HEADS = (1, 2, 4, 6, 8, 12, 16, 17, 20, 28, 32, 48, 64, 96, 128)
RARELY: dict[str, tuple[Any, ...]] = {
    "pcp_size": (2, 4), "rswa_window": (128, 1024), "is_diffusion": (True,), "use_trtllm_attention": (True, False),
}  # fmt: skip
RARE = 0.12  # how often a boolean field is set when nothing asks for it


class Generator:
    """Questions for one book, as mappings that `row.question_of` and the witness read."""

    def __init__(self, book: Book, seed: int) -> None:
        self.book, self.random = book, random.Random(seed)
        self._domains: dict[str, list[Any]] = {"capability": [], **book.written.fields}
        self._pools = self._constants()
        self._seen: set[int] = set()
        self._helpers = dict(book.helpers)
        self._parents: dict[int, list[tuple[Node, Node]]] = {}  # id(child) -> (parent, child)
        self._edges: list[tuple[Node, Node]] = []
        for tree in (
            *(t for g in book.verdicts.groups for _, _, t, _ in g.members),
            book.priority,
            *self._helpers.values(),
        ):
            self._index(tree)

    def _index(self, tree: Node) -> None:
        todo = [tree]
        while todo:
            node = todo.pop()
            if node.__class__ is not tuple or id(node) in self._seen:
                continue
            self._seen.add(id(node))
            for child in {id(n): n for n in (node[1].values() if len(node) == 2 else node[2:])}.values():
                self._parents.setdefault(id(child), []).append((node, child))
                self._edges.append((node, child))
                todo.append(child)

    def environments(self, count: int) -> list[dict[str, bool]]:
        """Environment facts to ask under, `count` or more: the release's own, all present, those that some branch
        demands, then random ones."""
        own = {**self.book.environment, "VLLM_BATCH_INVARIANT": False}
        found = [own, {**dict.fromkeys(own, True), "VLLM_BATCH_INVARIANT": False}]
        for node, child in self._edges:
            if self.book.names[node[0]].startswith("env."):
                env = {**own, **self._demanded(node, child)}
                if env not in found:
                    found.append(env)
        while len(found) < count:
            likely, rare = (0.8, 0.3) if len(found) % 2 else (0.5, 0.5)
            found.append({name: self.random.random() < (likely if own[name] else rare) for name in own})
        return found

    def _demanded(self, node: Node, child: Node) -> dict[str, bool]:
        """The facts on one way from a root to this branch that does not contradict itself."""
        for _ in range(20):
            facts: dict[str, bool] = {}
            at: tuple[Node, Node] | None = (node, child)
            while at is not None:
                name = self.book.names[at[0][0]]
                if name.startswith("env."):
                    value = next(v for v, below in at[0][1].items() if below is at[1])
                    if facts.setdefault(name[4:], value) != value:
                        break
                parents = self._parents.get(id(at[0]))
                at = self.random.choice(parents) if parents else None
            else:
                return facts
        return {}

    def questions(self, count: int, env: dict[str, bool]) -> Iterator[dict[str, Any]]:
        """`count` questions to be asked under `env`."""
        for i in range(count):
            wanted = self._aimed(env) if i % 2 else {}
            yield self._question(wanted or self._model())

    # -- aiming -------------------------------------------------------------------------------------------------

    def _aimed(self, env: dict[str, bool]) -> dict[str, Any]:
        for _ in range(12):
            tests: dict[int, list[Any]] = {}
            node, child = self.random.choice(self._edges)
            possible = self._take(node, child, tests, env)
            while id(node) in self._parents and possible:  # up to a root, by any of its ways
                node, child = self.random.choice(self._parents[id(node)])
                possible = self._take(node, child, tests, env)
            for number, tree in self._helpers.items():
                if number in tests:
                    self._reach(tree, tests, number, env)
            found = self._solve(tests) if possible else None
            if found is not None:
                return found
        return {}

    def _take(self, node: Node, child: Node, tests: dict[int, list[Any]], env: dict[str, bool]) -> bool:
        """Demand the answer that leads from a node to its child. False where the environment rules it out."""
        name = self.book.names[node[0]]
        if name.startswith("env."):
            return node[1].get(env.get(name[4:], False)) is child
        if len(node) == 2:
            tests.setdefault(node[0], []).append({v for v, n in node[1].items() if n is child})
        else:
            tests.setdefault(node[0], []).append((node[1], node[2] is child))
        return True

    def _descend(self, node: Node, tests: dict[int, list[Any]], env: dict[str, bool]) -> Node:
        names = self.book.names
        while node.__class__ is tuple:
            field = node[0]
            if names[field].startswith("env."):
                node = node[1][env.get(names[field][4:], False)]
            elif len(node) == 2:
                below = self.random.choice(list({id(n): n for n in node[1].values()}.values()))
                tests.setdefault(field, []).append({v for v, n in node[1].items() if n is below})
                node = below
            else:
                answer = self.random.random() < 0.5
                tests.setdefault(field, []).append((node[1], answer))
                node = node[2] if answer else node[3]
        return node

    def _reach(self, tree: Node, tests: dict[int, list[Any]], number: int, env: dict[str, bool]) -> None:
        """Constraints under which a helper returns what the rule wants of it."""
        for _ in range(20):
            trial: dict[int, list[Any]] = {}
            leaf = self._descend(tree, trial, env)
            if _passes(leaf.value, tests[number]):
                for field, more in trial.items():
                    tests.setdefault(field, []).extend(more)
                return

    def _solve(self, tests: dict[int, list[Any]]) -> dict[str, Any] | None:
        """Values for the constrained fields, or None where the draw contradicts itself."""
        found: dict[str, Any] = {}
        hf: dict[str, Any] = {}
        for field, wanted in tests.items():
            name = self.book.names[field]
            if field in self._helpers:
                continue
            if name in ("queries_per_kv_head", "queries_left_over", "gathered_heads"):
                if not self._heads(name, wanted, found):
                    return None
                continue
            values = [v for v in self._values(name) if _passes(v, wanted)]
            if not values:
                return None
            value = self.random.choice(values)
            if name == "model_config":
                found["model_config"] = value
            elif name.startswith("hf."):
                hf[name[3:]] = value
            else:
                found[name] = value
        if found.pop("model_config", bool(hf) or None) is False:
            found["hf"] = None
        elif hf:
            found["hf"] = {name: value for name, value in hf.items() if value is not ABSENT}
            found["absent"] = [name for name, value in hf.items() if value is ABSENT]
        return found

    def _heads(self, name: str, wanted: list[Any], found: dict[str, Any]) -> bool:
        for _ in range(40):
            heads, kv, dcp = (self.random.choice(c) for c in (HEADS, HEADS, (1, 2, 4, 8)))
            heads, kv, dcp = (
                found.get("model_num_heads", heads),
                found.get("num_kv_heads", kv),
                found.get("dcp_size", dcp),
            )
            value = {
                "queries_per_kv_head": heads // kv,
                "queries_left_over": heads % kv,
                "gathered_heads": heads * dcp,
            }[name]
            if _passes(value, wanted):
                found.update(model_num_heads=heads, num_kv_heads=kv, dcp_size=dcp)
                return True
        return False

    def _values(self, name: str) -> list[Any]:
        if name == "capability":
            return [tuple(map(int, v.split("."))) for v in self._domains["capability"]]
        if name in self._domains:
            return self._domains[name]
        pool = self._pools.get(name, [])
        if name.startswith("hf."):
            return [ABSENT, None, *pool, *SIZES]
        if name in ("block_size", "num_heads", "rswa_window"):
            return [None, *pool, *BLOCKS]
        return [v for v in (*pool, *SIZES) if v >= (name != "head_size")]

    def _constants(self) -> dict[str, list[int]]:
        """Per number field: the constants it is compared with, their neighbours and multiples."""
        pools: dict[str, set[int]] = {}
        for term, _, const in self.book.forest.tests.values():
            field, *steps = term.split(" ")
            pool = pools.setdefault(field, set())
            numbers = const if isinstance(const, list) else [const]
            for number in (n for n in numbers if isinstance(n, int)):
                pool |= {number - 1, number, number + 1}
            for operand in map(int, steps[1::2]):
                pool |= {operand - 1, operand, operand + 1, 2 * operand, 3 * operand, 5 * operand + 8}
        return {field: sorted(v for v in pool if v >= 0) for field, pool in pools.items()}

    # -- filling ------------------------------------------------------------------------------------------------

    def _model(self) -> dict[str, Any]:
        shape = self.random.choice(MODELS)
        found = dict(shape)
        if found["hf"] and self.random.random() < 0.25:  # one attribute off
            found["hf"] = dict(found["hf"])
            name = self.random.choice(list(found["hf"]))
            if self.random.random() < 0.4:
                del found["hf"][name]
            else:
                found["hf"][name] = self.random.choice((0, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, None))
        return found

    def _question(self, wanted: dict[str, Any]) -> dict[str, Any]:
        draw, pick = self.random.random, self.random.choice
        kv = self._domains.get("kv_cache_dtype") or ["auto", "fp8"]
        question: dict[str, Any] = {
            "capability": pick(self._values("capability") or [(9, 0)]),
            "head_size": pick(SIZES) if draw() < 0.7 else self.random.randrange(1, 700),
            "dtype": pick(("bfloat16", "bfloat16", "float16", "float32")),
            "kv_cache_dtype": pick(("auto", "auto", "fp8", pick(kv), pick(kv))),
            "block_size": None if draw() < 0.5 else pick(BLOCKS) if draw() < 0.8 else self.random.randrange(1, 300),
            "attn_type": "decoder" if draw() < 0.75 else pick(("encoder", "encoder_only", "encoder_decoder")),
            "num_heads": None if draw() < 0.3 else pick(HEADS), "num_kv_heads": None if draw() < 0.3 else pick(HEADS),
            "dcp_size": pick((1, 1, 1, 2, 4)), "flash_attn_version": None if draw() < 0.6 else pick((2, 3, 4)),
            "hf": {}, "backend": pick(self.book.verdicts.names) if draw() < 0.25 else None,
        }  # fmt: skip
        for name in ("model_num_heads", "model_head_size"):
            if draw() < 0.2:
                question[name] = pick(HEADS if name == "model_num_heads" else SIZES)
        for name, values in RARELY.items():
            if draw() < RARE:
                question[name] = pick(values)
        if draw() < 0.2:
            question["run_kv_cache_dtype"] = pick([v for v in kv if v is not None])
        for name in self.book.written.selector:
            if name.startswith(("use_", "has_")):
                question[name] = draw() < (0.4 if name in ("use_mla", "use_sparse") else RARE)
        absent = wanted.pop("absent", [])
        question.update(wanted)
        if question["hf"] is not None and draw() < 0.5:
            for name in (n[3:] for n in self.book.names if n.startswith("hf.")):
                if name not in question["hf"] and name not in absent and draw() < 0.5:
                    question["hf"] = {**question["hf"], name: pick((64, 128, 192, 512, 2048))}
        question["capability"] = "{}.{}".format(*question["capability"])
        return question


def _passes(value: Any, tests: list[Any]) -> bool:
    for test in tests:
        if isinstance(test, set):
            if value not in test:
                return False
            continue
        check, answer = test
        try:
            if check(value) is not answer:
                return False
        except TypeError:
            return False
    return True
