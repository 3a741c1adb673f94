"""attnfit's own kernels, launched as their callers launch them: what `attnfit kernels fit` compiles.

Each entry of the static configuration tables is reached, with the arguments that decide what is compiled: dtype, kind
of row, width, number of heads, split over keys or not, paged cache or not. Launches that come to the same compiled
kernel (64 heads and 128, say) are compiled once. `ask` may hold {"every": true}: all combinations, not representatives.
Where we have no configuration for a capability, a few launches show why.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import torch

from attnfit.kernels.fit.driver import parse
from attnfit.kernels.fit.records import Case
from attnfit.kernels.indexer.launches import launches as indexer_launches
from attnfit.kernels.mla.configs import CAPABILITIES, VIRTUAL_BLOCKS, Config, config_of
from attnfit.kernels.mla.latent import launch_latent
from attnfit.kernels.mla.rows import PACKED_WIDTH
from attnfit.kernels.mla.virtual_blocks import launch_virtual_blocks
from attnfit.kernels.mla.workspace import carve

D_V = 512
TOPK = 2048
BLOCK, BLOCKS = 64, 1024  # rows of a cache block, blocks of a cache
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
CACHES = {"576": 64, "512": 0, "fp8_ds_mla": 64}  # name -> rotary part of the query
STAND_IN = (8, 6)  # for a capability that has no configuration: the one with the least shared memory that has


def cases(ask: dict[str, Any], capability: str) -> Iterator[Case]:
    """Every launch of ours for that capability."""
    every = bool(ask.get("every"))
    target = parse(capability)
    note = ""
    if target not in CAPABILITIES:
        note = f"no configuration for {capability}; tried with that of {STAND_IN[0]}.{STAND_IN[1]}"
        target = STAND_IN
    for dtype, cache, heads, split, paged in product(
        DTYPES, CACHES, (8, 16, 20, 64, 128), (True, False), (True, False)
    ):
        if not every and (heads in (8, 64) or not paged or (note and (dtype != "float16" or heads == 20 or not split))):
            continue
        config = config_of(target, heads, cache == "fp8_ds_mla")
        name = f"sparse_mla {dtype} {cache} H={heads}{' split' if split else ''}{'' if paged else ' unpaged'}"
        splits = 16 if split else 1
        yield Case(name, partial(_latent, DTYPES[dtype], cache, heads, splits, paged, config), note)
    for splits in (2, 4, 8, 32) if every else ():
        config = config_of(target, 16, False)
        name = f"sparse_mla float16 576 H=16 {splits} splits"
        yield Case(name, partial(_latent, torch.float16, "576", 16, splits, True, config), note)
    for dtype, cache, heads in product(DTYPES, ("576", "512"), (16, 128)):
        if every or (dtype, cache) == ("float16", "576"):
            name = f"virtual_blocks {dtype} {cache} H={heads}"
            yield Case(name, partial(_virtual_blocks, DTYPES[dtype], cache, heads), note)
    for name, call in indexer_launches():
        if every or not ("32 heads" in name or "over e4m3" in name or (note and "bfloat16" in name)):
            yield Case(name, call, note)


def new(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor that has a shape and no memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def _query(dtype: torch.dtype, cache: str, tokens: int, heads: int) -> tuple[torch.Tensor, ...]:
    """q, indices, valid, out, lse."""
    q = new(dtype, tokens, heads, D_V + CACHES[cache])
    out, lse = new(dtype, tokens, heads, D_V), new(torch.float32, tokens, heads)
    return q, new(torch.int32, tokens, TOPK), new(torch.int32, tokens), out, lse


def _latent(dtype: torch.dtype, cache: str, heads: int, splits: int, paged: bool, config: Config) -> None:
    tokens = 4 if splits > 1 else 1024
    q, indices, valid, out, lse = _query(dtype, cache, tokens, heads)
    packed = cache == "fp8_ds_mla"
    width = PACKED_WIDTH if packed else q.shape[-1]
    kv = new(torch.uint8 if packed else dtype, BLOCKS, BLOCK + 16, width)
    kv = kv[:, :BLOCK] if paged else kv.flatten(0, 1)  # blocks that lie apart need one division more
    partials = carve(None, q, heads, splits, D_V) if splits > 1 else None
    launch_latent(q, kv, indices, 0.1, out, lse, valid=valid if paged else None, config=config, partials=partials)


def _virtual_blocks(dtype: torch.dtype, cache: str, heads: int) -> None:
    q, indices, valid, out, lse = _query(dtype, cache, 4, heads)
    kv = new(dtype, BLOCKS * BLOCK, q.shape[-1])
    partials = carve(None, q, heads, 16, D_V)
    launch_virtual_blocks(q, kv, indices, 0.1, out, lse, valid=valid, config=VIRTUAL_BLOCKS, partials=partials)
