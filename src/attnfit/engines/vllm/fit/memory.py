"""From the memory left for the KV cache to what vLLM logs about it, or the error it raises instead.

Source (0.33.0): vllm/v1/core/kv_cache_planning.py:50, 1288, 1461.
"""

from __future__ import annotations

from typing import NamedTuple

from attnfit.engines.vllm.fit.groups import Pool
from attnfit.engines.vllm.fit.spec import Limits
from attnfit.fit.pool import Capacity, capacity, longest


class Served(NamedTuple):
    """What a KV cache of given size serves. `capacity` is None where the engine refuses: `needed` bytes do not fit."""

    length: int  # the served length, after --max-model-len auto
    needed: int  # bytes of one request of that length
    capacity: Capacity | None
    longest: int  # the greatest length that would fit (0: none)


def served(
    pool: Pool,
    limits: Limits,
    free: int,
    length: int,
    *,
    override: int | None = None,
    auto: bool = False,
    held_back: bool = True,
) -> Served:
    """`free` bytes for the KV cache of one rank; `override` is --num-gpu-blocks-override, `auto` --max-model-len auto.

    held_back: one block (the null block) is, so that a request must fit into the rest.
    """
    if not pool.groups:  # no layer keeps a cache
        return Served(length, 0, Capacity(1, 0, 0.0), length)
    if override is not None:
        free = override * pool.bytes_per_block
    usable = free - pool.bytes_per_block * held_back

    def needs(tokens: int) -> int:
        return pool.blocks(tokens, limits) * pool.bytes_per_block

    fitting = longest(lambda tokens: needs(tokens) <= usable, length) if usable > 0 else 0
    if auto and 0 < fitting < length:
        length = fitting
    needed = needs(length)
    if usable <= 0 or needed > usable:
        return Served(length, needed, None, fitting)
    blocks = override if override is not None else free // pool.bytes_per_block
    # v1/core/kv_cache_utils.py:1120 counts requests and tokens so
    return Served(length, needed, capacity(blocks, pool.blocks(length, limits), length), fitting)
