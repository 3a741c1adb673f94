"""attnfit's own backend as the selector sees it: one more backend, where the plug-in is, with rules of its own.

What it serves stands in plugin/serves.py alone; the order and the words of the questions are the engine's
(`AttentionBackend.validate_configuration`, vllm/v1/attention/backend.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from attnfit.core import Capability, Question, Reason, Selection, Status, Verdict
from attnfit.engines.vllm import rules
from attnfit.engines.vllm.plugin import indexers, serves, settings

EXTRA = "attnfit[vllm]"
FACT = "attnfit"  # the environment fact: the plug-in is installed beside the engine
ENTRY_POINT = "attnfit"  # its name among vLLM's plug-ins, as VLLM_PLUGINS counts them
NAMES = (serves.NAME, serves.NAME_IF_TAKEN, serves.CUSTOM)
PLACE = "attnfit/engines/vllm/plugin/"
_WHERE = f"{PLACE}serves.py"

_SOMEBODY_ELSES = (  # registry.py, get_path, 0.12 to 0.33: without one it raises "must be registered before use"
    "which backend a plug-in registers as CUSTOM, if any does; attnfit's is not installed there"
)

# What every MLA backend is asked beside its own rules, in the engine's order: code, whether the question asks for it,
# the engine's words. Asked only by releases whose selector config has the field.
_Asked = tuple[str, str, Callable[[Question], bool], str]
_BEFORE: tuple[_Asked, ...] = (
    (
        "mm_prefix",
        "use_mm_prefix",
        lambda q: q.use_mm_prefix,
        "partial multimodal token full attention not supported",
    ),
    ("mla", "use_mla", lambda q: not q.use_mla, "non-MLA not supported"),
    ("sink", "has_sink", lambda q: q.has_sink, "attention sinks not supported"),
    ("sparse", "use_sparse", lambda q: not q.use_sparse, "non-sparse not supported"),
    (
        "per_head_quant_scales",
        "use_per_head_quant_scales",
        lambda q: q.use_per_head_quant_scales,
        "per-head quant scales not supported",
    ),
)
_AFTER: tuple[_Asked, ...] = (
    ("attn_type", "attn_type", lambda q: q.attn_type != "decoder", "attention type {attn_type} not supported"),
    ("sliding_window", "has_sliding_window", lambda q: q.has_sliding_window, "sliding window not supported"),
    ("rswa", "use_rswa", lambda q: q.use_rswa, "R-SWA not supported"),
    ("non_causal", "use_non_causal", lambda q: q.use_non_causal, "non-causal attention not supported"),
    (
        "non_causal_dcp",
        "use_dcp",
        lambda q: q.use_mla and q.use_non_causal and q.use_dcp,
        "non-causal MLA attention with DCP not supported",
    ),
    ("batch_invariance", "use_batch_invariant", lambda q: q.use_batch_invariant, "batch invariance not supported"),
    ("pcp", "use_pcp", lambda q: q.use_pcp, "PCP not supported"),
)
_SINK_UP_TO = ("0.16.0", "sink setting not supported")  # backend.py:250 of 0.16.0


class Ours(NamedTuple):
    """The plug-in of one launch: vLLM's release, whether it is loaded there, and its settings."""

    release: str
    loaded: bool
    auto: bool = False  # vLLM tries it by itself, last
    indexer: bool = False  # our indexer in place of the one that needs DeepGEMM
    deep_gemm: bool = False  # DeepGEMM is stated, or found, to be installed
    why: str = ""  # it is installed and not loaded

    @property
    def known(self) -> bool:
        """Whether it was written for this release."""
        return self.release in serves.RELEASES

    @property
    def names(self) -> tuple[str, ...]:
        """By what --attention-backend reaches it, the name to write first."""
        if not self.known:
            return (serves.NAME,)
        return (serves.NAME, serves.CUSTOM) if self.release in serves.NAMED else (serves.CUSTOM,)


def of(version: str, env: Mapping[str, bool] | None, variables: Mapping[str, str]) -> Ours:
    """version: vLLM's, as asked. env: environment facts. variables: those that the server is started with."""
    release = version.partition("+")[0]  # the build says nothing of the interfaces
    if not (env or {}).get(FACT):
        return Ours(release, False)
    if release not in serves.RELEASES:
        return Ours(release, False, why=f"attnfit's plug-in is installed and not loaded: it {_knows(release)}")
    allowed = variables.get("VLLM_PLUGINS")
    if allowed is not None and ENTRY_POINT not in allowed.split(","):
        return Ours(release, False, why=f"attnfit's plug-in is installed and not loaded: VLLM_PLUGINS={allowed}")
    on = {name: settings.is_on(name, variables) for name in (settings.AUTO, settings.INDEXER)}
    return Ours(release, True, on[settings.AUTO], on[settings.INDEXER], bool((env or {}).get("deep_gemm")))


def listed(version: str) -> list[tuple[str, str]]:
    """Its name and where it is defined, for a release that the plug-in knows."""
    ours = of(version, {FACT: True}, {})
    return [(ours.names[0], f"{PLACE.replace('/', '.')}backend.TritonMLASparseBackend")] if ours.loaded else []


def _knows(release: str) -> str:
    return f"knows vLLM {', '.join(serves.RELEASES)}, and this is {release}"


