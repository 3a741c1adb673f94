"""Sparse MLA in the interpreter against the float64 reference: numbers, memory that must not be read, invariances."""

from __future__ import annotations

import dataclasses

import mla_cases
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mla_cases import D_V, MANY_KEYS, PARAMETERS, Inputs, allowed, call, distance, make, name_of
from pairwise import pairwise

from attnfit.kernels.mla import sparse_mla
from attnfit.kernels.mla.reference import sparse_mla_reference

pytestmark = pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")  # log of an empty token's total, 0

# In the worst cell (one token and head, 128 columns), where the cast alone makes 1. Weights are rounded to the dtype
# before they meet the values, which is a second error of the same size; sqrt(2) of both is typical, and where large
# values cancel in a cell's mean it grows. docs/kernels-numerics.md has what was measured.
OUT_FLOORS = 3.5
# A logit is a sum of up to 576 products in fp32, in blocks; one that dominates is all one sign, so roundings add up.
LSE_UNITS = 16.0

CASES = pairwise(PARAMETERS, allowed)
BASE = {**MANY_KEYS[0], "heads": 8, "tokens": 2, "topk": 70, "holes": "none", "valid": "not given", "layout": "rows"}
PACKED = {**BASE, "cache": "packed"}


def check(inputs: Inputs, out: torch.Tensor, lse: torch.Tensor) -> None:
    far = distance(inputs, out, lse)
    assert far.cells
    assert far.out <= OUT_FLOORS, f"{far.out:.2f} cast floors"
    assert far.lse <= LSE_UNITS, f"{far.lse:.2f} fp32 roundings"


@pytest.mark.parametrize("number", range(len(CASES)), ids=[name_of(case) for case in CASES])
def test_every_pair_of_circumstances_meets_the_reference(number: int) -> None:
    inputs = make(CASES[number], number)
    check(inputs, *call(CASES[number], inputs))


@pytest.mark.parametrize("case", MANY_KEYS, ids=name_of)
def test_every_kind_of_value_meets_the_reference_with_many_keys(case: dict) -> None:
    inputs = make(case, 1)
    check(inputs, *call(case, inputs))


@pytest.mark.parametrize("cache", PARAMETERS["cache"])
def test_the_longest_list_of_indices_meets_the_reference(cache: str) -> None:
    case = {**BASE, "cache": cache, "topk": 4096, "holes": "interior", "tokens": 1, "way": "as chosen"}
    inputs = make(case)
    check(inputs, *call(case, inputs))


@pytest.mark.parametrize("way", PARAMETERS["way"])
def test_a_call_in_which_no_token_has_a_row_is_zero_and_minus_infinity(way: str) -> None:
    inputs = make(BASE)
    inputs.indices[:] = -1
    out, lse = call({**BASE, "way": way}, inputs)
    assert (out == 0).all()
    assert (lse == float("-inf")).all()


def test_no_tokens_give_no_results() -> None:
    inputs = make(BASE)
    out, lse = sparse_mla(inputs.q[:0], inputs.kv, inputs.indices[:0], 1.0, implementation="latent")
    assert out.shape == (0, 8, D_V)
    assert lse.shape == (0, 8)


WRONG = {
    "a scale that is 1% off": lambda i: dataclasses.replace(i, scale=i.scale * 1.01),
    "one row for another": lambda i: dataclasses.replace(i, indices=_but(i.indices, 0, int(i.indices[0, 5]))),
    "a row left out": lambda i: dataclasses.replace(i, indices=_but(i.indices, 3, -1)),
    "no rotary part": lambda i: dataclasses.replace(i, q=_but(i.q, slice(D_V, None), 0)),
    "two heads swapped": lambda i: dataclasses.replace(i, q=i.q.flip(1)),
}


def _but(tensor: torch.Tensor, at: int | slice, value: float) -> torch.Tensor:
    changed = tensor.clone()
    changed[..., at] = value
    return changed


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("dtype", PARAMETERS["dtype"])
def test_the_tolerance_sees(what: str, dtype: str) -> None:
    inputs = make({**BASE, "dtype": dtype})
    right = WRONG[what](inputs)
    far = distance(inputs, *sparse_mla_reference(right.q, right.kv, right.indices, right.scale))
    assert far.out > 2 * OUT_FLOORS or far.lse > 2 * LSE_UNITS


# Invariances. "Bitwise" where the same sums are taken in the same order, else within the tolerance.


def latent(inputs: Inputs, case: dict = BASE, splits: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mla_cases, "SPLITS", splits)
        return call({**case, "way": "latent" if splits == 1 else "latent, split"}, inputs)


