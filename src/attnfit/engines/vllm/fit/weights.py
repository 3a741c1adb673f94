"""Bytes of weights on the fullest rank, from the checkpoint's tensors and the way vLLM shards them.

Lower ends never exceed what a rank really holds; upper ends allow for what the engine may pad or keep in addition.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

import msgspec

from attnfit.engines.vllm.fit.shard_rules import Cut, Named, kind_of, layer_of, understand
from attnfit.engines.vllm.fit.spec import ceil_div, round_up
from attnfit.engines.vllm.launch.pages import DTYPE_BYTES
from attnfit.engines.vllm.launch.plan import MOST_LAYERS
from attnfit.engines.vllm.launch.state import EngineConfig, Unknown
from attnfit.fit.span import Span

#: name -> (dtype as safetensors names it, shape, bytes)
Tensors = Mapping[str, tuple[str, tuple[int, ...], int]]
_FLOATS = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}
VOCAB_PADDING = 64  # layers/vocab_parallel_embedding.py:32
#: fused-MoE kernels pad each expert's rows to a multiple of this (fused_moe/oracle/mxfp4.py:855, unquantized.py:392)
EXPERT_PADDING = 128
OWN = 4 << 20  # bytes of parameters that the engine adds by itself (scales of the KV cache and the like), at most
_KIMI = ("KimiLinearForCausalLM", "KimiK3ForConditionalGeneration")  # at least 256 rows (kimi_k3/nvidia/model.py:420)


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """What the checkpoint's tensors come to on one rank."""

    checkpoint: int  # bytes of all tensors in the files
    loaded: int  # of those the engine loads
    recast: int  # of those, floats of another size than the engine's parameters
    rank: Span  # of the fullest rank
    unknown: int  # bytes of loaded tensors whose sharding is not known (counted as divided .. replicated)
    unknown_names: tuple[str, ...]  # a few of them


class Shard(NamedTuple):
    """How one launch divides a model."""

    tp: int
    pp: int
    ep: int  # ranks that share the experts; 1: each expert is divided ...
    expert_tp: int  # ... among so many
    shared_whole: bool  # shared experts may be on every rank: sequence-parallel MoE
    kv_heads: int
    heads: int
    layers: int  # decoder layers of the whole model
    experts: int
    intermediate: int  # of one expert; 0: not known
    pads: bool  # a kernel for these experts pads their rows
    pad_hidden: float  # factor by which it may pad their other side
    least_rows: int  # of one expert on one rank
    mtp: bool  # the checkpoint's own draft is loaded
    towers: bool  # encoders of images and sound are loaded
    tied: bool
    element: int  # bytes of an unquantised parameter
    packed: bool  # the checkpoint is quantised: which of its floats the engine keeps as they are, its method knows
    headless: bool  # a pooling model builds no head
    online: bool  # weights are quantised while they load
    state_rows: tuple[int, int]  # of a Mamba layer: groups, state size; (0, 0): none
    partition: tuple[int, ...]  # decoder layers of each pipeline rank


def shard_of(cfg: EngineConfig) -> Shard:
    """The launch's division of the model, from its resolved configuration. Raises Unknown."""
    text, sizes = cfg.text, cfg.sizes
    layers = _int(text, "num_hidden_layers", "num_layers", "n_layer")
    if not 0 < layers <= MOST_LAYERS or cfg.pp > layers:
        raise Unknown(f"a plausible number of layers in config.json (not {layers:.3g})")
    experts = int(getattr(sizes, "num_experts", 0) or 0)
    ep = cfg.tp * cfg.dp * cfg.pcp if cfg.expert_parallel else 1
    quantised, hidden = cfg.quant_config is not None, _int(text, "hidden_size")
    packed = quantised or cfg.quantization == "gguf"
    groups = _int(text, "n_groups", "mamba_n_groups"), _int(text, "ssm_state_size", "mamba_d_state")
    return Shard(
        tp=cfg.tp,
        pp=cfg.pp,
        ep=ep,
        expert_tp=cfg.tp * cfg.dp * cfg.pcp,
        shared_whole=cfg.expert_parallel and cfg.tp > 1 and cfg.dp > 1,
        kv_heads=int(getattr(sizes, "total_num_kv_heads", 0) or 0),
        heads=int(getattr(sizes, "total_num_attention_heads", 0) or 0),
        layers=layers,
        experts=experts,
        intermediate=_int(text, "moe_intermediate_size", "intermediate_size_mlp", "intermediate_size"),
        pads=quantised or bool(cfg.quantization) or cfg.capability.major == 10,
        pad_hidden=round_up(hidden, 256) / hidden if hidden and "mxfp4" in str(cfg.quantization) else 1.0,
        least_rows=256 if cfg.architecture in _KIMI and not cfg.expert_parallel and cfg.tp > 1 else 1,
        mtp=(cfg.speculative or {}).get("method") == "mtp",
        towers=not cfg.flags.get("language_model_only"),
        tied=bool(text.get("tie_word_embeddings") or cfg.config.get("tie_word_embeddings")),
        element=DTYPE_BYTES[cfg.dtype],
        packed=packed,
        headless=cfg.runner_type == "pooling",
        online=bool(cfg.quantization) and not packed,
        state_rows=groups if all(groups) else (0, 0),
        partition=_partition(cfg, layers),
    )