def selected(
    select: Callable[[Question], Selection], ours: Ours, asked: Sequence[str], explicit: str
) -> Callable[[Question], Selection]:
    """`select` with our backend among the others.

    asked: the fields of the release's selector config. explicit: what it raises where a backend asked for refuses.
    """

    def with_ours(q: Question) -> Selection:
        found = select(q)
        if q.backend == serves.CUSTOM and not ours.loaded:
            found = msgspec.structs.replace(found, chosen=None, error=None, unknown=_SOMEBODY_ELSES)
        named = ours.loaded and q.backend in ours.names
        tried = ours.loaded and ours.auto and q.use_mla
        if not (named or tried or (q.use_mla and q.use_sparse)):
            return found
        mine = verdict(q, ours, asked, candidate=tried)
        candidates = [v for v in found.verdicts if v.candidate]
        others = found.verdicts[len(candidates) :]
        found = msgspec.structs.replace(
            found, verdicts=(*candidates, mine, *others) if tried else (*found.verdicts, mine)
        )
        if tried:
            found = _tried(found, mine, q.backend is None)
        return _named(found, q, mine, explicit) if named else found

    return with_ours


def verdict(q: Question, ours: Ours, asked: Sequence[str], *, candidate: bool = False) -> Verdict:
    """What our backend says to a question, under the name that reaches it."""
    name = q.backend if q.backend in ours.names else ours.names[0]
    if not ours.known:
        text = f"attnfit's plug-in {_knows(ours.release)}"
        reasons = [Reason("release", text, ", ".join(serves.RELEASES), ours.release, _WHERE)]
    else:
        reasons = list(_reasons(q, ours.release, asked))
    status = Status.REFUSES if reasons else Status.ACCEPTS
    return Verdict(str(name), status, tuple(reasons), candidate=candidate, brought_by=EXTRA)


def _reasons(q: Question, release: str, asked: Sequence[str]) -> list[Reason]:
    topk, kv = (q.hf or {}).get("index_topk"), q.kv_cache_dtype or "auto"
    own = serves.refusals(
        dtype=q.dtype, kv_cache_dtype=kv, head_size=q.head_size, capability=(q.capability.major, q.capability.minor),
        index_topk=topk if isinstance(topk, int) else None, release=release,
    )  # fmt: skip
    together = serves.combination(
        head_size=q.head_size, dtype=q.dtype, kv_cache_dtype=kv,
        writes_its_cache=release not in serves.LAYER_WRITES_CACHE,
    )  # fmt: skip
    alone = {what: (f"{what} {needed}", f"{what} {seen}") for what, needed, seen in own[: -1 if together else None]}

    def said(what: str, words: str, code: str = "") -> list[Reason]:
        return [Reason(code or what, words, *alone[what], _WHERE)] if what in alone else []

    found = [each for what in ("head_size", "dtype", "kv_cache_dtype") for each in said(what, f"{what} not supported")]
    found += _generic(_BEFORE, q, release, asked)
    found += said("capability", "compute capability not supported", "compute_capability")
    found += _generic(_AFTER, q, release, asked)
    together = next((each for each in own if each[0] == "index_topk"), together)  # backend.py says the first it finds
    if together is not None:
        what, needed, seen = together
        text = f"{what}: {needed} required but got {seen}"
        found.append(Reason("combination", text, f"{what} {needed}", f"{what} {seen}", _WHERE))
    return found


def _generic(rules: Sequence[_Asked], q: Question, release: str, asked: Sequence[str]) -> Iterator[Reason]:
    for code, field, hit, words in rules:
        if field in asked and hit(q):
            text = _SINK_UP_TO[1] if code == "sink" and release == _SINK_UP_TO[0] else words
            yield Reason(code, text.format(attn_type=q.attn_type), where=f"{PLACE}backend.py")


def _named(found: Selection, q: Question, mine: Verdict, explicit: str) -> Selection:
    """Asked for by name: it alone."""
    if mine.status is Status.ACCEPTS:
        return msgspec.structs.replace(found, chosen=mine.backend, error=None, unknown="")
    error = rules.fill(explicit, q, {"backend": mine.backend, "reasons": [reason.text for reason in mine.reasons]})
    return msgspec.structs.replace(found, chosen=None, error=error, unknown="")


def _tried(found: Selection, mine: Verdict, automatic: bool) -> Selection:
    """Last of those that vLLM tries by itself."""
    accepts = mine.status is Status.ACCEPTS
    valid = (*found.valid, mine.backend) if accepts else found.valid
    found = msgspec.structs.replace(found, valid=valid)
    if not automatic or found.chosen is not None or found.unknown or "Reasons: {" not in (found.error or ""):
        return found
    if accepts:
        return msgspec.structs.replace(found, chosen=mine.backend, automatic=mine.backend, error=None)
    texts = ", ".join(reason.text for reason in mine.reasons)
    head, _, tail = str(found.error).rpartition("}")
    apart = "" if head.endswith("{") else ", "
    return msgspec.structs.replace(found, error=f"{head}{apart}{mine.backend}: [{texts}]}}{tail}")


def needs_indexer(ours: Ours, capability: Capability) -> bool:
    """Whether there are no keys to attend to unless our indexer is switched on."""
    return ours.known and not indexers.deep_gemm_serves(ours.release, capability)


def reached(ours: Ours | None) -> str:
    """What it takes to reach it by name."""
    if ours is None or not ours.known:
        return f"attnfit's plug-in {_knows(ours.release)}" if ours is not None else f"{EXTRA} brings it"
    if ours.loaded:
        return f"this release reaches it by --attention-backend {ours.names[0]}"
    return ours.why or f"`pip install '{EXTRA}'` beside vLLM brings it, as {ours.names[0]}"


def model_class_of(ours: Ours | None, architecture: str, registered: str) -> str:
    """Where the model is built: by a class of ours, which is vLLM's generic one, if our indexer is switched on."""
    routed = ours is not None and ours.loaded and ours.indexer and architecture in indexers.OURS
    return f"{PLACE.replace('/', '.')}indexer.models:{architecture}" if routed else registered
