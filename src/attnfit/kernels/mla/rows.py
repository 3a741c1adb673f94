"""The two kinds of rows a latent cache holds, and how a physical row index finds one.

- Native rows: d_v + d_r values in the model's dtype: the latent (which is K's first part and V), then the rotary part.
- Packed "fp8_ds_mla" rows of 656 bytes, for d_v = 512 and d_r = 64 only: 512 e4m3 codes, four fp32 scales (one for each
  128 codes; value = code * scale), 64 bfloat16 of rotary part, whatever the model's dtype is.

A cache is [rows, width], or [blocks, block_size, width] where blocks may lie further apart than block_size rows
(other layers' pages in between). In the latter, index i is row i % block_size of block i // block_size.
"""

from __future__ import annotations

import torch

from attnfit.kernels.e4m3 import decode_e4m3_reference

PACKED_WIDTH = 656  # bytes
PACKED_D_V = 512
PACKED_D_R = 64
PACKED_GROUP = 128  # codes under one scale


def is_packed(kv: torch.Tensor) -> bool:
    """Whether the cache holds packed fp8_ds_mla rows: one-byte elements."""
    return kv.element_size() == 1


def read_rows(kv: torch.Tensor, rows: torch.Tensor, d_v: int) -> torch.Tensor:
    """The rows with those (non-negative) indices as float64 [K, d_v + d_r]."""
    rows = rows.to(torch.int64)
    picked = kv[rows // kv.shape[1], rows % kv.shape[1]] if kv.dim() == 3 else kv[rows]
    return unpack(picked.contiguous()) if is_packed(kv) else picked.to(torch.float64)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Packed rows, one-byte [K, 656] -> float64 [K, 576]."""
    packed = packed.view(torch.uint8)
    codes, scales, rope = packed.split([PACKED_D_V, 16, 2 * PACKED_D_R], dim=-1)
    latent = decode_e4m3_reference(codes.contiguous()).unflatten(-1, (-1, PACKED_GROUP))
    latent = latent * scales.contiguous().view(torch.float32).to(torch.float64).unsqueeze(-1)
    return torch.cat([latent.flatten(-2), rope.contiguous().view(torch.bfloat16).to(torch.float64)], dim=-1)


def pack(rows: torch.Tensor) -> torch.Tensor:
    """Values [K, 576] of any float dtype -> packed rows, uint8 [K, 656]; each scale is its group's amax / 448."""
    latent = rows[:, :PACKED_D_V].to(torch.float32).unflatten(-1, (-1, PACKED_GROUP))
    scales = latent.abs().amax(-1).clamp_min(1e-12) / torch.finfo(torch.float8_e4m3fn).max
    codes = (latent / scales.unsqueeze(-1)).clamp(-448, 448).to(torch.float8_e4m3fn).flatten(-2)
    rope = rows[:, PACKED_D_V:].to(torch.bfloat16).contiguous()
    return torch.cat([codes.view(torch.uint8), scales.view(torch.uint8), rope.view(torch.uint8)], dim=-1)
