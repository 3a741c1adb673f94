"""The indexer's kernels and the cache writers, with the arguments they get in practice: what is compiled to show that
they fit a GPU.

DeepSeek-V3.2 has 64 index heads, GLM-5 has 32; both 128 dimensions, a top-k of 2048 and key caches of 64 rows a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from attnfit.kernels.indexer.cache_writer import write_index_cache
from attnfit.kernels.indexer.logits import index_logits, index_logits_paged
from attnfit.kernels.indexer.topk import index_topk
from attnfit.kernels.mla.cache_writer import write_latent_cache
from attnfit.kernels.mla.rows import PACKED_WIDTH

DIM = 128
TOPK = 2048
DTYPES = {"e4m3": torch.uint8, "float16": torch.float16, "bfloat16": torch.bfloat16}
LOGITS = (  # heads, q, keys
    (32, "e4m3", "e4m3"),
    (32, "float16", "float16"),
    (64, "e4m3", "e4m3"),
    (64, "float16", "float16"),
    (64, "bfloat16", "bfloat16"),
    (64, "float16", "e4m3"),
    (64, "bfloat16", "e4m3"),
)


def launches() -> Iterator[tuple[str, Callable[[], Any]]]:
    """(name, call) for each way to launch a kernel; tensors are meta tensors."""
    for heads, q, k in LOGITS:
        name = f"{heads} heads, {q}{'' if q == k else f' over {k}'}"
        yield f"index logits, {name}", partial(_prefill, heads, DTYPES[q], DTYPES[k])
        yield f"paged index logits, {name}", partial(_paged, heads, DTYPES[q], DTYPES[k])
    for columns in (4096, 131072):
        yield f"index top-k of {columns}", partial(_topk, columns)
    for name in ("float16", "bfloat16"):
        yield f"index cache writer, {name} to e4m3", partial(_write, DTYPES[name], torch.uint8)
        yield f"index cache writer, {name}", partial(_write, DTYPES[name], DTYPES[name])
        yield f"latent cache writer, {name} to fp8_ds_mla", partial(_write_latent, DTYPES[name], torch.uint8)
        yield f"latent cache writer, {name}", partial(_write_latent, DTYPES[name], DTYPES[name])


def _new(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _prefill(heads: int, q: torch.dtype, k: torch.dtype) -> None:
    tokens, keys = 1024, 65536
    ends = _new(torch.int32, tokens)
    scale = _new(torch.float32, keys) if k is torch.uint8 else None
    weights = _new(torch.float32, tokens, heads)
    index_logits(_new(q, tokens, heads, DIM), _new(k, keys, DIM), weights, ends, ends, k_scale=scale, clean=False)
    index_logits(_new(q, tokens, heads, DIM), _new(k, keys, DIM), weights, ends, ends, k_scale=scale, compressed=False)


def _paged(heads: int, q: torch.dtype, k: torch.dtype) -> None:
    batch, block_size, max_len = 16, 64, 131072
    table = _new(torch.int32, batch, max_len // block_size)
    width = DIM + 4 if k is torch.uint8 else DIM
    cache = _new(k, 1024, block_size, width)
    for next_n, clean in ((1, False), (2, True)):
        query = _new(q, batch, next_n, heads, DIM)
        lengths = _new(torch.int32, batch, next_n)
        index_logits_paged(
            query, cache, _new(torch.float32, batch * next_n, heads), lengths, table, max_len, clean=clean
        )


def _topk(columns: int) -> None:
    rows = 64
    lengths = _new(torch.int32, rows)
    index_topk(_new(torch.float32, rows, columns), lengths, TOPK)
    index_topk(_new(torch.float32, rows, columns), lengths, TOPK, row_starts=lengths)


def _write(k: torch.dtype, cache: torch.dtype) -> None:
    width = DIM + 4 if cache is torch.uint8 else DIM
    for scale_format in ("ue8m0", "fp32")[: 2 if cache is torch.uint8 else 1]:
        slots = _new(torch.int64, 256)
        write_index_cache(_new(k, 256, DIM), _new(cache, 1024, 64, width), slots, scale_format=scale_format)


def _write_latent(latent: torch.dtype, cache: torch.dtype) -> None:
    slots = _new(torch.int64, 256)
    rope = _new(latent, 256, 64)
    if cache is torch.uint8:
        for scale_format in ("fp32", "ue8m0"):
            packed = _new(cache, 1024, 64, PACKED_WIDTH)
            write_latent_cache(_new(latent, 256, 512), rope, packed, slots, scale_format=scale_format)
    else:
        write_latent_cache(_new(latent, 256, 512), rope, _new(cache, 1024, 64, 576), slots)
        write_latent_cache(_new(latent, 256, 512), None, _new(cache, 1024, 64, 512), slots)
