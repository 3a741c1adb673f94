"""Exact top-k of each row of index logits, without sorting: a radix select on the bit patterns, then a compaction.

fp32 is mapped to unsigned integers in the same order. Four passes over the row, eight bits each, count how often each
digit occurs among what is still in the running, and so pin down the k-th largest value bit by bit. A fifth pass writes
the positions of everything above it, and of as many equals as are still wanted, in ascending order: ties go to the
lowest position, and the answer is the same on every run.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from attnfit.kernels import checks
from attnfit.kernels.indexer.configs import topk_config
from attnfit.kernels.indexer.reference import index_topk_reference


@triton.jit
def _ordered(value):
    """fp32 -> uint32 in the same order; both zeros are one value, NaN is 0, below everything."""
    bits = value.to(tl.uint32, bitcast=True)
    bits = tl.where(bits == 0x80000000, 0, bits)
    flipped = tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)
    return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, 0, flipped)


@triton.jit
def _counts(row, length, bound, lane, BLOCK: tl.constexpr, SHIFT: tl.constexpr):
    """How often each value of the eight bits at SHIFT occurs among logits whose higher bits are those of `bound`."""
    counts = tl.zeros([256], tl.int32)
    for first in range(0, length, BLOCK):
        at = first + lane
        value = _ordered(tl.load(row + at, mask=at < length, other=0.0))
        running = at < length
        if SHIFT < 24:
            running = running & ((value >> (SHIFT + 8)) == (bound >> (SHIFT + 8)))
        counts += tl.histogram(((value >> SHIFT) & 0xFF).to(tl.int32), 256, mask=running)
    return counts


@triton.jit(do_not_specialize=["columns", "topk", "out_width"])
def index_topk_kernel(
    LOGITS,  # fp32 [T, columns]
    STARTS,  # int32 [T] if HAS_STARTS
    LENGTHS,  # int32 [T]
    OUT,  # int32 [T, out_width]
    columns,
    topk,
    out_width,
    stride_lt,
    stride_ot,
    BLOCK: tl.constexpr,
    HAS_STARTS: tl.constexpr,
):
    t = tl.program_id(0)
    start = 0
    if HAS_STARTS:
        start = tl.maximum(tl.load(STARTS + t), 0)
    length = tl.maximum(tl.minimum(tl.load(LENGTHS + t), columns - start), 0)
    row = LOGITS + t.to(tl.int64) * stride_lt + start
    out = OUT + t.to(tl.int64) * stride_ot
    lane = tl.arange(0, BLOCK)

    # A row with no more than topk columns is done with this; of others, what lies beyond topk is cleared.
    found = tl.minimum(length, topk)
    todo = 0 if length <= topk else found
    for first in range(0, out_width, BLOCK):
        at = first + lane
        tl.store(out + at, tl.where(at < found, at, -1), mask=(at < out_width) & (at >= todo))

    if length > topk:
        digits = tl.arange(0, 256)
        bound = tl.zeros([1], tl.uint32)  # the leading bits of the k-th largest value that are known
        wanted = tl.zeros([1], tl.int32) + topk  # how many of the values with these leading bits are wanted
        for step in tl.static_range(4):
            count = _counts(row, length, bound, lane, BLOCK, 24 - 8 * step)
            above = tl.sum(count, 0) - tl.cumsum(count, 0)
            mine = (above < wanted) & (above + count >= wanted)
            digit = tl.sum(tl.where(mine, digits, 0), 0)
            wanted -= tl.sum(tl.where(mine, above, 0), 0)
            bound = bound | (digit.to(tl.uint32) << (24 - 8 * step))

        written = 0
        equals = 0
        for first in range(0, length, BLOCK):
            at = first + lane
            value = _ordered(tl.load(row + at, mask=at < length, other=0.0))
            equal = (value == bound) & (at < length)
            rank = equals + tl.cumsum(equal.to(tl.int32), 0)
            taken = ((value > bound) & (at < length)) | (equal & (rank <= wanted))
            place = written + tl.cumsum(taken.to(tl.int32), 0) - 1
            tl.store(out + place, at, mask=taken)
            equals += tl.sum(equal.to(tl.int32), 0)
            written += tl.sum(taken.to(tl.int32), 0)


def index_topk(
    logits: torch.Tensor,
    lengths: torch.Tensor,
    topk: int,
    out: torch.Tensor | None = None,
    row_starts: torch.Tensor | None = None,
    *,
    implementation: str | None = None,
) -> torch.Tensor:
    """The positions of each row's `topk` largest logits, exactly, ascending, then -1.

    logits: fp32 [T, columns]; the row stride may exceed `columns`.
    lengths: [T], int32: only so many columns of a row count, from row_starts[t] on. At most `topk` of them: all are
        taken, -inf and NaN too. Cut to [0, columns - start].
    topk: how many.
    out: int32 [at least T, at least topk]: its first T rows are filled over their whole width, -1 where nothing is
        found, so that a buffer can be used again as it is. A new one is [T, topk].
    row_starts: [T], int32: the first column of each row; default 0, and so are negative ones. Positions count from
        there.
    implementation: "triton" or "reference"; by default the reference for CPU tensors.

    Ties: of equal logits (-0 equals 0) the lowest positions are taken. NaN is below every number, -inf included.
    Returns int32 [T, topk], a view of `out`. Nothing is read back to the host: safe in a CUDA graph, and the same on
    every run. Raises ValueError (shapes, devices), TypeError (dtypes).
    """
    checks.shaped("logits", logits, None, None)
    checks.floats("logits", logits, torch.float32)
    rows, columns = logits.shape
    checks.shaped("lengths", lengths, rows)
    checks.integers("lengths", lengths)
    if row_starts is not None:
        checks.shaped("row_starts", row_starts, rows)
        checks.integers("row_starts", row_starts)
    if topk < 1:
        raise ValueError(f"topk is at least 1, not {topk}")
    if out is None:
        out = torch.empty(rows, topk, dtype=torch.int32, device=logits.device)
    checks.shaped("out", out, None, None)
    checks.integers("out", out)
    if out.shape[0] < rows or out.shape[1] < topk:
        raise ValueError(f"out is {list(out.shape)}; {rows} rows of {topk} positions do not fit")
    checks.on_one_device(logits=logits, lengths=lengths, row_starts=row_starts, out=out)
    if checks.choose(implementation, logits.device) == "reference":
        starts = torch.zeros_like(lengths) if row_starts is None else row_starts
        out[:rows, topk:] = -1
        index_topk_reference(logits, starts, lengths, out[:rows, :topk])
    elif rows:
        config = topk_config(columns)
        index_topk_kernel[(rows,)](
            logits,
            lengths if row_starts is None else row_starts,
            lengths,
            out,
            columns,
            topk,
            out.shape[1],
            logits.stride(0),
            out.stride(0),
            BLOCK=config.block,
            HAS_STARTS=row_starts is not None,
            num_warps=config.num_warps,
        )
    return out[:rows, :topk]
