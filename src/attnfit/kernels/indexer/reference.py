"""The indexer in float64, written to be read: the fast kernels are compared with it, and CPU tensors run through it.

The "lightning indexer" of DeepSeek-V3.2 (its technical report, "DeepSeek Sparse Attention", equation 1) scores every
earlier token with a few small heads, and attention then reads only the best `topk` of them:

    logit[t, j] = k_scale[j] * sum over heads h of weights[t, h] * relu(<q[t, h], k[j]>)
"""

from __future__ import annotations

import torch

from attnfit.kernels.e4m3 import encode_e4m3_reference
from attnfit.kernels.indexer.cache import IndexCache, to_float64
from attnfit.kernels.scales import scale_reference

MIN_AMAX = 1e-4  # of a row, for its scale


def index_logits_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    weights: torch.Tensor,
    start: torch.Tensor,
    end: torch.Tensor,
    k_scale: torch.Tensor | None,
    compressed: bool,
    out: torch.Tensor,
) -> None:
    """Logits of tokens over rows [start, end) of k, into `out` [T, width]; everything else becomes -inf."""
    keys = to_float64(k)
    out.fill_(float("-inf"))
    for t in range(q.shape[0]):
        first = max(int(start[t]), 0)
        last = min(int(end[t]), k.shape[0])
        column = 0 if compressed else first
        last = min(last, first + out.shape[1] - column)
        if first < last:
            scale = None if k_scale is None else k_scale[first:last]
            out[t, column : column + last - first] = score(q[t], keys[first:last], weights[t], scale)


def index_logits_paged_reference(
    q: torch.Tensor,
    cache: IndexCache,
    weights: torch.Tensor,
    lengths: torch.Tensor,
    block_table: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Logits of q [B, next_n, H, D] over the first lengths[b, j] keys of request b, into `out` [B * next_n, max_len].

    Key c of request b is row c % block_size of block block_table[b, c // block_size]. A block below 0 is none: -inf.
    """
    out.fill_(float("-inf"))
    batch, next_n = q.shape[:2]
    for b in range(batch):
        for j in range(next_n):
            length = min(int(lengths[b, j]), out.shape[1], block_table.shape[1] * cache.block_size)
            position = torch.arange(max(length, 0), device=q.device)
            block = block_table[b, position // cache.block_size].to(torch.int64)
            position, block = position[block >= 0], block[block >= 0]
            if position.numel() == 0:
                continue
            row = position % cache.block_size
            scale = None if cache.scales is None else cache.scales[block, row]
            at = b * next_n + j
            out[at, position] = score(q[b, j], to_float64(cache.keys[block, row]), weights[at], scale)


def score(q: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """One token's logits, float32 [n]: q [H, D], keys float64 [n, D], weights [H], scale [n] or none."""
    per_head = torch.relu(to_float64(q) @ keys.T)  # [H, n]
    logits = weights.to(torch.float64) @ per_head
    return (logits if scale is None else logits * scale.to(torch.float64)).to(torch.float32)


def index_topk_reference(logits: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor, out: torch.Tensor) -> None:
    """The positions of each row's largest logits among its first lengths[t] columns from starts[t] on, ascending.

    Of equal logits the first are taken. NaN is below every number, -inf included. What is left of `out` becomes -1.
    """
    out.fill_(-1)
    for t in range(logits.shape[0]):
        row = logits[t, max(int(starts[t]), 0) :][: max(int(lengths[t]), 0)]
        missing = torch.isnan(row)
        order = torch.sort(row.masked_fill(missing, float("-inf")), descending=True, stable=True).indices
        order = order[torch.sort(missing[order].to(torch.int8), stable=True).indices]  # numbers before NaN
        best = order[: out.shape[1]].sort().values
        out[t, : best.numel()] = best.to(torch.int32)


def write_index_cache_reference(k: torch.Tensor, cache: IndexCache, slots: torch.Tensor, power_of_two: bool) -> None:
    """Row t of k goes to row slots[t] % block_size of block slots[t] // block_size; a slot below 0 is skipped."""
    kept = slots >= 0
    slots = slots[kept].to(torch.int64)
    block, row = slots // cache.block_size, slots % cache.block_size
    values = k[: kept.numel()][kept]
    if cache.scales is None:
        cache.keys[block, row] = values.to(cache.keys.dtype)
        return
    values = values.to(torch.float32)
    scale = scale_reference(values, MIN_AMAX, power_of_two)
    cache.keys[block, row] = encode_e4m3_reference(values / scale.unsqueeze(-1))
    cache.scales[block, row] = scale
