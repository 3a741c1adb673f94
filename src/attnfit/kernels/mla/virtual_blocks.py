"""The way around a missing sparse kernel: a dense paged MLA decode over a block table made from the top-k indices.

With pages of one row, the table of a token is its list of rows, and the dense kernel attends to just those. It loads a
row twice (as key, then as value) and splits over keys as the latent kernel does. Kept as a baseline that shares no
attention code with the latent kernel; native 16-bit rows only.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from attnfit.kernels.mla.configs import Config
from attnfit.kernels.mla.merge import launch_merge
from attnfit.kernels.mla.workspace import Partials


def virtual_block_table(indices: torch.Tensor, valid: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Top-k indices int32 [T, K], -1 anywhere -> block table int32 [T, K] and lengths int32 [T] for pages of one row.

    A dense kernel reads the first `lengths[t]` entries of a table, so the rows are moved to the front, in their order;
    the rest of the table is 0. No value is read on the host.
    """
    named = indices >= 0
    if valid is not None:
        named &= torch.arange(indices.shape[1], device=indices.device) < valid.unsqueeze(1)
    order = torch.argsort(named.logical_not().to(torch.uint8), dim=1, stable=True)
    table = torch.where(named, indices, 0).gather(1, order).to(torch.int32)
    return table, named.sum(dim=1, dtype=torch.int32)


@triton.jit
def paged_mla_decode_kernel(
    Q,  # [T, H, D_V + D_R]
    KV,  # [pages, page_size, D_V + D_R]
    TABLE,  # int32 [T, pages of a token]
    LENGTHS,  # int32 [T]
    OUT,  # fp32 [T, H, splits, D_V]
    LSE,  # fp32 [T, H, splits]
    scale_log2,
    num_heads,
    keys_per_split,
    page_size,
    stride_qt,
    stride_qh,
    stride_page,
    stride_row,
    stride_tt,
    stride_ot,
    stride_oh,
    stride_os,
    stride_lt,
    stride_lh,
    D_V: tl.constexpr,
    D_R: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    split = tl.program_id(2)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    real = head < num_heads
    column = tl.arange(0, D_V)
    q = tl.load(Q + token * stride_qt + head[:, None] * stride_qh + column[None, :], mask=real[:, None], other=0.0)
    if D_R > 0:
        rotary = D_V + tl.arange(0, D_R)
        q_r = tl.load(
            Q + token * stride_qt + head[:, None] * stride_qh + rotary[None, :], mask=real[:, None], other=0.0
        )
    top = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, D_V], tl.float32)
    length = tl.load(LENGTHS + token)
    first = split * keys_per_split
    last = tl.minimum(first + keys_per_split, length)
    for start in range(first, last, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        inside = key < last
        page = tl.load(TABLE + token * stride_tt + key // page_size, mask=inside, other=0).to(tl.int64)
        base = page * stride_page + (key % page_size) * stride_row
        k = tl.load(KV + base[None, :] + column[:, None], mask=inside[None, :], other=0.0)
        s = tl.dot(q, k)
        if D_R > 0:
            k_r = tl.load(KV + base[None, :] + rotary[:, None], mask=inside[None, :], other=0.0)
            s = tl.dot(q_r, k_r, s)
        s = tl.where(inside[None, :], s * scale_log2, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        keep = tl.exp2(top - higher)
        p = tl.exp2(s - higher[:, None])
        v = tl.load(KV + base[:, None] + column[None, :], mask=inside[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * keep[:, None])
        total = total * keep + tl.sum(p, 1)
        top = higher
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(
        OUT + token * stride_ot + head[:, None] * stride_oh + split * stride_os + column[None, :],
        acc,
        mask=real[:, None],
    )
    lse = (top + tl.log2(total)) * 0.6931471805599453  # log(2)
    tl.store(LSE + token * stride_lt + head * stride_lh + split, lse, mask=real)


def launch_virtual_blocks(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    valid: torch.Tensor | None,
    config: Config,
    partials: Partials,
) -> None:
    """Fills `out` and `lse`; arguments are those of `sparse_mla`, already checked. `kv` is [rows, d_v + d_r]."""
    tokens, heads, width = q.shape
    d_v = out.shape[-1]
    table, lengths = virtual_block_table(indices, valid)
    pages = kv.unsqueeze(1)  # of one row
    paged_mla_decode_kernel[(tokens, triton.cdiv(heads, config.block_h), partials.splits)](
        q,
        pages,
        table,
        lengths,
        partials.out,
        partials.lse,
        scale * 1.4426950408889634,  # log2(e)
        heads,
        triton.cdiv(triton.cdiv(indices.shape[1], partials.splits), config.block_n) * config.block_n,
        1,
        q.stride(0),
        q.stride(1),
        pages.stride(0),
        pages.stride(1),
        table.stride(0),
        partials.out.stride(0),
        partials.out.stride(1),
        partials.out.stride(2),
        partials.lse.stride(0),
        partials.lse.stride(1),
        D_V=d_v,
        D_R=width - d_v,
        BLOCK_H=config.block_h,
        BLOCK_N=config.block_n,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    launch_merge(partials, out, lse)
