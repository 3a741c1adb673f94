"""From positions to cache rows: kernel, reference and a loop agree, and the ranks of DCP share out every position."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnfit.engines.vllm.plugin import rows as room
from attnfit.engines.vllm.plugin.rows import cache_rows

NONE = -1


@dataclass
class Step:
    """A batch: `lengths` keys of each request, tokens that name some of them."""

    positions: torch.Tensor
    requests: torch.Tensor
    table: torch.Tensor
    block_size: int
    size: int = 1  # ranks
    interleave: int = 1

    def rows(self, rank: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        return cache_rows(
            self.positions, self.requests, self.table, self.block_size,
            dcp_size=self.size, dcp_rank=rank, interleave=self.interleave,
        )  # fmt: skip

    def reference(self, rank: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        return room._reference(
            self.positions, self.requests, self.table, self.block_size, self.size, rank, self.interleave
        )


def make(seed: int, *, block_size: int, topk: int, size: int = 1, interleave: int = 1, beyond: bool = False) -> Step:
    """Shuffled blocks, gaps anywhere in the lists; `beyond`: also positions for which the table has no block."""
    random = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=random))

    lengths = [number(1, 5 * block_size * size) for _ in range(number(1, 4))]
    needed = [-(-length // (block_size * size)) for length in lengths]
    order = torch.randperm(sum(needed) + 3, generator=random, dtype=torch.int32).split([*needed, 3])
    table = torch.full((len(lengths), max(needed) + number(0, 2)), NONE, dtype=torch.int32)
    for request, blocks in enumerate(order[:-1]):
        table[request, : len(blocks)] = blocks
    tokens = number(1, 7)
    requests = torch.randint(0, len(lengths), (tokens,), generator=random, dtype=torch.int32)
    positions = torch.full((tokens, topk), NONE, dtype=torch.int32)
    for token, request in enumerate(requests.tolist()):
        reach = lengths[request] + (7 * block_size * size if beyond else 0)
        named = torch.randperm(reach, generator=random)[:topk]
        columns = torch.randperm(topk, generator=random)[: len(named)]
        kept = torch.rand(len(named), generator=random) < 0.8
        positions[token, columns] = torch.where(kept, named, NONE).to(torch.int32)
    return Step(positions, requests, table, block_size, size, interleave)


def by_hand(step: Step, rank: int = 0) -> tuple[list[list[int]], list[int]]:
    """One position after another: who keeps it, where among what that rank keeps, and in which block that is."""
    rows, counts = [], []
    for token, request in enumerate(step.requests.tolist()):
        found = []
        for position in step.positions[token].tolist():
            turn, within = divmod(position, step.interleave)
            if position < 0 or turn % step.size != rank:
                found.append(NONE)
                continue
            block, offset = divmod(turn // step.size * step.interleave + within, step.block_size)
            place = int(step.table[request, block]) if block < step.table.shape[1] else NONE
            found.append(NONE if place < 0 else place * step.block_size + offset)
        rows.append(found)
        counts.append(max((column + 1 for column, row in enumerate(found) if row >= 0), default=0))
    return rows, counts


SEEDS = st.integers(0, 2**31)
BLOCKS = st.sampled_from((1, 3, 16, 64))
TOPK = st.sampled_from((1, 5, 16, 37, 64))
RANKS = st.sampled_from(((1, 1), (2, 1), (2, 4), (3, 1), (4, 2), (8, 16)))


@settings(max_examples=40, deadline=None)
@given(SEEDS, BLOCKS, TOPK, RANKS, st.booleans())
def test_kernel_reference_and_a_loop_name_the_same_rows(
    seed: int, block: int, topk: int, ranks: tuple[int, int], beyond: bool
) -> None:
    step = make(seed, block_size=block, topk=topk, size=ranks[0], interleave=ranks[1], beyond=beyond)
    for rank in range(step.size):
        rows, counts = step.rows(rank)
        assert (rows.tolist(), counts.tolist()) == by_hand(step, rank)
        reference, reference_counts = step.reference(rank)
        assert torch.equal(rows, reference)
        assert torch.equal(counts, reference_counts)


@settings(max_examples=40, deadline=None)
@given(SEEDS, BLOCKS, TOPK, RANKS)
def test_every_position_is_a_row_of_exactly_one_rank_and_no_two_share_one(
    seed: int, block: int, topk: int, ranks: tuple[int, int]
) -> None:
    interleave = min(ranks[1], block)
    while block % interleave:  # a block holds whole turns, as vLLM requires
        interleave -= 1
    step = make(seed, block_size=block, topk=topk, size=ranks[0], interleave=interleave)
    named = torch.stack([step.rows(rank)[0] >= 0 for rank in range(step.size)]).sum(0)
    assert torch.equal(named, (step.positions >= 0).to(named.dtype))
    for rank in range(step.size):
        kept: dict[int, tuple[int, int]] = {}
        for token, found in enumerate(step.rows(rank)[0].tolist()):
            for position, row in zip(step.positions[token].tolist(), found, strict=True):
                if row >= 0:
                    key = (int(step.requests[token]), position)
                    assert kept.setdefault(row, key) == key


def test_one_rank_of_one_is_no_sharding() -> None:
    step = make(3, block_size=16, topk=37)
    alone = cache_rows(step.positions, step.requests, step.table, 16)
    assert all(torch.equal(a, b) for a, b in zip(alone, step.rows(), strict=True))


def test_a_part_of_a_wider_buffer_is_read_in_place() -> None:
    step = make(5, block_size=16, topk=37)
    tokens, topk = step.positions.shape
    wide = torch.full((tokens + 2, topk + 11), 1, dtype=torch.int32)
    wide[:tokens, :topk] = step.positions
    rows, counts = cache_rows(wide[:tokens, :topk], step.requests, step.table, 16)
    assert torch.equal(rows, step.rows()[0])
    assert torch.equal(counts, step.rows()[1])


def test_a_token_that_names_nothing_has_no_row_and_count_zero() -> None:
    step = make(7, block_size=16, topk=16)
    step.positions[0] = NONE
    rows, counts = step.rows()
    assert rows[0].tolist() == [NONE] * 16
    assert counts[0] == 0


def test_no_tokens_are_no_rows() -> None:
    step = make(9, block_size=16, topk=16)
    rows, counts = cache_rows(step.positions[:0], step.requests[:0], step.table, 16)
    assert rows.shape == (0, 16)
    assert counts.shape == (0,)


@pytest.mark.parametrize("topk", [2048, 2176, 4096])
def test_the_widths_of_real_buffers(topk: int) -> None:
    step = make(11, block_size=64, topk=topk)
    assert torch.equal(step.rows()[0], step.reference()[0])
