"""Index logits in the interpreter against the float64 reference: prefill, paged decode, and that both say the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from indexer_cases import KINDS, magnitude, meets, new, values
from pairwise import pairwise

from attnfit.kernels import checks, index_logits, index_logits_paged, write_index_cache
from attnfit.kernels.indexer.reference import index_logits_reference

PREFILL = {
    "q": list(KINDS),
    "keys": list(KINDS),
    "heads": [8, 16, 20, 32, 64],
    "dim": [128, 64, 24],
    "scale": [True, False],
    "compressed": [True, False],
    "clean": [True, False],
    "ranges": ["causal", "two requests", "ragged", "empty", "beyond"],
}
PAGED = {
    "q": list(KINDS),
    "keys": list(KINDS),
    "heads": [8, 32, 64],
    "dim": [128, 64],
    "next_n": [1, 2, 3],
    "lengths": ["shared", "for each token"],
    "block_size": [1, 16, 64],
    "gap": [0, 64],
    "clean": [True, False],
}


def one_16_bit_type(case: dict) -> bool:
    native = {case[side] for side in ("q", "keys") if side in case} - {"e4m3"}
    return len(native) < 2


def name_of(case: dict) -> str:
    return "-".join(str(value) for value in case.values())


PREFILL_CASES = pairwise(PREFILL, one_16_bit_type)
PAGED_CASES = pairwise(PAGED, one_16_bit_type)


def ranges(kind: str, tokens: int, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    t = torch.arange(tokens)
    start, end = {
        "causal": (0 * t, keys - tokens + 1 + t),
        "two requests": ((t > tokens // 2) * (keys // 3), torch.where(t > tokens // 2, keys, keys // 3)),
        "ragged": (t * 7 % keys, t * 7 % keys + t * 5),
        "empty": (t * 0 + 5, t * 0 + 5 - t),
        "beyond": (t - 3, keys - 2 + t),
    }[kind]
    return start.to(torch.int32), end.to(torch.int32)


@pytest.mark.parametrize("number", range(len(PREFILL_CASES)), ids=[name_of(case) for case in PREFILL_CASES])
def test_prefill_meets_the_reference(number: int) -> None:
    case, chance, tokens, keys = PREFILL_CASES[number], new(number), 5, 150
    q = values(case["q"], tokens, case["heads"], case["dim"], chance=chance)
    k = values(case["keys"], keys, case["dim"], chance=chance)
    weights = torch.randn(tokens, case["heads"], generator=chance)
    scale = torch.rand(keys, generator=chance) if case["scale"] else None
    start, end = ranges(case["ranges"], tokens, keys)
    named = {"k_scale": scale, "compressed": case["compressed"]}
    expected = index_logits(q, k, weights, start, end, **named)
    out = torch.full((tokens, keys), 7.0)
    ours = index_logits(q, k, weights, start, end, **named, clean=case["clean"], out=out, implementation="triton")
    assert ours is out
    outside = torch.isneginf(expected)
    if not case["clean"]:
        assert (out[outside] == 7.0).all(), "what is not asked for is left as it was"
        out[outside] = float("-inf")
    bound = magnitude(q, k, weights, scale)
    if case["compressed"]:
        bound = torch.stack([bound[t].roll(-max(int(start[t]), 0)) for t in range(tokens)])
    meets(out, expected, bound)


def test_compressed_columns_are_the_absolute_ones_moved_to_the_front() -> None:
    chance = new(0)
    q, k, weights = (
        values("float16", 4, 8, 32, chance=chance),
        values("float16", 40, 32, chance=chance),
        torch.randn(4, 8, generator=chance),
    )
    start, end = torch.tensor([0, 3, 10, 40], dtype=torch.int32), torch.tensor([7, 40, 12, 40], dtype=torch.int32)
    for implementation in ("reference", "triton"):
        absolute = index_logits(q, k, weights, start, end, compressed=False, implementation=implementation)
        ours = index_logits(q, k, weights, start, end, width=37, implementation=implementation)
        for t in range(4):
            seen = int(end[t] - start[t])
            assert torch.equal(ours[t, :seen], absolute[t, start[t] : end[t]])
            assert torch.isneginf(ours[t, seen:]).all()
            assert torch.isneginf(absolute[t, : start[t]]).all()
            assert torch.isneginf(absolute[t, end[t] :]).all()


@pytest.mark.parametrize("compressed", [True, False])
def test_a_range_that_begins_before_the_keys_or_ends_behind_them_is_cut(compressed: bool) -> None:
    chance = new(4)
    q, k, weights = (
        values("float16", 3, 8, 32, chance=chance),
        values("float16", 40, 32, chance=chance),
        torch.ones(3, 8),
    )
    start, end = torch.tensor([-5, -1, 30], dtype=torch.int32), torch.tensor([9, 99, 50], dtype=torch.int32)
    cut = start.clamp(0), end.clamp(max=40)
    for implementation in ("reference", "triton"):
        found = index_logits(q, k, weights, start, end, compressed=compressed, implementation=implementation)
        assert torch.equal(
            found, index_logits(q, k, weights, *cut, compressed=compressed, implementation=implementation)
        )


def test_columns_beyond_the_width_are_dropped() -> None:
    chance = new(0)
    q, k = values("float16", 2, 8, 32, chance=chance), values("float16", 300, 32, chance=chance)
    weights, zero, end = torch.ones(2, 8), torch.zeros(2, dtype=torch.int32), torch.full((2,), 300, dtype=torch.int32)
    for implementation in ("reference", "triton"):
        wide = index_logits(q, k, weights, zero, end, implementation=implementation)
        memory = torch.full((2, 150), 7.0)
        index_logits(q, k, weights, zero, end, width=140, out=memory[:, :140], implementation=implementation)
        assert torch.equal(memory[:, :140], wide[:, :140])
        assert (memory[:, 140:] == 7.0).all()


def test_a_length_beyond_the_block_table_or_the_width_is_cut() -> None:
    case = {**PAGED_CASES[0], "q": "float16", "keys": "float16", "block_size": 16, "next_n": 1, "lengths": "shared"}
    q, cache, weights, lengths, table, max_len = paged(case, 1)
    wide = index_logits_paged(q, cache, weights, lengths, table, max_len)
    for implementation in ("reference", "triton"):
        narrow = torch.cat([table[:, :3], torch.full((2, 1), 10**6, dtype=torch.int32)], 1)[:, :3]  # not contiguous
        cut = index_logits_paged(q, cache, weights, lengths, narrow, max_len, implementation=implementation)
        assert torch.isneginf(cut[:, 48:]).all()
        torch.testing.assert_close(cut[:, :48], wide[:, :48], rtol=1e-5, atol=1e-4)
        memory = torch.full((2, 60), 7.0)
        index_logits_paged(q, cache, weights, lengths, table, 50, out=memory[:, :50], implementation=implementation)
        torch.testing.assert_close(memory[:, :50], wide[:, :50], rtol=1e-5, atol=1e-4)
        assert (memory[:, 50:] == 7.0).all()


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_large_values_do_not_overflow_where_the_true_logit_is_finite(kind: str) -> None:
    chance = new(0)
    q = values(kind, 3, 16, 128, chance=chance, size=15000.0)
    k = values(kind, 70, 128, chance=chance, size=15000.0)
    weights, zero, end = torch.rand(3, 16), torch.zeros(3, dtype=torch.int32), torch.full((3,), 70, dtype=torch.int32)
    assert (q.double().abs().amax() ** 2 * 128) > torch.finfo(torch.float16).max
    expected = index_logits(q, k, weights, zero, end)
    meets(index_logits(q, k, weights, zero, end, implementation="triton"), expected, magnitude(q, k, weights, None))


def test_a_nan_reaches_the_logits_of_its_key_and_no_others() -> None:
    chance = new(0)
    q, k = values("float16", 2, 8, 32, chance=chance), values("float16", 20, 32, chance=chance)
    k[4, 3] = float("nan")
    weights, zero, end = torch.ones(2, 8), torch.zeros(2, dtype=torch.int32), torch.full((2,), 20, dtype=torch.int32)
    for implementation in ("reference", "triton"):
        missing = torch.isnan(index_logits(q, k, weights, zero, end, implementation=implementation))
        assert missing[:, 4].all()
        assert missing.sum() == 2


def test_the_reference_is_the_published_formula() -> None:
    """Written out once more, without any of the reference's own code."""
    q, k = torch.tensor([[[1.0, 2.0], [-1.0, 0.5]]]), torch.tensor([[3.0, 1.0], [-4.0, 1.0]])
    weights, scale = torch.tensor([[0.5, -2.0]]), torch.tensor([2.0, 10.0])
    out = torch.zeros(1, 2)
    index_logits_reference(q, k, weights, torch.tensor([0]), torch.tensor([2]), scale, True, out)
    first = 2.0 * (0.5 * max(0.0, 3 + 2) + -2.0 * max(0.0, -3 + 0.5))
    second = 10.0 * (0.5 * max(0.0, -4 + 2) + -2.0 * max(0.0, 4 + 0.5))
    assert out.tolist() == [[first, second]]


