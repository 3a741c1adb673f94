"""Exact top-k in the interpreter: a stable sort's answer, for every kind of row."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from indexer_cases import new

from attnfit.kernels import index_topk

ROW = st.lists(
    st.one_of(
        st.sampled_from([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 3.4e38, -3.4e38]),
        st.floats(width=32),
        st.integers(-3, 3).map(float),
    ),
    max_size=70,
)


def by_python(row: list[float], topk: int) -> list[int]:
    """A stable sort by what Python says is larger; NaN last."""
    order = sorted(range(len(row)), key=lambda i: (math.isnan(row[i]), 0.0 if math.isnan(row[i]) else -row[i]))
    best = sorted(order[:topk])
    return best + [-1] * (topk - len(best))


@pytest.mark.parametrize("implementation", ["reference", "triton"])
@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=3), st.integers(1, 80))
def test_any_row_answers_as_a_stable_sort(implementation: str, rows: list[list[float]], topk: int) -> None:
    columns = max(len(row) for row in rows) + 1
    logits = torch.full((len(rows), columns), math.inf)  # beyond a row's length lies what would win
    for t, row in enumerate(rows):
        logits[t, : len(row)] = torch.tensor(row)
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int32)
    found = index_topk(logits, lengths, topk, implementation=implementation)
    assert found.tolist() == [by_python(logits[t, : len(row)].tolist(), topk) for t, row in enumerate(rows)]


@pytest.mark.parametrize("columns", [4096, 5000, 131072])
@pytest.mark.parametrize("kind", ["random", "few values", "all equal", "one bit apart", "mostly -inf"])
def test_long_rows_answer_as_the_reference(columns: int, kind: str) -> None:
    chance = new(columns)
    row = torch.randn(1, columns, generator=chance)
    row = {
        "random": row,
        "few values": (row * 3).round(),
        "all equal": torch.full_like(row, -2.5),
        "one bit apart": (torch.full_like(row, 1.0).view(torch.int32) + (row > 1.0).int()).view(torch.float32),
        "mostly -inf": row.masked_fill(row < 2.5, -math.inf),
    }[kind]
    lengths = torch.tensor([columns - 3], dtype=torch.int32)
    assert torch.equal(index_topk(row, lengths, 2048, implementation="triton"), index_topk(row, lengths, 2048))


def test_equal_logits_give_the_first_positions() -> None:
    logits, lengths = torch.zeros(1, 100), torch.tensor([90], dtype=torch.int32)
    for implementation in ("reference", "triton"):
        assert index_topk(logits, lengths, 7, implementation=implementation).tolist() == [list(range(7))]


@pytest.mark.parametrize("implementation", ["reference", "triton"])
def test_a_row_that_is_no_longer_than_topk_gives_all_its_positions_then_minus_one(implementation: str) -> None:
    logits = torch.full((4, 9), math.nan)
    logits[:, 4:] = -math.inf
    lengths = torch.tensor([0, 1, 5, 9], dtype=torch.int32)
    found = index_topk(logits, lengths, 5, implementation=implementation).tolist()
    assert found == [[-1] * 5, [0, -1, -1, -1, -1], [0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]


@pytest.mark.parametrize("implementation", ["reference", "triton"])
def test_a_wider_and_longer_buffer_is_cleared_to_its_width_and_no_further(implementation: str) -> None:
    """As an engine's shared buffer is used: rows of other steps stay, and nothing stale is left in ours."""
    buffer = torch.full((6, 16), 77, dtype=torch.int32)
    logits, lengths = torch.arange(20.0).repeat(3, 1), torch.tensor([20, 3, 0], dtype=torch.int32)
    found = index_topk(logits, lengths, 8, out=buffer[1:5, 1:15], implementation=implementation)
    assert found.data_ptr() == buffer[1:, 1:].data_ptr()
    assert buffer[1, 1:15].tolist() == [*range(12, 20), *[-1] * 6]
    assert buffer[2, 1:15].tolist() == [0, 1, 2, *[-1] * 11]
    assert buffer[3, 1:15].tolist() == [-1] * 14
    assert (buffer[4:] == 77).all()
    assert (buffer[0] == 77).all()
    assert (buffer[:, 0] == 77).all()
    assert (buffer[:, 15] == 77).all()


@pytest.mark.parametrize("implementation", ["reference", "triton"])
def test_positions_count_from_the_row_s_start(implementation: str) -> None:
    logits = torch.randn(5, 300, generator=new(1))
    starts = torch.tensor([-3, 7, 100, 299, 300], dtype=torch.int32)  # a negative one is 0
    lengths = torch.tensor([300, 50, 200, 10, 4], dtype=torch.int32)  # the last two reach beyond the row: cut
    found = index_topk(logits, lengths, 20, row_starts=starts, implementation=implementation)
    for t in range(5):
        first = max(int(starts[t]), 0)
        row = logits[t, first : first + lengths[t]]
        assert found[t].tolist() == by_python(row.tolist(), 20)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 60), st.integers(2, 200))
def test_what_is_taken_is_never_less_than_what_is_left(seed: int, topk: int, length: int) -> None:
    logits = (torch.randn(1, 220, generator=new(seed)) * 2).round()
    taken = index_topk(logits, torch.tensor([length], dtype=torch.int32), topk, implementation="triton")[0]
    taken = taken[taken >= 0].long()
    assert taken.numel() == min(topk, length)
    assert (taken.diff() > 0).all()
    left = torch.ones(length, dtype=torch.bool)
    left[taken] = False
    if left.any():
        least = logits[0, taken].min()
        assert least >= logits[0, :length][left].max()
        equals_left = (logits[0, :length] == least) & left
        if equals_left.any():
            assert int(equals_left.nonzero()[0]) > int(taken[logits[0, taken] == least].max()), "ties: the first"


WRONG = {
    "logits is torch.float16": {"logits": torch.zeros(2, 9).half()},
    "logits is [9], not": {"logits": torch.zeros(9)},
    "lengths is [3], not": {"lengths": torch.zeros(3, dtype=torch.int32)},
    "lengths is torch.int64, not torch.int32": {"lengths": torch.zeros(2, dtype=torch.int64)},
    "row_starts is torch.float32": {"row_starts": torch.zeros(2)},
    "out is torch.int64": {"out": torch.zeros(2, 4, dtype=torch.int64)},
    "do not fit": {"out": torch.zeros(2, 3, dtype=torch.int32)},
    "topk is at least 1": {"topk": 0},
}


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_refused_in_one_sentence(message: str) -> None:
    given = {"logits": torch.zeros(2, 9), "lengths": torch.zeros(2, dtype=torch.int32), "topk": 4, **WRONG[message]}
    with pytest.raises((ValueError, TypeError), match=message.replace("[", r"\[")):
        index_topk(**given)
