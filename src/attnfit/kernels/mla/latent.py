"""The latent kernel: each latent row is loaded once and serves as key and as value.

One program owns (token, a block of heads, one split of the token's keys). The latent is handled in four groups of
columns, which is how the packed cache is scaled: its e4m3 codes are exact in float16, so the dot products take the
codes themselves, and the group's scale is applied to the fp32 result. Scores and accumulators are fp32.

Online softmax: Milakov and Gimelshein 2018; splitting over keys and merging by LSE: Flash-Decoding (Dao et al. 2023).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from attnfit.kernels.e4m3 import decode_e4m3
from attnfit.kernels.mla.configs import Config
from attnfit.kernels.mla.merge import launch_merge
from attnfit.kernels.mla.rows import is_packed
from attnfit.kernels.mla.workspace import Partials


@triton.jit
def _codes(at, named, PACKED: tl.constexpr):
    """[BLOCK_N, columns] of the rows: native values, or the codes of packed ones in float16. Unnamed rows are 0."""
    raw = tl.load(at, mask=named[:, None], other=0)
    if PACKED:
        return decode_e4m3(raw)
    else:
        return raw


@triton.jit
def _scales(at, named, PACKED: tl.constexpr):
    """fp32 [BLOCK_N]: what makes values of a group's codes; of native rows nothing is read."""
    if PACKED:
        return tl.load(at, mask=named, other=0.0)
    else:
        return at


