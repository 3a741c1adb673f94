"""Will it fit: the GPU's memory, the weights of the fullest rank, and what is left for the KV cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from math import ceil
from typing import TypeVar

import msgspec

from attnfit.core import Fit, Gpu
from attnfit.engines import Weights
from attnfit.engines.vllm.fit.config_weights import derive
from attnfit.engines.vllm.fit.groups import Pool, pool
from attnfit.engines.vllm.fit.kernel_blocks import layout, packed
from attnfit.engines.vllm.fit.memory import Served, served
from attnfit.engines.vllm.fit.overhead import absorbed, overhead
from attnfit.engines.vllm.fit.scheduler import batch, hybrid, limits
from attnfit.engines.vllm.fit.spec import FULL, Limits, Spec
from attnfit.engines.vllm.fit.specs import Built, layer_specs
from attnfit.engines.vllm.fit.weights import Tensors, rank_weights, shard_of
from attnfit.engines.vllm.launch import Case, walk
from attnfit.engines.vllm.launch.pages import DTYPE_BYTES
from attnfit.engines.vllm.launch.state import EngineConfig, Refusal, Unknown
from attnfit.fit.span import Span

GIB = 1 << 30
TOWER = 4 * GIB  # encoders of images and sound that a config does not tell, at most
PROVEN_ON = "0.33.0"
_Figure = TypeVar("_Figure", int, float)
_OFFLOADS = ("offload_group_size", "offload_params")


def fit_of(case: Case, gpu: Gpu, weights: Weights) -> Fit | None:
    """The answer for a launch that passes; None for one that does not, or with values nobody can follow."""
    try:
        walked = walk(case)
        built = Built(
            walked.config, walked.answer.kv_cache_dtype, walked.answer.kv_layers, walked.sizes, case.capability
        )
        found = fit(built, gpu, weights.tensors, weights.why)
        return found if _plausible(found) else None
    except (Refusal, Unknown):
        return None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        if os.environ.get("ATTNFIT_DEBUG"):
            raise
        return None  # config.json can hold anything, and no figure is better than a wrong one


def _plausible(found: Fit) -> bool:
    """No figure is larger than any file or memory can be; config.json may hold numbers that are."""
    figures = (found.memory, found.request_bytes, found.length, found.weights, found.overhead, found.tokens)
    return all(n is None or n < 1 << 62 for f in figures for n in (f if isinstance(f, tuple) else (f,)))


def fit(built: Built, gpu: Gpu, tensors: Tensors | None, missing: str = "") -> Fit:
    """The answer for one rank. `tensors`: of the checkpoint's headers, None where `missing` says why there are none."""
    cfg = built.cfg
    memory = None if gpu.memory_gib is None else int(gpu.memory_gib * GIB)
    inputs: list[str] = []
    unknown: list[str] = []
    weights, source = _weights_of(cfg, tensors, missing, inputs, unknown)
    settled = batch(cfg, built.capability, memory or 0, gpu.name)
    extra, said = overhead(cfg, settled, cfg.max_model_len)
    inputs.append(said)
    if cfg.release != PROVEN_ON:
        inputs.append(f"memory is reckoned as vLLM {PROVEN_ON} does, the release that this was compared with")
    share = float(cfg.flags.get("gpu_memory_utilization") or 0.9)
    cache = None
    if memory is not None:
        cache = _cache(cfg, memory, share, weights, extra)
    else:
        unknown.append("the GPU's memory (name the GPU instead of a compute capability)")
    found: Pool | None = None
    try:
        found, bound = _pool(built), limits(cfg, settled.tokens)
    except Unknown as reason:
        unknown.append(str(reason))
        bound = Limits(in_flight=0)
    ends = None if found is None or cache is None else _ends(cfg, found, bound, cache)
    verdict, why = _verdict(cfg, memory, share, weights, cache, ends, found, bool(unknown))
    if verdict == "breaks" and tensors is None:
        # The directory holds no weights: those it is launched with may be others than its config.json tells.
        verdict, why = "may break", f"if the weights are those that config.json tells, {why}"
    if found is None or not found.groups:
        request = None
    else:
        request = found.blocks(cfg.max_model_len, bound) * found.bytes_per_block
    return Fit(
        verdict=verdict,
        why=why,
        memory=memory,
        utilization=share,
        weights=None if weights is None else (weights.low, weights.high),
        weights_from=source,
        overhead=(extra.low, extra.high),
        kv_cache=None if cache is None or weights is None else (cache.low, cache.high),
        token_bytes=None if request is None else request / cfg.max_model_len,
        request_bytes=request,
        length=cfg.max_model_len,
        tokens=_pair(ends, lambda s: s.capacity.tokens if s.capacity else 0, weights),
        requests=_pair(ends, lambda s: s.capacity.concurrency if s.capacity else 0.0, weights),
        longest=_pair(ends, lambda s: s.longest, weights),
        inputs=tuple(inputs),
        unknown=tuple(unknown),
    )


