"""Will it fit: the GPU's memory, the weights of the fullest rank, and what is left for the KV cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from math import ceil
from typing import NamedTuple, TypeVar

import msgspec

from attnfit.core import Fit, Gpu
from attnfit.engines import Weights
from attnfit.engines.vllm.fit import older
from attnfit.engines.vllm.fit.groups import Pool, pool
from attnfit.engines.vllm.fit.held import Held, held
from attnfit.engines.vllm.fit.kernel_blocks import layout, packed
from attnfit.engines.vllm.fit.memory import Served, served
from attnfit.engines.vllm.fit.overhead import elsewhere, overhead
from attnfit.engines.vllm.fit.scheduler import batch, hybrid, limits
from attnfit.engines.vllm.fit.spec import Limits, Spec
from attnfit.engines.vllm.fit.specs import Built, layer_specs
from attnfit.engines.vllm.fit.states import too_few
from attnfit.engines.vllm.fit.verdict import Budget, judge
from attnfit.engines.vllm.fit.weights import shard_of
from attnfit.engines.vllm.launch import Case, walk
from attnfit.engines.vllm.launch.state import EngineConfig, Refusal, Unknown
from attnfit.fit.answer import NO_MEMORY
from attnfit.fit.span import Span

GIB = 1 << 30
PROVEN_ON = older.NEWEST
_Figure = TypeVar("_Figure", int, float)
_Found = TypeVar("_Found")


class Ready(NamedTuple):
    """What of the answer no figure of the GPU decides: reckoned once for all that the launch is asked of."""

    built: Built
    given: Weights
    held: Held
    pool: Pool | None
    no_pool: str  # why not


def fitter(case: Case, weights: Weights) -> Callable[[Gpu], Fit | None]:
    """Answers for a launch that passes, on any GPU of the case's compute capability; None for one that does not, or
    with values nobody can follow."""
    ready = _followed(lambda: _ready(case, weights))

    def fit_of(gpu: Gpu) -> Fit | None:
        found = None if ready is None else _followed(lambda: fit(ready, gpu))
        return found if found is not None and _plausible(found) else _unusable(weights)

    return fit_of


def _followed(work: Callable[[], _Found]) -> _Found | None:
    try:
        return work()
    except (Refusal, Unknown):
        return None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        if os.environ.get("ATTNFIT_DEBUG"):
            raise
        return None  # config.json can hold anything, and no figure is better than a wrong one


def _ready(case: Case, weights: Weights) -> Ready:
    walked = walk(case)
    answer = walked.answer
    built = Built(walked.config, answer.kv_cache_dtype, answer.kv_layers, walked.sizes, case.capability)
    has = held(built.cfg, weights)
    if has.broken:
        return Ready(built, weights, has, None, "")
    try:
        return Ready(built, weights, has, _pool(built), "")
    except Unknown as reason:
        return Ready(built, weights, has, None, str(reason))


def _unusable(weights: Weights) -> Fit | None:
    """Broken files are said even where nothing can be measured; whether the launch reads them is then not known."""
    if not weights.broken:
        return None
    return Fit(verdict="unknown", why=weights.broken, files=weights.broken)


def _plausible(found: Fit) -> bool:
    """No figure is larger than any file or memory can be; config.json may hold numbers that are."""
    figures = (found.memory, found.request_bytes, found.length, found.weights, found.overhead, found.tokens)
    return all(n is None or n < 1 << 62 for f in figures for n in (f if isinstance(f, tuple) else (f,)))


def fit(ready: Ready, gpu: Gpu) -> Fit:
    """The answer for one rank of a launch."""
    built, given = ready.built, ready.given
    cfg = built.cfg
    memory = None if gpu.memory_gib is None else int(gpu.memory_gib * GIB)
    has = msgspec.structs.replace(ready.held, inputs=[*ready.held.inputs], unknown=[*ready.held.unknown])
    if has.broken:
        return Fit(verdict="breaks", why=has.broken, files=has.broken, gpus=_devices(cfg))
    weights = has.weights
    extra, said = overhead(cfg, batch(cfg, built.capability, memory or 0, gpu.name), cfg.max_model_len)
    extra = Span(extra.low, extra.high + has.lora + elsewhere(built.capability, memory or 0))
    has.inputs.append(said)
    if elsewhere(built.capability, memory or 0):
        has.inputs.append("the GPU shares the machine's main memory: what other programs take meanwhile is counted too")
    if cfg.release != PROVEN_ON:
        has.inputs.append(f"memory is reckoned as vLLM {PROVEN_ON} does, the release that this was compared with")
    found: Pool | None = None
    try:
        if ready.pool is None:
            raise Unknown(ready.no_pool)
        found, bound = ready.pool, limits(cfg, batch(cfg, built.capability, memory or 0, gpu.name).tokens)
    except Unknown as reason:
        has.unknown.append(str(reason))
        bound = Limits(in_flight=0)
    share = float(cfg.flags.get("gpu_memory_utilization") or 0.9)
    budget = None if memory is None else _budget(cfg, gpu, memory, share, found)
    if budget is None:
        has.unknown.append(NO_MEMORY)
    cache = None if budget is None else _cache(budget, weights, extra)
    ends = None if found is None or cache is None else _ends(cfg, found, bound, cache)
    if budget is not None and budget.asked is not None and budget.asked > budget.total.high:
        ends = None  # a cache larger than the GPU holds nothing
    verdict, why = judge(budget, weights, extra, cache, ends, doubts=bool(has.unknown))
    light = weights is not None and budget is not None and weights.low <= budget.allowed.high
    if verdict == "breaks" and light and ends is not None and found is not None and len(found.groups) > 1:
        # An older check at start looks at one group: it may let pass what a request of that length then does not get.
        verdict = "breaks" if older.rules(cfg.release).checks_all else "may break"
    sequences = None
    if found is not None and cache is not None and weights is not None and verdict in ("fits", "may break"):
        seqs = batch(cfg, built.capability, memory or 0, gpu.name).seqs
        if few := too_few(built, found.bytes_per_block, cache, seqs):
            verdict, why, sequences = few
    supposed = verdict == "breaks" and given.tensors is None
    if supposed:
        # The directory holds no weights: those it is launched with may be others than its config.json tells.
        verdict, why = "may break", f"if the weights are those that config.json tells, {why}"
    if has.doubt and verdict != "breaks":
        supposed = False
        verdict, why = "unknown", has.doubt
    request = None
    if found is not None and found.groups:
        request = found.blocks(cfg.max_model_len, bound) * found.bytes_per_block
    return Fit(
        verdict=verdict,
        why=why,
        supposed=supposed,
        files=has.doubt,
        gpus=_devices(cfg),
        memory=memory,
        usable=None if budget is None else _tuple(budget.total),
        utilization=share,
        weights=None if weights is None else _tuple(weights),
        weights_from=has.source,
        overhead=_tuple(extra),
        kv_cache=None if cache is None or weights is None else _tuple(cache),
        kv_cache_asked="" if budget is None else budget.asked_by,
        token_bytes=None if request is None else request / cfg.max_model_len,
        request_bytes=request,
        length=cfg.max_model_len,
        tokens=_pair(ends, lambda s: s.capacity.tokens if s.capacity else 0, weights),
        requests=_pair(ends, lambda s: s.capacity.concurrency if s.capacity else 0.0, weights),
        longest=_pair(ends, lambda s: s.longest, weights),
        sequences=sequences,
        inputs=tuple(has.inputs),
        unknown=tuple(has.unknown),
    )


def _devices(cfg: EngineConfig) -> int | None:
    """GPUs of this machine that the launch uses; None where it runs on several machines."""
    several = cfg.flags.get("nnodes") not in (None, 1) or cfg.flags.get("data_parallel_size_local") is not None
    return None if several else cfg.tp * cfg.pp * cfg.dp * cfg.pcp


def _budget(cfg: EngineConfig, gpu: Gpu, memory: int, share: float, found: Pool | None) -> Budget:
    low, high = gpu.cuda_gib or (None, None)
    total = Span(memory if low is None else int(low * GIB), memory if high is None else int(high * GIB))
    allowed = Span(ceil(total.low * share), ceil(total.high * share))
    blocks, size = cfg.flags.get("num_gpu_blocks_override"), cfg.flags.get("kv_cache_memory_bytes")
    if isinstance(blocks, int) and blocks > 0 and found is not None:
        asked = blocks * found.bytes_per_block
        return Budget(total=total, allowed=allowed, asked=asked, asked_by="--num-gpu-blocks-override")
    if isinstance(size, int) and size > 0:
        return Budget(total=total, allowed=allowed, asked=size, asked_by="--kv-cache-memory-bytes")
    return Budget(total=total, allowed=allowed)


def _cache(budget: Budget, weights: Span | None, extra: Span) -> Span:
    """Bytes for the KV cache, at worst and at best."""
    if budget.asked is not None:
        return Span.exact(budget.asked)
    has = weights or Span(0, 0)
    low, high = budget.allowed.low - has.high - extra.high, budget.allowed.high - has.low - extra.low
    return Span(max(0, low), max(0, high))


def _pool(built: Built) -> Pool:
    cfg = built.cfg
    if cfg.text.get("num_kv_shared_layers"):
        raise Unknown("which layers share another layer's KV cache")
    if cfg.attention.get("hisparse_config"):
        raise Unknown("the KV cache with HiSparse")
    raw = layer_specs(built)
    specs = [packed(spec, layer, built) for spec, layer in zip(raw, built.layers, strict=True)]
    kept = [spec for spec in specs if spec.kind is not None]
    if cfg.dcp > 1 and any(spec.window is not None for spec in kept):
        raise Unknown("sliding windows with decode context parallelism")
    if cfg.pp > 1:
        kept = _widest_stage(cfg, kept)
    older.check(cfg, kept)
    below = older.rules(cfg.release).padded_below
    plain = cfg.release != PROVEN_ON or not kept  # before 0.33.0 the layout changes no size of what is proven
    return pool(kept, "LBNHC" if plain else layout(built, kept), hybrid=hybrid(cfg), padded_below=below)


def _widest_stage(cfg: EngineConfig, specs: list[Spec]) -> list[Spec]:
    """The pipeline rank with the most layers, where all decoder layers are alike."""
    partition = shard_of(cfg).partition
    first, widest = partition[0], max(partition)
    if first <= 0 or any(spec.count % first for spec in specs) or any(spec.role != "target" for spec in specs):
        raise Unknown("the KV cache of pipeline ranks whose layers differ")
    if len({spec.kind for spec in specs}) > 1:
        raise Unknown("the KV cache of pipeline ranks whose layers differ")
    return [msgspec.structs.replace(spec, count=spec.count // first * widest) for spec in specs]


def _ends(cfg: EngineConfig, found: Pool, bound: Limits, cache: Span) -> tuple[Served, Served]:
    override = cfg.flags.get("num_gpu_blocks_override")
    override = override if isinstance(override, int) and override > 0 else None
    auto = cfg.flags.get("max_model_len") in (-1, "auto")
    held_back = older.rules(cfg.release).held_back
    worst, best = (
        served(found, bound, free, cfg.max_model_len, override=override, auto=auto, held_back=held_back)
        for free in (cache.low, cache.high)
    )
    return worst, best


def _pair(
    ends: tuple[Served, Served] | None, read: Callable[[Served], _Figure], weights: Span | None
) -> tuple[_Figure, _Figure] | None:
    """A figure at the worst and at the best; None where the weights are not known."""
    return None if ends is None or weights is None else (read(ends[0]), read(ends[1]))


def _tuple(span: Span) -> tuple[int, int]:
    return span.low, span.high
