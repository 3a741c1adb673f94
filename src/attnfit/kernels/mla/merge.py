"""Merging what the splits over keys found: a sum of the splits' outputs, weighted by exp(LSE)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from attnfit.kernels.mla.workspace import Partials


@triton.jit
def merge_splits_kernel(
    PARTIAL,  # fp32 [T, H, splits, D_V]
    PARTIAL_LSE,  # fp32 [T, H, splits], natural log
    OUT,  # [T, H, D_V]
    LSE,  # fp32 [T, H]
    splits,
    stride_pt,
    stride_ph,
    stride_ps,
    stride_plt,
    stride_plh,
    stride_ot,
    stride_oh,
    stride_lt,
    stride_lh,
    D_V: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.arange(0, BLOCK_S)
    column = tl.arange(0, D_V)
    lse = tl.load(
        PARTIAL_LSE + token * stride_plt + head * stride_plh + split, mask=split < splits, other=float("-inf")
    )
    top = tl.max(lse, 0)
    finite = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp(lse - finite), 0)
    acc = tl.zeros([D_V], tl.float32)
    for s in range(splits):
        weight = tl.exp(tl.load(PARTIAL_LSE + token * stride_plt + head * stride_plh + s) - finite)
        acc += weight * tl.load(PARTIAL + token * stride_pt + head * stride_ph + s * stride_ps + column)
    acc = acc / tl.where(total > 0, total, 1.0)
    tl.store(OUT + token * stride_ot + head * stride_oh + column, acc.to(OUT.dtype.element_ty))
    tl.store(LSE + token * stride_lt + head * stride_lh, finite + tl.log(total))


def launch_merge(partials: Partials, out: torch.Tensor, lse: torch.Tensor) -> None:
    """Fills `out` [T, H, d_v] and `lse` [T, H] from the partial results."""
    tokens, heads, d_v = out.shape
    merge_splits_kernel[(tokens, heads)](
        partials.out,
        partials.lse,
        out,
        lse,
        partials.splits,
        partials.out.stride(0),
        partials.out.stride(1),
        partials.out.stride(2),
        partials.lse.stride(0),
        partials.lse.stride(1),
        out.stride(0),
        out.stride(1),
        lse.stride(0),
        lse.stride(1),
        D_V=d_v,
        BLOCK_S=triton.next_power_of_2(partials.splits),
        num_warps=4,
    )
