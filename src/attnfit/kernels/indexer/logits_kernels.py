"""The two logits kernels: over a contiguous run of keys (prefill) and over a paged cache (decode).

A program loads one block of keys once, decodes it once, and lets several query tokens pass over it. Keys are the rows
of the dot product and heads its columns: the sum over heads then stays within a warp, and the block of keys can stay in
registers. e4m3 codes go into the dot product as exact 16-bit values; the dot product, relu, weights and sum are fp32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attnfit.kernels.e4m3 import decode_e4m3


@triton.jit
def _tile(base, inside, D: tl.constexpr, BLOCK_D: tl.constexpr, DTYPE: tl.constexpr):
    """Rows of D values or codes at the pointers `base`, [n, BLOCK_D] of DTYPE; rows not `inside` are 0."""
    column = tl.arange(0, BLOCK_D)
    if D == BLOCK_D:
        raw = tl.load(base[:, None] + column[None, :], mask=inside[:, None], other=0)
    else:
        raw = tl.load(base[:, None] + column[None, :], mask=inside[:, None] & (column < D)[None, :], other=0)
    if raw.dtype != tl.uint8:
        return raw
    else:
        return decode_e4m3(raw).to(DTYPE)


@triton.jit
def _logits(
    keys,  # [BLOCK_N, BLOCK_D] of DTYPE
    Q,  # one token's [H, D]
    W,  # its [H]
    num_heads,
    stride_qh,
    stride_wh,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_H: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """One token over a block of keys: fp32 [BLOCK_N], without the keys' scales."""
    head = tl.arange(0, BLOCK_H)
    real = head < num_heads
    q = _tile(Q + head * stride_qh, real, D, BLOCK_D, DTYPE)
    w = tl.load(W + head * stride_wh, mask=real, other=0.0).to(tl.float32)
    s = tl.dot(keys, tl.trans(q))
    return tl.sum(tl.maximum(s, 0.0, propagate_nan=tl.PropagateNan.ALL) * w[None, :], 1)


@triton.jit(do_not_specialize=["num_tokens", "num_keys", "width", "tokens_per_program"])
def index_logits_kernel(
    Q,  # [T, H, D], 16-bit or codes
    K,  # [S, D], 16-bit or codes
    K_SCALE,  # fp32 [S] if HAS_SCALE
    W,  # [T, H], float
    START,  # int32 [T]
    END,  # int32 [T]
    OUT,  # fp32 [T, width]
    num_tokens,
    num_heads,
    num_keys,
    width,
    tokens_per_program,
    stride_qt,
    stride_qh,
    stride_kn,
    stride_wt,
    stride_wh,
    stride_ot,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MAX_TOKENS: tl.constexpr,
    DTYPE: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    COMPRESSED: tl.constexpr,
    CLEAN: tl.constexpr,
):
    """Program (block of keys, group of tokens): the tokens' logits for these keys, and -inf in these columns."""
    first = tl.program_id(0) * BLOCK_N
    key = first + tl.arange(0, BLOCK_N)
    token = tl.program_id(1) * tokens_per_program
    stop = tl.minimum(token + tokens_per_program, num_tokens)

    group = token + tl.arange(0, MAX_TOKENS)
    begins = tl.maximum(tl.load(START + group, mask=group < stop, other=num_keys), 0)
    ends = tl.minimum(tl.load(END + group, mask=group < stop, other=0), num_keys)
    if CLEAN:
        if COMPRESSED:
            outside = key[None, :] >= (ends - begins)[:, None]
        else:
            outside = (key[None, :] < begins[:, None]) | (key[None, :] >= ends[:, None])
        nothing = tl.full([MAX_TOKENS, BLOCK_N], float("-inf"), tl.float32)
        place = group.to(tl.int64)[:, None] * stride_ot + key[None, :]
        tl.store(OUT + place, nothing, mask=outside & (group < stop)[:, None] & (key < width)[None, :])

    lowest = tl.min(begins, 0)
    highest = tl.max(ends, 0)
    if (first < highest) & (first + BLOCK_N > lowest):
        there = key < num_keys
        keys = _tile(K + key.to(tl.int64) * stride_kn, there, D, BLOCK_D, DTYPE)
        if HAS_SCALE:
            scale = tl.load(K_SCALE + key, mask=there, other=0.0)
        for t in range(token, stop):
            at = token.to(tl.int64) + (t - token)
            logit = _logits(
                keys,
                Q + at * stride_qt,
                W + at * stride_wt,
                num_heads,
                stride_qh,
                stride_wh,
                D,
                BLOCK_D,
                BLOCK_H,
                DTYPE,
            )
            if HAS_SCALE:
                logit = logit * scale
            begin = tl.maximum(tl.load(START + t), 0)
            end = tl.minimum(tl.load(END + t), num_keys)
            column = key - begin if COMPRESSED else key
            inside = (key >= begin) & (key < end) & (column < width)
            tl.store(OUT + at * stride_ot + column, logit, mask=inside)