def same(one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


some = settings(max_examples=12, deadline=None, derandomize=True)  # a landing must not hang on chance
caches = st.sampled_from([BASE, PACKED, {**BASE, "dtype": "bfloat16"}, {**PACKED, "dtype": "bfloat16"}])


@some
@given(case=caches, chance=st.randoms(use_true_random=False))
def test_the_order_of_the_indices_does_not_matter(case: dict, chance) -> None:
    inputs = make(case)
    order = list(range(inputs.indices.shape[1]))
    chance.shuffle(order)
    check(inputs, *latent(dataclasses.replace(inputs, indices=inputs.indices[:, order].contiguous()), case))


@some
@given(case=caches, splits=st.integers(1, 12))
def test_any_number_of_splits_merges_to_the_same_result(case: dict, splits: int) -> None:
    inputs = make(case)
    check(inputs, *latent(inputs, case, splits))


@some
@given(case=caches, at=st.integers(0, 70), holes=st.sampled_from(["none", "interior", "empty token"]))
def test_two_calls_over_parts_of_the_keys_merge_by_their_lse(case: dict, at: int, holes: str) -> None:
    inputs = make({**case, "holes": holes})
    parts = []
    for here in (slice(0, at), slice(at, 70)):
        part = inputs.indices[:, here].contiguous()
        if part.shape[1]:
            parts.append(latent(dataclasses.replace(inputs, indices=part), case))
    lse = torch.stack([lse for _, lse in parts])
    merged = torch.logsumexp(lse, 0)
    shares = (lse - merged.nan_to_num(neginf=0.0)).exp()
    out = sum(share.unsqueeze(-1) * out.float() for share, (out, _) in zip(shares, parts, strict=True))
    check(inputs, out.to(inputs.q.dtype), merged)


@some
@given(case=caches, places=st.lists(st.integers(0, 70), min_size=1, max_size=60))
def test_padding_may_stand_anywhere_and_any_number_of_times(case: dict, places: list[int]) -> None:
    inputs = make(case)
    rows = [list(row) for row in inputs.indices.tolist()]
    for row in rows:
        for place in places:
            row.insert(place, -1)
    padded = dataclasses.replace(inputs, indices=torch.tensor(rows, dtype=torch.int32))
    check(inputs, *latent(padded, case))


@some
@given(case=caches, blocks_before=st.integers(0, 2), after=st.integers(0, 80))
def test_whole_blocks_of_padding_and_padding_at_the_end_change_no_bit(
    case: dict, blocks_before: int, after: int
) -> None:
    inputs = make({**case, "holes": "interior"})
    tokens, step = inputs.indices.shape[0], case["blocks"].block_n
    before = torch.full((tokens, blocks_before * step), -1, dtype=torch.int32)
    padding = torch.full((tokens, after), -1, dtype=torch.int32)
    padded = dataclasses.replace(inputs, indices=torch.cat([before, inputs.indices, padding], 1).contiguous())
    assert same(latent(padded, case), latent(inputs, case))


@some
@given(case=caches, counts=st.tuples(st.integers(0, 70), st.integers(0, 70)))
def test_a_valid_count_is_padding_past_it_to_the_bit(case: dict, counts: tuple[int, int]) -> None:
    inputs = make(case)
    valid = torch.tensor(counts, dtype=torch.int32)
    padded = torch.where(torch.arange(70) < valid.unsqueeze(1), inputs.indices, -1)
    assert same(
        latent(dataclasses.replace(inputs, valid=valid), case),
        latent(dataclasses.replace(inputs, indices=padded), case),
    )


@pytest.mark.parametrize("case", [BASE, PACKED], ids=["native", "packed"])
def test_a_token_s_result_does_not_depend_on_its_neighbours(case: dict) -> None:
    inputs = make({**case, "tokens": 3, "holes": "interior"})
    whole = latent(inputs, case)
    for t in range(3):
        alone = dataclasses.replace(inputs, q=inputs.q[t : t + 1], indices=inputs.indices[t : t + 1])
        assert same(latent(alone, case), tuple(x[t : t + 1] for x in whole))


@pytest.mark.parametrize("case", [BASE, PACKED], ids=["native", "packed"])
def test_where_the_rows_lie_changes_no_bit(case: dict) -> None:
    plain, blocks, spaced = (latent(make({**case, "layout": layout}), case) for layout in PARAMETERS["layout"])
    assert same(plain, blocks)
    assert same(plain, spaced)


@pytest.mark.parametrize("way", PARAMETERS["way"])
def test_the_same_call_gives_the_same_bits(way: str) -> None:
    inputs = make(BASE)
    assert same(call({**BASE, "way": way}, inputs), call({**BASE, "way": way}, inputs))


def test_a_naming_twice_counts_twice() -> None:
    inputs = make(BASE)
    twice = dataclasses.replace(inputs, indices=torch.cat([inputs.indices, inputs.indices], 1).contiguous())
    out, lse = latent(twice)
    check(twice, out, lse)
    check(inputs, out, lse - torch.log(torch.tensor(2.0)))


def test_float16_does_not_overflow_where_the_result_is_finite() -> None:
    inputs = make({**BASE, "values": "large"})
    named = inputs.kv[inputs.indices[0].long()].float()
    assert (named.abs() > 32000).all()
    assert (inputs.q[0, 0].float() @ named.T).abs().max() > 65504
    for way in PARAMETERS["way"]:
        out, lse = call({**BASE, "way": way}, inputs)
        assert out.isfinite().all()
        assert lse.isfinite().all()