def _int(text: Mapping[str, object], *keys: str) -> int:
    for key in keys:
        value = text.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def _partition(cfg: EngineConfig, layers: int) -> tuple[int, ...]:
    """Decoder layers of each pipeline rank (vllm/distributed/utils.py:198)."""
    given = cfg.flags.env.get("VLLM_PP_LAYER_PARTITION", "")
    parts = [int(p) for p in given.split(",") if p.strip().isdecimal()]
    if len(parts) == cfg.pp and sum(parts) == layers:
        return tuple(parts)
    share, rest = divmod(layers, cfg.pp)
    out = [share] * cfg.pp
    for i in range(2, rest + 2):  # the rest goes to all but the last rank, from behind
        out[-i] += 1
    return tuple(out)


def rank_weights(tensors: Tensors, shard: Shard) -> Weights:
    """What the fullest rank holds of these tensors. Alike ones are judged once: a checkpoint may have 300,000."""
    ranks = _Ranks(shard)
    alike: dict[object, tuple[Named, Span]] = {}
    whole = loaded = recast = unknown = 0
    names: list[str] = []
    for name, (dtype, shape, nbytes) in tensors.items():
        whole += nbytes
        key = (kind_of(name), dtype, shape)
        judged = alike.get(key)
        if judged is None:
            read = understand(name)
            judged = alike[key] = (read, _share(read, dtype, shape, nbytes, shard))
        read, share = judged
        layer = None if read.cut is Cut.TOWER else layer_of(name)
        if _left_out(read, layer, shard):
            continue
        loaded += nbytes
        if not shard.packed and not read.own_dtype and _FLOATS.get(dtype, shard.element) != shard.element:
            recast += nbytes
        if read.cut is Cut.UNKNOWN and nbytes > 1 << 20 and shard.tp > 1:
            unknown += nbytes
            if len(names) < 5:
                names.append(name)
        ranks.add(read, layer, share)
    return Weights(
        checkpoint=whole, loaded=loaded, recast=recast, rank=ranks.fullest(), unknown=unknown,
        unknown_names=tuple(names),
    )  # fmt: skip


