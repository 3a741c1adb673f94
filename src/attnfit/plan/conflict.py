"""Why nothing in a command helps: the smallest set of facts that conflict, found by letting go of one after the other.

A fact may be let go of if what is left still cannot be served whatever it is; what cannot be let go of is the core. So
without any one fact of the core there is something that serves, and the answer names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import msgspec

from attnfit.core import Capability, Question, Status
from attnfit.decide import Request
from attnfit.plan.edits import Origin
from attnfit.plan.judge import Outcome

MOST_ASKED = 600  # selector questions
_CAPABILITIES = ("9.0", "10.0", "12.0", "8.0", "8.9", "8.6", "7.5", "12.1", "10.3", "7.0")


class Fact(NamedTuple):
    """Something of a question that could be otherwise."""

    name: str
    otherwise: Sequence[Mapping[str, Any]]  # fields of the question, each way
    field: str = ""  # that an answer names


class _TooMany(Exception):
    pass


def because(origin: Origin, outcome: Outcome) -> Iterator[str]:
    """A chain of sentences; nothing where the facts are not known."""
    launch = outcome.launch
    if launch.stage != "selector" or launch.hypothetical:
        return
    for layer in launch.layers:
        if layer.selection.chosen is None and not layer.selection.unknown:
            yield from _core(origin.request, layer.question)
            return


def _core(request: Request, question: Question) -> Iterator[str]:
    asked = _Asked(request)
    try:
        facts = core(asked, question, _facts(question))
    except _TooMany:
        return
    release = f"{request.release.version}"
    names = [fact.name for fact in facts]
    if len(names) == 1:
        yield f"no backend of release {release} serves {names[0]}"
    elif names:
        less = {2: "either alone is", 3: "any two are"}.get(len(names), "any of them but one are")
        many = {2: "the two", 3: "the three"}.get(len(names), "all")
        yield f"{', '.join(names[:-1])} and {names[-1]}: {less} served by release {release}, {many} together are not"
    for fact in facts:
        found = asked.served(question, [fact])
        if found is not None:
            how, backend = found
            yield f"without {fact.name}: {_said(how, fact)}{backend} accepts it"


def core(asked: _Asked, question: Question, facts: Sequence[Fact]) -> list[Fact]:
    """A minimal set: with all the others let go of, nothing serves; with one more let go of, something does."""
    kept = list(facts)
    for fact in facts:
        free = [each for each in facts if each not in kept or each is fact]
        if asked.served(question, free) is None:
            kept.remove(fact)
    return kept


class _Asked:
    """The release's selector, and how often it was asked."""

    def __init__(self, request: Request) -> None:
        self._request, self.left = request, MOST_ASKED

    def served(self, question: Question, free: Sequence[Fact]) -> tuple[Mapping[str, Any], str] | None:
        """Values of what is free with which a backend of the release accepts, and that backend."""
        for ways in product(*([{}, *fact.otherwise] for fact in free)):
            changed = {name: value for way in ways for name, value in way.items()}
            self.left -= 1
            if self.left < 0:
                raise _TooMany
            found = self._request.release.select(
                msgspec.structs.replace(question, **changed), self._request.env, explained=False
            )
            wanted = changed.get("backend", question.backend)
            for verdict in sorted(found.verdicts, key=lambda v: not v.candidate):
                named = wanted is None or verdict.backend == wanted
                if verdict.status is Status.ACCEPTS and named and not verdict.brought_by:
                    return changed, verdict.backend
        return None


def _facts(q: Question) -> list[Fact]:
    """In the order in which they are let go of: what a user can change first, what the model is last."""
    found: list[Fact] = []
    ways: list[dict[str, Any]]
    if q.backend is not None:
        found.append(Fact(f"--attention-backend {q.backend}", [{"backend": None}]))
    if q.block_size is not None:
        found.append(Fact(f"block size {q.block_size}", [{"block_size": None}]))
    if q.kv_cache_dtype not in (None, "auto"):
        others = [{"kv_cache_dtype": v, "run_kv_cache_dtype": v} for v in ("auto", "bfloat16", "fp8")]
        ways = [way for way in others if way["kv_cache_dtype"] != q.kv_cache_dtype]
        found.append(Fact(f"KV cache {q.kv_cache_dtype}", ways, "kv_cache_dtype"))
    for field, name in (
        ("use_dcp", "decode context parallelism"), ("use_pcp", "prefill context parallelism"),
        ("use_batch_invariant", "batch invariance"), ("use_kv_connector", "a KV connector"),
    ):  # fmt: skip
        if getattr(q, field):
            found.append(Fact(name, [{field: False}]))
    capabilities = [Capability.parse(text) for text in _CAPABILITIES]
    ways = [{"capability": each} for each in capabilities if each != q.capability]
    found.append(Fact(f"compute capability {q.capability}", ways, "capability"))
    found.append(Fact(q.dtype, [{"dtype": each} for each in ("bfloat16", "float16") if each != q.dtype], "dtype"))
    for field, name in (
        ("has_sink", "attention sinks"), ("has_sliding_window", "a sliding window"),
        ("use_mm_prefix", "multimodal prefixes"), ("use_non_causal", "non-causal attention"),
        ("use_sparse", "sparse MLA attention"),
    ):  # fmt: skip
        if getattr(q, field):
            found.append(Fact(name, [{field: False}]))
    if q.use_mla and not q.use_sparse:
        found.append(Fact("MLA", [{"use_mla": False, "head_size": 128}]))
    if not q.use_mla:
        sizes = [{"head_size": size, "model_head_size": size} for size in (128, 64, 256) if size != q.head_size]
        found.append(Fact(f"head size {q.head_size}", sizes, "head_size"))
    return found


def _said(how: Mapping[str, Any], fact: Fact) -> str:
    """ "on 9.0 " or the like, where the fact has a field to name."""
    if not fact.field or fact.field not in how:
        return ""
    name = {"capability": "on", "dtype": "in"}.get(fact.field, fact.field.replace("_", " "))
    return f"{name} {how[fact.field]} "
