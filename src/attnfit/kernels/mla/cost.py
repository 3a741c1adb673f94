"""What one sparse MLA call moves and computes by design: static figures, counted from shapes, no measurement.

Bytes are those that programs ask the memory system for, L2 included: a row that several blocks of heads need is read
once from memory at best and asked for again by each of them. How many of the repeated reads L2 serves, only a GPU can
tell. `least` is what every implementation must move: each input once, each result once.
"""

from __future__ import annotations

from typing import NamedTuple

from attnfit.kernels.mla.configs import VIRTUAL_BLOCKS, config_of
from attnfit.kernels.mla.rows import PACKED_WIDTH
from attnfit.kernels.mla.workspace import splits_of

HALF, SINGLE = 2, 4  # bytes


class Shape(NamedTuple):
    """One call, all of whose indices name a row."""

    tokens: int
    heads: int
    topk: int = 2048
    d_v: int = 512
    d_r: int = 64
    packed: bool = False

    @property
    def row_bytes(self) -> int:
        """Bytes of one cache row."""
        return PACKED_WIDTH if self.packed else HALF * (self.d_v + self.d_r)


class Design(NamedTuple):
    """What of an implementation decides what it moves."""

    block_h: int  # heads that share one load of a row
    value_again: bool = False  # the row is loaded as key, then its latent part once more as value
    splits: int = 1  # over the keys of a token
    partials: bool = False  # whether results go through fp32 partial ones (always, if there are splits)
    table: bool = False  # whether indices are first rewritten into a block table


class Cost(NamedTuple):
    """Bytes by what they are for, and floating-point operations of the dot products."""

    rows: int
    indices: int
    q: int
    out: int  # and LSE
    partials: int  # written, then read
    flops: int

    @property
    def moved(self) -> int:
        """All bytes."""
        return self.rows + self.indices + self.q + self.out + self.partials


def design_of(implementation: str, shape: Shape, capability: tuple[int, int], num_sms: int) -> Design:
    """How `sparse_mla` runs that call on that GPU: "latent" or "virtual_blocks"."""
    virtual = implementation == "virtual_blocks"
    config = VIRTUAL_BLOCKS if virtual else config_of(capability, shape.heads, shape.packed)
    splits = splits_of(shape.tokens, head_blocks(shape, config.block_h), shape.topk, num_sms)
    return Design(config.block_h, value_again=virtual, splits=splits, partials=virtual, table=virtual)


def head_blocks(shape: Shape, block_h: int) -> int:
    """How often a row is asked for: once for each block of heads."""
    return -(-shape.heads // block_h)


def cost(shape: Shape, design: Design) -> Cost:
    """What that call of that implementation asks for."""
    blocks = head_blocks(shape, design.block_h)
    each = shape.row_bytes + (HALF * shape.d_v if design.value_again else 0)
    pairs = shape.tokens * shape.topk
    results = shape.tokens * shape.heads
    through = design.splits if design.splits > 1 or design.partials else 0
    return Cost(
        rows=pairs * each * blocks,
        indices=pairs * SINGLE * (blocks + (2 if design.table else 0)),
        q=results * HALF * (shape.d_v + shape.d_r) * design.splits,
        out=results * (HALF * shape.d_v + SINGLE),
        partials=2 * results * through * SINGLE * (shape.d_v + 1),
        flops=flops(shape),
    )


def least(shape: Shape, cache_rows: int | None = None) -> int:
    """Bytes that no implementation can do without: every row, index and query once, every result once.

    With `cache_rows`, no more rows than the cache has: tokens that share rows need not fetch them twice.
    """
    results = shape.tokens * shape.heads
    pairs = shape.tokens * shape.topk
    rows = pairs if cache_rows is None else min(pairs, cache_rows)
    inputs = rows * shape.row_bytes + pairs * SINGLE + results * HALF * (shape.d_v + shape.d_r)
    return inputs + results * (HALF * shape.d_v + SINGLE)


def flops(shape: Shape) -> int:
    """Of the scores and of the weighted sum: 2 * (d_v + d_r) and 2 * d_v for each token, head and key."""
    return 2 * shape.tokens * shape.heads * shape.topk * (2 * shape.d_v + shape.d_r)