class _Ranks:
    """Bytes by pipeline rank: of each decoder layer, of what comes before the first and after the last."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.low, self.high = [0] * (shard.layers + 2), [0] * (shard.layers + 2)

    def add(self, read: Named, layer: int | None, share: Span) -> None:
        first, last = self.shard.layers, self.shard.layers + 1
        if layer is not None and layer < self.shard.layers and read.role != "mtp":
            at = layer
        else:
            at = last if read.role in ("head", "mtp") or layer is not None else first
        self.low[at] += share.low
        self.high[at] += share.high

    def fullest(self) -> Span:
        """The embedding lies on the first rank, the head on the last, and the embedding again where they are one."""
        layers, s = self.shard.layers, self.shard
        ends: list[Span] = []
        begin = 0
        for i, count in enumerate(s.partition):
            held = slice(begin, begin + count)
            begin += count
            low, high = sum(self.low[held]), sum(self.high[held])
            if i == 0:
                low, high = low + self.low[layers], high + self.high[layers]
            if i == len(s.partition) - 1:
                low, high = low + self.low[layers + 1], high + self.high[layers + 1]
                high += self.high[layers] if s.tied and i > 0 else 0
            else:
                high += self.high[layers + 1]  # some classes build the head on every rank
            ends.append(Span(low, high + OWN))
        return Span(max(end.low for end in ends), max(end.high for end in ends))


def _left_out(read: Named, layer: int | None, shard: Shard) -> bool:
    if read.cut is Cut.TOWER:
        return not shard.towers
    beyond = read.role == "mtp" or (layer is not None and layer >= shard.layers > 0)
    return (beyond and not shard.mtp) or read.part in ("weight_shape", "g_idx")


def _share(read: Named, dtype: str, shape: tuple[int, ...], nbytes: int, s: Shard) -> Span:
    """What one rank holds of one tensor."""
    kept = _as_loaded(read, dtype, nbytes, s)
    if s.tp == 1 and s.ep == 1 and read.cut not in (Cut.EXPERT, Cut.VOCAB):
        return kept
    elements = 1
    for side in shape:
        elements *= side
    cut = read.cut
    if elements <= 1 or cut is Cut.WHOLE:
        return kept
    if cut is Cut.EXPERT:
        return _expert(read, shape, kept, s)
    if cut is Cut.ROW and (len(shape) == 1 or shape[-1] == 1):
        return kept  # a bias, or one scale for each output
    if cut is Cut.VOCAB and shape:
        kept = _times(kept, round_up(shape[0], VOCAB_PADDING), shape[0])
        share = _divided(kept, s.tp)
        return Span(0, share.high) if read.role == "head" and (s.tied or s.headless) else share
    if cut is Cut.KV:
        return _divided(kept, min(s.tp, s.kv_heads) if s.kv_heads else s.tp)
    if cut is Cut.QKV and s.heads and s.kv_heads:
        parts = s.heads // s.tp + 2 * max(1, s.kv_heads // s.tp)
        return _times(kept, parts, s.heads + 2 * s.kv_heads)
    if cut in (Cut.TOWER, Cut.EITHER, Cut.UNKNOWN, Cut.QKV):
        return Span(_divided(kept, s.tp).low, kept.high)
    share = _divided(kept, s.tp)
    if read.role == "shared" and s.shared_whole:
        return Span(share.low, kept.high)
    groups, state = s.state_rows
    if groups and groups % s.tp and shape and read.part in ("weight", "bias") and _of_state(shape, s):
        rows = 2 * state * (1 - groups / s.tp)  # groups are repeated so that each rank has its own
        share = Span(share.low, share.high + int(kept.high / shape[0] * rows) + 1)
    return share


def _of_state(shape: tuple[int, ...], s: Shard) -> bool:
    """Tall enough to hold the groups of a Mamba layer."""
    return shape[0] > 2 * s.state_rows[0] * s.state_rows[1]


def _expert(read: Named, shape: tuple[int, ...], kept: Span, s: Shard) -> Span:
    if s.ep > 1:
        return _times(kept, ceil_div(s.experts, s.ep), s.experts) if s.experts else _divided(kept, s.ep)
    share, rows = _divided(kept, s.expert_tp), s.intermediate // s.expert_tp
    if rows > 0:
        least = max(rows, s.least_rows)
        most = round_up(least, EXPERT_PADDING) if s.pads else least
        share = Span(share.low * least // rows, ceil(ceil_div(share.high * most, rows) * s.pad_hidden))
    by_output = read.part == "bias" or (read.part == "weight_scale" and shape[-1] == 1)
    return Span(share.low, max(share.high, kept.high)) if by_output else share  # of inputs divided: on every rank


def _as_loaded(read: Named, dtype: str, nbytes: int, s: Shard) -> Span:
    """Bytes once loaded. The engine creates unquantised parameters in the served dtype, whatever the files hold
    (model_loader/base_loader.py:73); an online method may shrink them to 4 bits."""
    size = _FLOATS.get(dtype)
    if size is None or read.part.startswith(("weight_scale", "input_scale", "scale", "weight_global")):
        return Span.exact(nbytes)
    elements = nbytes // size
    low = high = elements * s.element
    if s.packed or read.cut in (Cut.TOWER, Cut.UNKNOWN):
        as_it_is = read.part != "weight" or read.cut in (Cut.WHOLE, Cut.UNKNOWN)
        low, high = min(low, nbytes), max(high, nbytes) if as_it_is else high
    if read.own_dtype:
        low, high = min(low, elements * 2), max(high, elements * 4)
    if s.online and read.cut not in (Cut.WHOLE, Cut.VOCAB):
        low = elements // 2
    return Span(low, high)


def _divided(kept: Span, ranks: int) -> Span:
    return Span(kept.low // ranks, ceil_div(kept.high, ranks))


def _times(kept: Span, numerator: int, denominator: int) -> Span:
    return Span(kept.low * numerator // denominator, ceil_div(kept.high * numerator, denominator))
