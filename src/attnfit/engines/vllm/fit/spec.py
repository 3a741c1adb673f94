"""A KV cache spec: how one kind of layer stores its share of one block, as vLLM's spec classes say it.

Source (0.33.0): vllm/v1/kv_cache_interface.py.
"""

from __future__ import annotations

from math import gcd

import msgspec

#: spec classes whose layers need the same token slots (kv_cache_spec_registry.py: uniform_type_base_spec)
FULL = frozenset({"FullAttentionSpec", "MLAAttentionSpec", "RSWASpec"})
SLIDING = frozenset({"SlidingWindowSpec", "SlidingWindowMLASpec"})
LATENT = frozenset({"MLAAttentionSpec", "SlidingWindowMLASpec"})


class Limits(msgspec.Struct, frozen=True):
    """What bounds a request's blocks besides its length."""

    in_flight: int  # tokens scheduled but not settled: batches at once x max_num_batched_tokens
    dcp: int = 1  # decode context parallel size
    retained: int = 0  # tokens kept below a sliding window for multi-layer drafts


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of cache-bearing layer and how many there are. Sizes are of one layer on one rank."""

    layer_class: str
    kind: str | None  # the engine's spec class; None: the layer keeps no cache
    count: int = 1
    role: str = "target"
    block_size: int | None = None  # tokens
    heads: int = 1  # head slots of one stored state
    content: int = 0  # bytes of one head slot of one stored state
    ratio: int = 1  # tokens one stored state covers; 0: the whole block holds one state
    alignment: int | None = None  # bytes that a page is padded to a multiple of
    padded: int | None = None  # bytes of the page, where it is padded
    window: int | None = None
    chunk: int | None = None
    sharded: bool = False  # decode context parallelism splits its tokens
    state_blocks: int = 0  # of a recurrent layer: blocks that one request holds
    row_bytes: int = 0  # blocks lie a multiple of this apart ...
    kernel_tokens: int = 0  # ... or a multiple of the page of this many tokens (kernel blocks)
    stored_as: str = ""  # what else must agree for two layers to share one block table

    @property
    def states(self) -> int:
        assert self.block_size is not None
        return self.block_size // self.ratio if self.ratio else 1

    @property
    def natural_bytes(self) -> int:
        return self.heads * self.states * self.content

    @property
    def page_bytes(self) -> int:
        """Bytes of one block in one layer."""
        natural = self.natural_bytes
        if self.padded is not None:
            return max(self.padded, natural)
        return round_up(natural, self.alignment or 1)

    @property
    def stride(self) -> int:
        """Bytes that the distance between blocks is a multiple of (kv_cache_interface.py:213)."""
        if not self.kernel_tokens:
            return self.row_bytes or 1
        assert self.block_size is not None
        part = gcd(self.kernel_tokens, self.block_size)
        return 1 if part == self.block_size else msgspec.structs.replace(self, block_size=part).page_bytes

    def blocks(self, length: int, limits: Limits) -> int:
        """Blocks of one request of `length` tokens, at most (each class' max_memory_usage_bytes)."""
        assert self.block_size is not None
        if self.kind in FULL:
            shards = limits.dcp if self.sharded else 1
            return ceil_div(ceil_div(length, shards), self.block_size)
        if self.kind == "ChunkedLocalAttentionSpec":
            return ceil_div(min((self.chunk or 0) + limits.in_flight, length), self.block_size)
        if self.kind in SLIDING:
            held = (self.window or 0) - 1 + limits.retained + limits.in_flight
            return ceil_div(min(held, length), self.block_size) + 1
        if self.kind == "MambaSpec":
            return self.state_blocks
        assert self.kind == "CircularBufferSpec", self.kind
        return 1

    def same_table(self) -> Spec:
        """Everything two layers must agree on to be one kind for the KV cache manager."""
        return msgspec.structs.replace(self, layer_class="", count=1, role="")


def uniform(specs: list[Spec]) -> bool:
    """Whether all layers need the same token slots, so that one block table serves them."""
    first = specs[0]
    if any(s.block_size != first.block_size or s.sharded != first.sharded for s in specs):
        return False
    if first.kind in FULL:
        return all(s.kind in FULL for s in specs)
    if first.kind in SLIDING:
        kinds = {first.kind} if first.kind in LATENT else SLIDING
        return all(s.kind in kinds and s.window == first.window for s in specs)
    same_kind = all(s.kind == first.kind for s in specs)
    if first.kind == "ChunkedLocalAttentionSpec":
        return same_kind and all(s.chunk == first.chunk for s in specs)
    if first.kind == "MambaSpec":
        return same_kind and all(
            (s.state_blocks, s.page_bytes) == (first.state_blocks, first.page_bytes) for s in specs
        )
    return same_kind


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    return ceil_div(a, b) * b