@triton.jit
def _in_half(q, PACKED: tl.constexpr):
    """q as it meets the group's codes, and a factor for each head, fp32 [BLOCK_H], that gives q back.

    bfloat16 reaches beyond float16's range, but hardly so relative to the largest value in a head's part of the group,
    which comes to lie between 2^14 and 2^15: what is 2^-39 of it is still there.
    """
    if PACKED and tl.bfloat16 == q.dtype:
        wide = q.to(tl.float32)
        unit = (tl.max(tl.abs(wide), 1).to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
        unit = tl.where(unit > 7.888609052210118e-31, unit * 0.00006103515625, 1.0)  # 2^-100; 2^-14
        return (wide / unit[:, None]).to(tl.float16), unit
    else:
        return q, 1.0


@triton.jit
def _score(s, q, unit, codes, scales, PACKED: tl.constexpr, UNITS: tl.constexpr):
    """s + <q, the group's values>, fp32 [BLOCK_H, BLOCK_N]."""
    if PACKED:
        product = tl.dot(q, tl.trans(codes)) * scales[None, :]
        if UNITS:
            product = product * unit[:, None]
        return s + product
    else:
        return tl.dot(q, tl.trans(codes), s)


@triton.jit
def _weigh(acc, p, codes, scales, PACKED: tl.constexpr):
    """acc + p @ the group's values, fp32 [BLOCK_H, columns].

    With scales, the weight of a key is p * scale, which may leave float16's range on either side: each head's weights
    are taken relative to the largest of them, which fp32 gives back.
    """
    if PACKED:
        w = p * scales[None, :]
        top = tl.max(w, 1)
        top = tl.where(top > 0, top, 1.0)
        return acc + tl.dot((w / top[:, None]).to(tl.float16), codes) * top[:, None]
    else:
        return tl.dot(p.to(codes.dtype), codes, acc)


@triton.jit
def sparse_mla_latent_kernel(
    Q,  # [T, H, D_V + D_R]
    KV,  # rows of values, or of bytes
    SCALES,  # PACKED: the same memory as fp32
    ROPE,  # PACKED: the same memory as bfloat16; else KV
    INDICES,  # int32 [T, topk]
    VALID,  # int32 [T]
    OUT,  # [T, H, D_V] in q's dtype, or fp32 [T, H, splits, D_V]
    LSE,  # fp32 [T, H], or [T, H, splits]
    scale_log2,  # softmax scale * log2(e)
    num_heads,
    topk,
    keys_per_split,
    block_size,
    stride_qt,
    stride_qh,
    stride_row,  # of KV, in its elements
    block_gap,  # likewise, between the last row of a block and the next block
    stride_it,
    stride_valid,
    stride_ot,
    stride_oh,
    stride_os,
    stride_lt,
    stride_lh,
    D_V: tl.constexpr,
    D_R: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GAPS: tl.constexpr,
    PACKED: tl.constexpr,
    HAS_VALID: tl.constexpr,
):
    DTYPE: tl.constexpr = Q.dtype.element_ty
    WIDTH: tl.constexpr = D_V // 4
    token = tl.program_id(0).to(tl.int64)
    split = tl.program_id(2)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    real = head < num_heads
    group = tl.arange(0, WIDTH)

    here = Q + token * stride_qt + head[:, None] * stride_qh
    q0 = tl.load(here + group[None, :], mask=real[:, None], other=0.0)
    q1 = tl.load(here + WIDTH + group[None, :], mask=real[:, None], other=0.0)
    q2 = tl.load(here + 2 * WIDTH + group[None, :], mask=real[:, None], other=0.0)
    q3 = tl.load(here + 3 * WIDTH + group[None, :], mask=real[:, None], other=0.0)
    if D_R > 0:
        rotary = tl.arange(0, D_R)
        q_r = tl.load(here + D_V + rotary[None, :], mask=real[:, None], other=0.0)
        if PACKED and tl.float16 == DTYPE:
            # The cache's rotary part is bfloat16, beyond float16's range; tf32 holds values of both kinds exactly.
            q_r = q_r.to(tl.float32)
    UNITS: tl.constexpr = PACKED and tl.bfloat16 == DTYPE
    q0, unit0 = _in_half(q0, PACKED)
    q1, unit1 = _in_half(q1, PACKED)
    q2, unit2 = _in_half(q2, PACKED)
    q3, unit3 = _in_half(q3, PACKED)

    top = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc0 = tl.zeros([BLOCK_H, WIDTH], tl.float32)
    acc1 = tl.zeros([BLOCK_H, WIDTH], tl.float32)
    acc2 = tl.zeros([BLOCK_H, WIDTH], tl.float32)
    acc3 = tl.zeros([BLOCK_H, WIDTH], tl.float32)

    first = split * keys_per_split
    last = tl.minimum(first + keys_per_split, topk)
    if HAS_VALID:
        last = tl.minimum(last, tl.load(VALID + token * stride_valid))
    for start in range(first, last, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        row = tl.load(INDICES + token * stride_it + key, mask=key < last, other=-1)
        named = row >= 0
        row = tl.where(named, row, 0)
        base = row.to(tl.int64) * stride_row
        if GAPS:
            base += (row // block_size).to(tl.int64) * block_gap

        latent = KV + base[:, None] + group[None, :]
        k0 = _codes(latent, named, PACKED)
        k1 = _codes(latent + WIDTH, named, PACKED)
        k2 = _codes(latent + 2 * WIDTH, named, PACKED)
        k3 = _codes(latent + 3 * WIDTH, named, PACKED)
        scales = SCALES + base // 4 + D_V // 4 if PACKED else base
        s0 = _scales(scales, named, PACKED)
        s1 = _scales(scales + 1, named, PACKED)
        s2 = _scales(scales + 2, named, PACKED)
        s3 = _scales(scales + 3, named, PACKED)
        s = tl.zeros([BLOCK_H, BLOCK_N], tl.float32)
        s = _score(s, q0, unit0, k0, s0, PACKED, UNITS)
        s = _score(s, q1, unit1, k1, s1, PACKED, UNITS)
        s = _score(s, q2, unit2, k2, s2, PACKED, UNITS)
        s = _score(s, q3, unit3, k3, s3, PACKED, UNITS)
        if D_R > 0:
            if PACKED:
                turned = ROPE + (base // 2)[:, None] + (D_V // 2 + 8) + rotary[None, :]
            else:
                turned = ROPE + base[:, None] + D_V + rotary[None, :]
            k_r = tl.load(turned, mask=named[:, None], other=0.0)
            s = tl.dot(q_r, tl.trans(k_r.to(q_r.dtype)), s, input_precision="tf32")
        s = tl.where(named[None, :], s * scale_log2, float("-inf"))

        higher = tl.maximum(top, tl.max(s, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)  # no key named so far
        keep = tl.exp2(top - finite)
        p = tl.exp2(s - finite[:, None])
        total = total * keep + tl.sum(p, 1)
        acc0 = _weigh(acc0 * keep[:, None], p, k0, s0, PACKED)
        acc1 = _weigh(acc1 * keep[:, None], p, k1, s1, PACKED)
        acc2 = _weigh(acc2 * keep[:, None], p, k2, s2, PACKED)
        acc3 = _weigh(acc3 * keep[:, None], p, k3, s3, PACKED)
        top = higher

    share = 1.0 / tl.where(total > 0, total, 1.0)[:, None]
    there = OUT + token * stride_ot + split * stride_os + head[:, None] * stride_oh + group[None, :]
    RESULT: tl.constexpr = OUT.dtype.element_ty
    tl.store(there, (acc0 * share).to(RESULT), mask=real[:, None])
    tl.store(there + WIDTH, (acc1 * share).to(RESULT), mask=real[:, None])
    tl.store(there + 2 * WIDTH, (acc2 * share).to(RESULT), mask=real[:, None])
    tl.store(there + 3 * WIDTH, (acc3 * share).to(RESULT), mask=real[:, None])
    lse = (top + tl.log2(total)) * 0.6931471805599453  # log(2); -inf where no key is named
    tl.store(LSE + token * stride_lt + head * stride_lh + split, lse, mask=real)


def launch_latent(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    valid: torch.Tensor | None,
    config: Config,
    partials: Partials | None,
) -> None:
    """Fills `out` and `lse`; arguments are those of `sparse_mla`, checked. With `partials`, splits over keys."""
    tokens, heads, width = q.shape
    topk = indices.shape[1]
    d_v = out.shape[-1]
    packed = is_packed(kv)
    splits = partials.splits if partials is not None else 1
    goal, goal_lse = (partials.out, partials.lse) if partials is not None else (out, lse)
    rows = kv.view(torch.uint8) if packed else kv
    gap = kv.stride(0) - kv.shape[1] * kv.stride(1) if kv.dim() == 3 else 0
    sparse_mla_latent_kernel[(tokens, triton.cdiv(heads, config.block_h), splits)](
        q,
        rows,
        rows.view(torch.float32) if packed else rows,
        rows.view(torch.bfloat16) if packed else rows,
        indices,
        valid if valid is not None else indices,
        goal,
        goal_lse,
        scale * 1.4426950408889634,  # log2(e)
        heads,
        topk,
        triton.cdiv(triton.cdiv(topk, splits), config.block_n) * config.block_n,
        kv.shape[1] if kv.dim() == 3 else 1,
        q.stride(0),
        q.stride(1),
        kv.stride(-2),
        gap,
        indices.stride(0),
        valid.stride(0) if valid is not None else 0,
        goal.stride(0),
        goal.stride(1),
        goal.stride(2) if partials is not None else 0,
        goal_lse.stride(0),
        goal_lse.stride(1),
        D_V=d_v,
        D_R=width - d_v,
        BLOCK_H=config.block_h,
        BLOCK_N=config.block_n,
        GAPS=gap != 0,
        PACKED=packed,
        HAS_VALID=valid is not None,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    if partials is not None:
        launch_merge(partials, out, lse)
