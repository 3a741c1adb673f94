"""What the fullest rank holds before the KV cache: its weights, less what is offloaded, and the buffers for LoRA."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from attnfit.core import Capability
from attnfit.engines import Weights
from attnfit.engines.vllm.fit.complete import lacking
from attnfit.engines.vllm.fit.config_weights import derive
from attnfit.engines.vllm.fit.lora import asked, buffers
from attnfit.engines.vllm.fit.overhead import absorbed
from attnfit.engines.vllm.fit.shard_rules import layer_of
from attnfit.engines.vllm.fit.weights import Shard, Tensors, rank_weights, shard_of
from attnfit.engines.vllm.launch.pages import DTYPE_BYTES
from attnfit.engines.vllm.launch.state import EngineConfig, Unknown
from attnfit.fit.span import Span

GIB = 1 << 30
TOWER = 4 * GIB  # encoders of images and sound that a config does not tell, at most
_OFFLOADS = ("offload_group_size", "offload_params")
#: load formats that read the safetensors files which lie there; None: the flag's default
_READS_THEM = (None, "auto", "hf", "safetensors", "fastsafetensors", "instanttensor")
_WITHIN = ("mtp", "ngram", "ngram_gpu", "suffix")  # drafts without weights in a place of their own


class Held(msgspec.Struct, kw_only=True):
    """What is known of it, and what is said about it."""

    weights: Span | None = None  # bytes; None: not known
    source: str = ""  # where that comes from
    lora: int = 0  # bytes of the buffers for adapters, at most
    broken: str = ""  # what is wrong with the files: the launch cannot work
    doubt: str = ""  # what may be
    inputs: list[str] = msgspec.field(default_factory=list)
    unknown: list[str] = msgspec.field(default_factory=list)


# The last answers. Many a launch is asked of GPUs of several capabilities, of which the weights know only `pads`.
_LAST: deque[tuple[EngineConfig, Shard, Weights, Held]] = deque(maxlen=64)


def held(cfg: EngineConfig, given: Weights) -> Held:
    """Of one launch with the checkpoint `given`."""
    try:
        shard = shard_of(cfg)
    except Unknown:
        return _held(cfg, given)
    plain = msgspec.structs.replace(cfg, capability=Capability(0, 0), notes=[])
    for this, divided, weights, found in tuple(_LAST):
        if weights is given and divided == shard and this == plain:
            return found
    found = _held(cfg, given)
    _LAST.append((plain, shard, given, found))
    return found


def _held(cfg: EngineConfig, given: Weights) -> Held:
    out = Held()
    reads = _reads(cfg)
    if reads is not None:
        out.broken, out.doubt = given.broken, given.doubt
        if not reads and given.broken:  # another file format may be what is loaded
            out.broken, out.doubt = "", given.broken
    tensors = given.tensors if reads is not None else None
    if cfg.quantization == "gguf" and tensors is None:
        out.unknown.append(f"the weights of a GGUF model on one rank ({given.broken or given.why})")
        return out
    try:
        shard = shard_of(cfg)
    except Unknown as reason:
        out.unknown.append(str(reason))
        return out
    method = (cfg.speculative or {}).get("method")
    if method not in (None, *_WITHIN):
        out.unknown.append("the weights of the draft model")
    if tensors is not None and not out.broken:
        _check(out, cfg, shard, tensors)
    if out.broken:
        return out
    if tensors is not None:
        rank, parts = _of_files(out, cfg, shard, tensors), tensors
    else:
        why = given.why if reads is not None else "--load-format dummy reads no file"
        try:
            rank, parts = _of_config(out, cfg, shard, why)
        except Unknown as reason:
            out.unknown.append(str(reason))
            return out
    rank = Span(rank.low, rank.high + absorbed(cfg, DTYPE_BYTES[cfg.dtype]))
    out.weights = _offloaded(out, cfg, rank, shard, parts)
    if (slots := asked(cfg)) is not None:
        out.lora = buffers(cfg, shard, parts)
        out.inputs.append(
            f"buffers for {slots[0]:,} LoRA adapter{'s' * (slots[0] > 1)} of rank {slots[1]:,} take up to "
            f"{out.lora / GIB:.2f} GiB besides (--max-loras, --max-lora-rank)"
        )
    return out


def _reads(cfg: EngineConfig) -> bool | None:
    """Whether the launch reads the files that were looked at; None: it reads none at all."""
    form = cfg.flags.get("load_format")
    return None if form == "dummy" else form in _READS_THEM or cfg.quantization == "gguf"


def _check(out: Held, cfg: EngineConfig, shard: Shard, tensors: Tensors) -> None:
    fault, certain = lacking(cfg, shard, tensors)
    if not fault:
        return
    said = f"the weight files are not this model's whole: {fault}"
    if out.doubt:
        said = f"{out.doubt}; {fault}"
    if certain and _reads(cfg):
        out.broken, out.doubt = f"{said}; download the model again", ""
    else:
        out.doubt = said


def _of_files(out: Held, cfg: EngineConfig, shard: Shard, tensors: Tensors) -> Span:
    found = rank_weights(tensors, shard)
    out.source = "the headers of the " + ("GGUF file" if cfg.quantization == "gguf" else "safetensors files")
    out.inputs.append(
        f"the checkpoint has {found.checkpoint / GIB:.2f} GiB, of which {found.loaded / GIB:.2f} are loaded"
    )
    if found.recast:
        out.inputs.append(f"{found.recast / GIB:.2f} GiB of it are loaded into parameters of {cfg.dtype}")
    if found.unknown:
        names = ", ".join(found.unknown_names[:3])
        out.inputs.append(f"{found.unknown / GIB:.2f} GiB of it divided among the ranks or not: {names}")
    return found.rank


def _of_config(out: Held, cfg: EngineConfig, shard: Shard, missing: str) -> tuple[Span, Tensors]:
    derived = derive(cfg)
    out.source = "config.json"
    out.inputs.append("weights are computed from config.json" + (f" ({missing})" if missing else ""))
    low, high = rank_weights(derived.low, shard).rank, rank_weights(derived.high, shard).rank
    if (cfg.speculative or {}).get("method") == "mtp":
        out.unknown.append("the weights of the checkpoint's own draft")
    if derived.towers:
        out.inputs.append(f"encoders of images and sound are not in config.json: up to {TOWER / GIB:g} GiB assumed")
    return Span(low.low, high.high + (TOWER if derived.towers else 0)), derived.high


def _offloaded(out: Held, cfg: EngineConfig, rank: Span, shard: Shard, parts: Tensors) -> Span:
    """Less what stays in CPU memory; only decoder layers can (model_executor/offloader/)."""
    asked_gib = cfg.flags.get("cpu_offload_gb") or 0
    if isinstance(asked_gib, int | float) and asked_gib > 0:
        most = int(min(asked_gib * GIB, 1 << 61))
        outside = rank_weights(_outside(parts), shard).rank.high
        if most >= rank.high - outside:
            out.inputs.append("all decoder layers stay in CPU memory (--cpu-offload-gb)")
        else:
            out.inputs.append(f"{asked_gib:g} GiB of the weights stay in CPU memory (--cpu-offload-gb)")
        rank = Span(max(0, rank.low - most), max(min(rank.high, outside), rank.high - most))
    if any(cfg.flags.get(name) for name in _OFFLOADS):
        out.inputs.append("an offloading flag keeps some weights in CPU memory: none of them is counted for certain")
        rank = Span(0, rank.high)
    return rank


def _outside(parts: Tensors) -> dict[str, tuple[str, tuple[int, ...], int]]:
    names: Iterable[str] = (name for name in parts if layer_of(name) is None)
    return {name: parts[name] for name in names}