def _weights_of(
    cfg: EngineConfig, tensors: Tensors | None, missing: str, inputs: list[str], unknown: list[str]
) -> tuple[Span | None, str]:
    if cfg.quantization == "gguf" and not tensors:
        unknown.append(f"the weights of a GGUF model on one rank ({missing})")
        return None, ""
    try:
        shard = shard_of(cfg)
    except Unknown as reason:
        unknown.append(str(reason))
        return None, ""
    high_extra = absorbed(cfg, DTYPE_BYTES[cfg.dtype])
    method = (cfg.speculative or {}).get("method")
    if method not in (None, "mtp", "ngram", "ngram_gpu", "suffix"):
        unknown.append("the weights of the draft model")
    if tensors:
        found = rank_weights(tensors, shard)
        source = "the headers of the " + ("GGUF file" if cfg.quantization == "gguf" else "safetensors files")
        inputs.append(
            f"the checkpoint has {found.checkpoint / GIB:.2f} GiB, of which {found.loaded / GIB:.2f} are loaded"
        )
        if found.unknown:
            names = ", ".join(found.unknown_names[:3])
            inputs.append(f"{found.unknown / GIB:.2f} GiB of it divided among the ranks or not: {names}")
        rank = found.rank
    else:
        try:
            derived = derive(cfg)
        except Unknown as reason:
            unknown.append(str(reason))
            return None, ""
        source = "config.json"
        why = f" ({missing})" if missing else ""
        inputs.append(f"weights are computed from config.json{why}")
        low, high = rank_weights(derived.low, shard).rank, rank_weights(derived.high, shard).rank
        rank = Span(low.low, high.high + (TOWER if derived.towers else 0))
        if method == "mtp":
            unknown.append("the weights of the checkpoint's own draft")
        if derived.towers:
            inputs.append(f"encoders of images and sound are not in config.json: up to {TOWER / GIB:g} GiB assumed")
    rank = Span(rank.low, rank.high + high_extra)
    offload = cfg.flags.get("cpu_offload_gb") or 0
    if isinstance(offload, int | float) and offload > 0:
        inputs.append(f"{offload:g} GiB of the weights stay in CPU memory (--cpu-offload-gb)")
        rank = rank.minus(int(offload * GIB))
    if any(cfg.flags.get(name) for name in _OFFLOADS):
        inputs.append("an offloading flag keeps some of the weights in CPU memory: none of them is counted for certain")
        rank = Span(0, rank.high)
    return rank, source


def _cache(cfg: EngineConfig, memory: int, share: float, weights: Span | None, extra: Span) -> Span:
    """Bytes left for the KV cache, at worst and at best."""
    given = cfg.flags.get("kv_cache_memory_bytes")
    if isinstance(given, int) and given > 0:
        return Span.exact(given)
    budget = ceil(memory * share)
    held = weights or Span(0, 0)
    return Span(max(0, budget - held.high - extra.high), max(0, budget - held.low - extra.low))


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
    found = pool(kept, layout(built, kept) if kept else "LBNHC", hybrid=hybrid(cfg))
    if cfg.release != PROVEN_ON and (len(found.groups) > 1 or any(spec.kind not in FULL for spec in kept)):
        raise Unknown(f"how a release other than {PROVEN_ON} shares its KV cache among layers of several kinds")
    return found


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
    worst, best = (
        served(found, bound, free, cfg.max_model_len, override=override, auto=auto) for free in (cache.low, cache.high)
    )
    return worst, best


def _verdict(
    cfg: EngineConfig,
    memory: int | None,
    share: float,
    weights: Span | None,
    cache: Span | None,
    ends: tuple[Served, Served] | None,
    found: Pool | None,
    doubts: bool,
) -> tuple[str, str]:
    if memory is None or cache is None or weights is None:
        return "unknown", "what is needed to tell is missing"
    budget = ceil(memory * share)
    fixed = isinstance(cfg.flags.get("kv_cache_memory_bytes"), int)
    if weights.low > (memory if fixed else budget):
        return "breaks", (
            f"the weights alone need {weights.low / GIB:.2f} GiB on each GPU, and "
            + (f"it has {memory / GIB:.2f}" if fixed else f"{budget / GIB:.2f} are allowed")
        )
    override = cfg.flags.get("num_gpu_blocks_override")
    if isinstance(override, int) and found is not None and weights.low + override * found.bytes_per_block > memory:
        return "breaks", f"weights and {override:,} blocks of KV cache need more than the GPU's {memory / GIB:.2f} GiB"
    if fixed and weights.low + cache.low > memory:
        return "breaks", f"weights and the KV cache asked for need more than the GPU's {memory / GIB:.2f} GiB"
    if ends is None:
        return "unknown", "what is needed to tell is missing"
    worst, best = ends
    if best.capacity is None:
        room = f"at most {cache.high / GIB:.2f} GiB are left for the KV cache"
        if best.longest:
            return "breaks", f"one request of {best.length:,} tokens needs {best.needed / GIB:.2f} GiB, and {room}"
        return "breaks", f"{room}, and that is too little for any request"
    if worst.capacity is not None and not doubts:
        return "fits", "even at the upper end of every estimate"
    if worst.capacity is None:
        return "may break", (
            f"one request of {worst.length:,} tokens needs {worst.needed / GIB:.2f} GiB of KV cache, and "
            f"{cache.low / GIB:.2f} to {cache.high / GIB:.2f} GiB may be left"
        )
    return "may break", "some of it is not known"


def _pair(
    ends: tuple[Served, Served] | None, read: Callable[[Served], _Figure], weights: Span | None
) -> tuple[_Figure, _Figure] | None:
    """A figure at the worst and at the best; None where the weights are not known."""
    return None if ends is None or weights is None else (read(ends[0]), read(ends[1]))
