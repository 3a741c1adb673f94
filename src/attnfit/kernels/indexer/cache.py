"""The two kinds of key cache an indexer has, and what one block of them looks like.

- Native: [blocks, block_size, D], 16-bit values (fp32 too, through the reference).
- Quantised: one-byte [blocks, block_size, D + 4] (or [blocks, block_size, 1, D + 4]), where the shape says how large a
  block is but not how it is laid out. A block is planar: block_size * D bytes of e4m3 codes, key after key, then
  block_size fp32 scales, one a key; value = code * scale.

Blocks may lie further apart than they are large (other layers' pages in between). The scales are fp32 here whatever
they were rounded to; caches that pack four UE8M0 bytes in their place are another format.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from attnfit.kernels.e4m3 import decode_e4m3_reference

SCALE_BYTES = 4


class IndexCache(NamedTuple):
    """A key cache, taken apart: views, no copies."""

    keys: torch.Tensor  # native [blocks, block_size, D], or uint8 codes of the same shape
    scales: torch.Tensor | None  # fp32 [blocks, block_size]

    @property
    def block_size(self) -> int:
        return int(self.keys.shape[1])

    @property
    def head_dim(self) -> int:
        return int(self.keys.shape[2])


def open_cache(cache: torch.Tensor, head_dim: int) -> IndexCache:
    """The cache as codes and scales, or as native rows. Raises ValueError on a layout that is not one of ours."""
    if cache.dim() == 4 and cache.shape[2] == 1:
        cache = cache.squeeze(2)
    quantised = cache.element_size() == 1
    width = head_dim + SCALE_BYTES if quantised else head_dim
    if cache.dim() != 3 or cache.shape[2] != width:
        raise ValueError(
            f"the index cache is {list(cache.shape)} of {cache.dtype}; for {head_dim} values a key it is "
            f"[blocks, block_size, {width}]"
        )
    if cache.stride(2) != 1 or (cache.shape[1] > 1 and cache.stride(1) != width):
        raise ValueError(f"the index cache's blocks must be contiguous in themselves; strides are {cache.stride()}")
    if not quantised:
        return IndexCache(cache, None)
    blocks, block_size = cache.shape[:2]
    apart = cache.stride(0) if blocks > 1 else block_size * width
    offset = cache.storage_offset() * cache.element_size()
    codes = block_size * head_dim
    if head_dim % SCALE_BYTES or apart % SCALE_BYTES or offset % SCALE_BYTES:
        raise ValueError("the index cache's scales must be aligned to 4 bytes: its offset, block stride and head_dim")
    flat = cache.view(torch.uint8)
    words = torch.as_strided(flat, (blocks, block_size * width), (apart, 1)).view(torch.float32)
    return IndexCache(
        torch.as_strided(flat, (blocks, block_size, head_dim), (apart, head_dim, 1)),
        words[:, codes // SCALE_BYTES :],
    )


def to_float64(values: torch.Tensor) -> torch.Tensor:
    """Values as float64; one-byte tensors are e4m3 codes."""
    if values.element_size() == 1:
        return decode_e4m3_reference(values.view(torch.uint8).contiguous())
    return values.to(torch.float64)