def paged(case: dict, seed: int) -> tuple:
    """Two requests in a cache whose unused bytes are NaN: q, cache, weights, context_lens, block_table, max_len."""
    chance, batch, max_len = new(seed), 2, 140
    next_n, block_size, dim = case["next_n"], case["block_size"], case["dim"]
    lengths = torch.tensor([133, 5], dtype=torch.int32)
    if case["lengths"] == "for each token":
        lengths = (lengths[:, None] - torch.arange(next_n)).to(torch.int32)
    per_request = -(-max_len // block_size)
    blocks = 2 * per_request + 1
    codes = case["keys"] == "e4m3"
    width = dim + 4 if codes else dim
    filler = 0xFF if codes else float("nan")
    memory = torch.full((blocks, block_size * width + case["gap"]), filler, dtype=KINDS[case["keys"]])
    cache = torch.as_strided(memory, (blocks, block_size, width), (memory.stride(0), width, 1))
    table = torch.randperm(blocks, generator=chance)[: 2 * per_request].view(2, per_request).to(torch.int32)
    longest = lengths.view(2, -1).amax(1)
    for b in range(batch):
        keys = torch.randn(int(longest[b]), dim, generator=chance)
        keys = keys.to(torch.float32 if codes else KINDS[case["keys"]])
        at = torch.arange(int(longest[b]))
        slots = table[b, at // block_size].long() * block_size + at % block_size
        write_index_cache(keys, cache, slots, implementation="reference")
        table[b, -(-int(longest[b]) // block_size) :] = 10**6  # must not be followed
    q = values(case["q"], batch, next_n, case["heads"], dim, chance=chance)
    weights = torch.randn(batch * next_n, case["heads"], generator=chance)
    return q, cache, weights, lengths, table, max_len


@pytest.mark.parametrize("number", range(len(PAGED_CASES)), ids=[name_of(case) for case in PAGED_CASES])
def test_paged_decode_meets_the_reference(number: int) -> None:
    case = PAGED_CASES[number]
    arguments = paged(case, number)
    q, weights, max_len = arguments[0], arguments[2], arguments[5]
    expected = index_logits_paged(*arguments)
    out = torch.full((q.shape[0] * q.shape[1], max_len), 7.0)
    index_logits_paged(*arguments, clean=case["clean"], out=out, implementation="triton")
    outside = torch.isneginf(expected)
    if not case["clean"]:
        assert (out[outside] == 7.0).all(), "what is not asked for is left as it was"
        out[outside] = float("-inf")
    # keys are of size 1 in all three kinds of cache: the largest of 200 * 128 normal numbers is below 5
    bound = magnitude(q.flatten(0, 1), torch.full((1, case["dim"]), 5.0), weights, None)
    meets(out, expected, bound.expand(-1, max_len))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**31),
    st.lists(st.integers(0, 90), min_size=1, max_size=4),
    st.sampled_from([1, 16, 64]),
    st.sampled_from(list(KINDS)),
)
def test_paged_logits_are_the_prefill_logits_of_the_same_keys(
    seed: int, lengths: list[int], block_size: int, kind: str
) -> None:
    """Bit for bit, in either implementation: where a key lies does not change what it scores."""
    chance, dim, heads, batch = new(seed), 32, 8, len(lengths)
    per_request = -(-90 // block_size)
    codes = kind == "e4m3"
    cache = torch.zeros(batch * per_request, block_size, dim + 4 if codes else dim, dtype=KINDS[kind])
    table = torch.randperm(batch * per_request, generator=chance).view(batch, per_request).to(torch.int32)
    ends = torch.tensor(lengths).cumsum(0).to(torch.int32)
    starts = ends - torch.tensor(lengths, dtype=torch.int32)
    k = values(kind, int(ends[-1]), dim, chance=chance)
    scale = torch.rand(int(ends[-1]), generator=chance) if codes else None
    for b in range(batch):
        for c in range(lengths[b]):
            block, row, key = int(table[b, c // block_size]), c % block_size, int(starts[b]) + c
            if codes:
                flat = cache[block].view(-1)
                flat[row * dim : (row + 1) * dim] = k[key]
                flat[block_size * dim :].view(torch.float32)[row] = scale[key]
            else:
                cache[block, row] = k[key]
    q = values(kind, batch, heads, dim, chance=chance)
    weights = torch.randn(batch, heads, generator=chance)
    for implementation in ("reference", "triton"):
        flat = index_logits(q, k, weights, starts, ends, k_scale=scale, width=90, implementation=implementation)
        paged = index_logits_paged(q[:, None], cache, weights, ends - starts, table, 90, implementation=implementation)
        assert torch.equal(flat, paged)


def test_several_new_tokens_at_once_are_as_many_single_ones() -> None:
    case = {**PAGED_CASES[0], "q": "float16", "keys": "float16", "next_n": 3, "lengths": "shared", "gap": 64}
    q, cache, weights, lengths, table, max_len = paged(case, 3)
    for implementation in ("reference", "triton"):
        together = index_logits_paged(q, cache, weights, lengths, table, max_len, implementation=implementation)
        for j in range(3):
            one = index_logits_paged(
                q[:, j : j + 1], cache, weights[j::3], lengths - 2 + j, table, max_len, implementation=implementation
            )
            assert torch.equal(together[j::3], one)


def test_a_block_that_is_none_scores_minus_infinity() -> None:
    case = {**PAGED_CASES[0], "block_size": 16, "next_n": 1, "lengths": "shared"}
    q, cache, weights, lengths, table, max_len = paged(case, 1)
    table[0, 1] = -1
    for implementation in ("reference", "triton"):
        logits = index_logits_paged(q, cache, weights, lengths, table, max_len, implementation=implementation)
        assert torch.isneginf(logits[0, 16:32]).all()
        assert torch.isfinite(logits[0, :16]).all()
        assert torch.isfinite(logits[0, 32:133]).all()


def test_the_float8_view_of_codes_and_the_four_dimensional_cache_are_taken_as_they_come() -> None:
    case = {**PAGED_CASES[0], "q": "e4m3", "keys": "e4m3", "next_n": 1, "lengths": "shared", "block_size": 16}
    q, cache, weights, lengths, table, max_len = paged(case, 1)
    expected = index_logits_paged(q, cache, weights, lengths, table, max_len)
    for implementation in ("reference", "triton"):
        ours = index_logits_paged(
            q.view(torch.float8_e4m3fn),
            cache.unsqueeze(-2),
            weights,
            lengths[:, None],
            table,
            max_len,
            implementation=implementation,
        )
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-4)


def test_new_rows_begin_where_top_k_kernels_want_them() -> None:
    logits = index_logits(torch.zeros(3, 8, 16), torch.zeros(5, 16), torch.zeros(3, 8), *ranges("causal", 3, 5))
    assert logits.shape == (3, 5)
    assert logits.stride(0) * 4 % 1024 == 0


WRONG = {
    "q is [3, 8], not": {"q": torch.zeros(3, 8)},
    "k is [5, 12], not": {"k": torch.zeros(5, 12)},
    "weights is [3, 7], not": {"weights": torch.zeros(3, 7)},
    "k_scale is [4], not": {"k_scale": torch.zeros(4)},
    "start is torch.int64, not torch.int32": {"start": torch.zeros(3, dtype=torch.int64)},
    "e4m3 codes": {"k": torch.zeros(5, 16).to(torch.float8_e5m2)},
    "of one 16-bit type": {"k": torch.zeros(5, 16, dtype=torch.bfloat16)},
    "the kernel takes float16": {"q": torch.zeros(3, 8, 16), "k": torch.zeros(5, 16)},
    "one column a key": {"compressed": False, "width": 3},
    "out is [3, 4], not": {"out": torch.zeros(3, 4)},
    "implementation is one of": {"implementation": "cuda"},
    "contiguous along its last": {"k": torch.zeros(16, 5, dtype=torch.float16).T},
    "too large for the kernel": {"q": torch.zeros(3, 8, 300).half(), "k": torch.zeros(5, 300).half()},
}


def test_a_gpu_that_is_too_old_is_refused_with_what_runs_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(ValueError, match=r"7\.5: the kernels need 8\.0 or newer .*reference"):
        checks.choose(None, torch.device("cuda:0"))
    assert checks.choose("reference", torch.device("cuda:0")) == "reference"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert checks.choose(None, torch.device("cuda:0")) == "triton"


def test_a_cpu_tensor_takes_triton_in_the_interpreter_only(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert checks.choose(None, cpu) == "reference"
    assert checks.choose("triton", cpu) == "triton"
    monkeypatch.setattr(checks.interpreter, "interpreting", lambda: False)
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        checks.choose("triton", cpu)


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_refused_in_one_sentence(message: str) -> None:
    start, end = ranges("causal", 3, 5)
    given = {"q": torch.zeros(3, 8, 16).half(), "k": torch.zeros(5, 16).half(), "weights": torch.zeros(3, 8)}
    given |= {"start": start, "end": end, "implementation": "triton", **WRONG[message]}
    with pytest.raises((ValueError, TypeError), match=message.replace("[", r"\[")):
        index_logits(**given)
