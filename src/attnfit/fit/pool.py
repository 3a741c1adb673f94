"""From free bytes to blocks, tokens and requests at once: the arithmetic of a paged KV cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Capacity(NamedTuple):
    """What a pool of blocks holds. `concurrency` counts requests of the full served length."""

    blocks: int
    tokens: int
    concurrency: float


def capacity(blocks: int, blocks_per_request: int, length: int) -> Capacity:
    """Tokens and requests of `length` tokens that `blocks` hold, as engines with a paged cache count them.

    Tokens are the requests that fit, whole or not, times their length: for a model whose layers keep unequal parts of
    a request there is no other meaning of "tokens".
    """
    at_once = blocks / blocks_per_request
    return Capacity(blocks, int(at_once * length), at_once)


def longest(fits: Callable[[int], bool], most: int) -> int:
    """The greatest length in 1..most that fits, 0 if none; `fits` must not fit again once it fails."""
    if most < 1 or not fits(1):
        return 0
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