@triton.jit(do_not_specialize=["next_n", "max_blocks", "width"])
def index_logits_paged_kernel(
    Q,  # [B, next_n, H, D], 16-bit or codes
    K,  # the cache: 16-bit rows, or bytes of planar blocks
    K_SCALE,  # HAS_SCALE: the scales of the first block, fp32
    W,  # [B * next_n, H], float
    LENGTHS,  # int32, length of (b, j) at b * stride_lb + j * stride_lj, plus j - next_n + 1 if SHARED_LENGTH
    BLOCKS,  # int32 [B, max_blocks]
    OUT,  # fp32 [B * next_n, width]
    next_n,
    num_heads,
    max_blocks,
    width,
    stride_qb,
    stride_qj,
    stride_qh,
    stride_block,  # of K, in its elements
    stride_row,
    stride_scale,  # between blocks, in fp32 elements
    stride_wt,
    stride_wh,
    stride_lb,
    stride_lj,
    stride_bt,
    stride_ot,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    DTYPE: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    SHARED_LENGTH: tl.constexpr,
    CLEAN: tl.constexpr,
):
    """Program (block of keys, request): the logits of the request's next_n tokens for these keys."""
    first = tl.program_id(0) * BLOCK_N
    key = first + tl.arange(0, BLOCK_N)
    b = tl.program_id(1).to(tl.int64)
    most = tl.minimum(width, max_blocks * BLOCK_SIZE)

    longest = 0
    for j in range(next_n):
        longest = tl.maximum(longest, tl.load(LENGTHS + b * stride_lb + j * stride_lj))
    longest = tl.minimum(longest, most)

    if first < longest:
        wanted = key < longest
        block = tl.load(BLOCKS + b * stride_bt + key // BLOCK_SIZE, mask=wanted, other=-1)
        there = block >= 0
        block = tl.where(there, block, 0).to(tl.int64)
        row = key % BLOCK_SIZE
        keys = _tile(K + block * stride_block + row * stride_row, there, D, BLOCK_D, DTYPE)
        if HAS_SCALE:
            scale = tl.load(K_SCALE + block * stride_scale + row, mask=there, other=0.0)
        for j in range(next_n):
            length = tl.load(LENGTHS + b * stride_lb + j * stride_lj)
            if SHARED_LENGTH:
                length += j - next_n + 1
            at = b * next_n + j
            logit = _logits(
                keys,
                Q + b * stride_qb + j * stride_qj,
                W + at * stride_wt,
                num_heads,
                stride_qh,
                stride_wh,
                D,
                BLOCK_D,
                BLOCK_H,
                DTYPE,
            )
            if HAS_SCALE:
                logit = logit * scale
            inside = there & (key < tl.minimum(length, most))
            if CLEAN:
                tl.store(OUT + at * stride_ot + key, tl.where(inside, logit, float("-inf")), mask=key < width)
            else:
                tl.store(OUT + at * stride_ot + key, logit, mask=inside)
    elif CLEAN:
        for j in range(next_n):
            at = b * next_n + j
            tl.store(OUT + at * stride_ot + key, tl.full([BLOCK_N], float("-inf"), tl.float32), mask=key < width)
