"""From positions of a request to rows of the cache, through the block table: a Triton kernel and its reference."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from attnfit.kernels import interpreter


@triton.jit
def rows_kernel(
    REQUESTS,  # int32 [T]
    TABLE,  # int32 [requests, blocks of a request]
    POSITIONS,  # int32 [T, K]
    ROWS,  # int32 [T, K]
    COUNTS,  # int32 [T]
    blocks_per_request,
    topk,
    stride_table,
    stride_positions,
    stride_rows,
    block_size,
    dcp_rank,
    DCP_SIZE: tl.constexpr,
    INTERLEAVE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program: one token."""
    t = tl.program_id(0).to(tl.int64)
    request = tl.load(REQUESTS + t).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    position = tl.load(POSITIONS + t * stride_positions + lane, mask=lane < topk, other=-1)
    named = position >= 0
    if DCP_SIZE > 1:
        named = named & ((position // INTERLEAVE) % DCP_SIZE == dcp_rank)
        position = position // (INTERLEAVE * DCP_SIZE) * INTERLEAVE + position % INTERLEAVE
    block = position // block_size
    named = named & (block < blocks_per_request)
    place = tl.load(TABLE + request * stride_table + block, mask=named, other=-1)
    named = named & (place >= 0)
    row = tl.where(named, place * block_size + position % block_size, -1)
    tl.store(ROWS + t * stride_rows + lane, row, mask=lane < topk)
    tl.store(COUNTS + t, tl.max(tl.where(named, lane + 1, 0), 0))


def cache_rows(
    positions: torch.Tensor,
    requests: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    *,
    dcp_size: int = 1,
    dcp_rank: int = 0,
    interleave: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The cache row of every position that a token's top-k names.

    positions    int32 [T, K]: positions within the token's request; -1, anywhere, names none.
    requests     int32 [T]: the row of `block_table` that belongs to the token.
    block_table  int32 [requests, blocks]: physical blocks of each request, in order.
    dcp_*        decode context parallelism: this rank keeps the positions p with (p // interleave) % dcp_size ==
                 dcp_rank, packed one after another (0.33.0 config/parallel.py, cp_kv_cache_interleave_size); the
                 others become -1.

    Returns rows int32 [T, K], block * block_size + offset or -1, and counts int32 [T]: 1 + the last column that names
    a row, as `valid` of `sparse_mla`. A position beyond the block table names none. Nothing is read back to the host.
    """
    tokens, topk = positions.shape
    rows = torch.empty(tokens, topk, dtype=torch.int32, device=positions.device)
    counts = torch.empty(tokens, dtype=torch.int32, device=positions.device)
    if tokens == 0:
        return rows, counts
    if positions.device.type == "cpu" and not interpreter.interpreting():
        return _reference(positions, requests, block_table, block_size, dcp_size, dcp_rank, interleave)
    rows_kernel[(tokens,)](
        requests,
        block_table,
        positions,
        rows,
        counts,
        block_table.shape[1],
        topk,
        block_table.stride(0),
        positions.stride(0),
        rows.stride(0),
        block_size,
        dcp_rank,
        DCP_SIZE=dcp_size,
        INTERLEAVE=interleave,
        BLOCK=triton.next_power_of_2(topk),
        num_warps=4,
    )
    return rows, counts


def _reference(
    positions: torch.Tensor,
    requests: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    dcp_size: int,
    dcp_rank: int,
    interleave: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    named = (positions >= 0) & ((positions // interleave) % dcp_size == dcp_rank)
    local = positions // (interleave * dcp_size) * interleave + positions % interleave
    block = local // block_size
    named &= block < block_table.shape[1]
    places = block_table[requests.long()]
    place = places.gather(1, block.clamp(0, block_table.shape[1] - 1).long())
    named &= place >= 0
    rows = torch.where(named, place * block_size + local % block_size, -1).to(torch.int32)
    column = torch.arange(1, positions.shape[1] + 1, device=positions.device)
    return rows, torch.where(named, column, 0).amax(1).to(torch.int32)
