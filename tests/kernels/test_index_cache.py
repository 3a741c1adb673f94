"""e4m3 by integer arithmetic, exhaustively against torch's own; and the cache writers, byte for byte."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from indexer_cases import new

from attnfit.kernels import index_logits_paged, sparse_mla, write_index_cache, write_latent_cache
from attnfit.kernels.e4m3 import decode_e4m3, encode_e4m3, encode_e4m3_reference
from attnfit.kernels.mla.rows import unpack

pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NaN + 2^14, which is then replaced
FORMATS = ["ue8m0", "fp32"]


@triton.jit
def _encode(values, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, encode_e4m3(tl.load(values + at, mask=at < n).to(tl.float32)), mask=at < n)


@triton.jit
def _decode(codes, out):
    at = tl.arange(0, 256)
    tl.store(out + at, decode_e4m3(tl.load(codes + at)))


def encoded(values: torch.Tensor) -> torch.Tensor:
    out = torch.empty(values.numel(), dtype=torch.uint8)
    _encode[(triton.cdiv(values.numel(), 65536),)](values, out, values.numel(), 65536)
    return out


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_16_bit_value_is_encoded_as_torch_encodes_it(dtype: torch.dtype) -> None:
    """All 65536 of them, NaN with its sign and infinity included; beyond +-448 is +-448, where torch would say NaN."""
    values = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    assert torch.equal(encoded(values), encode_e4m3_reference(values))


def test_every_tie_between_two_codes_goes_to_the_even_one_and_its_neighbours_to_the_nearer() -> None:
    codes = torch.arange(0x7F, dtype=torch.uint8)
    numbers = codes.view(torch.float8_e4m3fn).float()
    ties = torch.cat([(numbers[:-1] + numbers[1:]) / 2, torch.tensor([464.0])])
    expected = torch.where(codes % 2 == 0, codes, codes + 1).clamp_max(0x7E)
    assert torch.equal(encoded(ties), expected)
    assert torch.equal(encoded(-ties), expected | 0x80)
    below, above = (torch.nextafter(ties, torch.tensor(end)) for end in (0.0, 1e9))
    assert torch.equal(encoded(below), codes)
    assert torch.equal(encoded(above), (codes + 1).clamp_max(0x7E))


def test_random_fp32_bit_patterns_are_encoded_as_torch_encodes_them() -> None:
    bits = torch.randint(-(2**31), 2**31, (500_000,), generator=new(0), dtype=torch.int64).to(torch.int32)
    values = torch.cat([bits.view(torch.float32), torch.randn(500_000, generator=new(1)) * 100])
    assert torch.equal(encoded(values), encode_e4m3_reference(values))


def test_encoding_what_was_decoded_gives_the_code_back_and_is_torch_s_value() -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    value = torch.empty(256, dtype=torch.float16)
    _decode[(1,)](codes, value)
    number = (codes & 0x7F) != 0x7F
    assert torch.equal(encoded(value)[number], codes[number])
    assert torch.equal(value.float()[number], codes.view(torch.float8_e4m3fn).float()[number])


def written(write, shape: tuple[int, ...], dtype: torch.dtype, gap: int, *arguments, **named) -> list[torch.Tensor]:
    """The memory under a cache of that shape, after each implementation wrote into it."""
    memories = []
    for implementation in ("triton", "reference"):
        per_block = shape[1] * shape[2]
        memory = torch.full((shape[0], per_block + gap), 7, dtype=dtype)
        cache = torch.as_strided(memory, shape, (per_block + gap, shape[2], 1))
        write(*arguments[:-1], cache, arguments[-1], implementation=implementation, **named)
        memories.append(memory)
    return memories


def keys_of_all_sizes(tokens: int, dim: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    chance = new(seed)
    keys = torch.randn(tokens, dim, generator=chance) * torch.logspace(-7, 4, tokens)[:, None]
    keys[0] = 0
    keys[1] = 448
    keys[2, 3], keys[3, 5] = float("nan"), float("inf")
    keys[4, 0] = -0.0
    return keys.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scale_format", FORMATS)
@pytest.mark.parametrize(("dim", "block_size", "gap"), [(128, 16, 64), (128, 64, 0), (64, 1, 128), (96, 16, 4)])
def test_written_keys_are_the_reference_s_byte_for_byte(
    dtype: torch.dtype, scale_format: str, dim: int, block_size: int, gap: int
) -> None:
    keys = keys_of_all_sizes(30, dim, dtype, block_size)
    slots = torch.randperm(5 * 64 // block_size * block_size, generator=new(1))[:27]
    slots[6] = -1
    shape = (5 * 64 // block_size, block_size, dim + 4)
    ours, reference = written(write_index_cache, shape, torch.uint8, gap, keys, slots, scale_format=scale_format)
    assert torch.equal(ours, reference)
    untouched = torch.ones(shape[0] * block_size, dtype=torch.bool)
    untouched[slots[slots >= 0]] = False
    codes = ours[:, : block_size * dim].reshape(-1, dim)
    assert (codes[untouched] == 7).all(), "skipped slots, and tokens beyond the slots, write nothing"
    assert (ours[:, block_size * (dim + 4) :] == 7).all(), "other layers' bytes between blocks are left alone"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_block_is_codes_first_then_scales(dtype: torch.dtype) -> None:
    """The layout, worked out by hand: key r of a block of 4, 8 wide, has its codes at 8 r and its scale at 32 + 4 r."""
    keys = torch.zeros(2, 8, dtype=dtype)
    keys[0, 0], keys[1, 7] = 896.0, -7.0
    for implementation in ("triton", "reference"):
        cache = torch.zeros(2, 4, 12, dtype=torch.uint8)
        write_index_cache(keys, cache, torch.tensor([5, 2]), implementation=implementation)
        block = cache[1].view(-1)
        assert block[8] == 0x7E  # 448
        assert block[32:].view(torch.float32).tolist() == [0.0, 2.0, 0.0, 0.0]
        block = cache[0].view(-1)
        assert block[16 + 7] == 0xFE  # -448
        assert block[32:].view(torch.float32).tolist() == [0.0, 0.0, 7 / 448, 0.0]


@settings(max_examples=60, deadline=None)
@given(st.floats(2.0**-10, 2.0**120, width=32), st.sampled_from(FORMATS))
def test_a_scale_is_the_least_that_lets_the_largest_value_fit(largest: float, scale_format: str) -> None:
    cache = torch.zeros(1, 1, 8, dtype=torch.uint8)
    keys = torch.tensor([[largest, -largest / 3, 0.0, 0.0]])
    write_index_cache(keys, cache, torch.tensor([0]), scale_format=scale_format, implementation="triton")
    scale = cache.view(-1)[4:].view(torch.float32).item()
    exact = torch.tensor(largest).item() / 448
    if scale_format == "ue8m0":
        assert torch.frexp(torch.tensor(scale)).mantissa == 0.5, "a power of two"
        assert scale / 2 < exact * (1 + 2**-23)
        assert scale >= exact * (1 - 2**-23)
    else:
        assert abs(scale - exact) <= exact * 2**-24 * 1.01
    assert cache.view(-1)[0].item() & 0x7F <= 0x7E


def test_a_native_cache_gets_the_keys_as_they_are() -> None:
    keys = torch.randn(6, 24, generator=new(0)).half()
    slots = torch.tensor([0, 9, -1, 4, 11, 3], dtype=torch.int32)
    ours, reference = written(write_index_cache, (3, 4, 24), torch.float16, 8, keys, slots)
    assert torch.equal(ours, reference)
    assert torch.equal(ours[:, :96].reshape(12, 24)[9], keys[1])


def test_keys_written_and_read_back_score_as_the_unquantised_ones_within_e4m3_s_rounding() -> None:
    chance = new(0)
    keys, q = torch.randn(50, 128, generator=chance), torch.randn(1, 1, 8, 128, generator=chance).half()
    weights, lengths = torch.rand(1, 8, generator=chance), torch.tensor([50], dtype=torch.int32)
    table = torch.tensor([[2, 0, 3, 1]], dtype=torch.int32)
    at = torch.arange(50)
    slots = table[0, at // 16].long() * 16 + at % 16
    exact = (weights.double() @ torch.relu(q[0, 0].double() @ keys.double().T))[0]
    most = (weights.double() @ (q[0, 0].double().abs() @ keys.double().abs().T))[0]
    cache = torch.zeros(4, 16, 132, dtype=torch.uint8)
    for scale_format in FORMATS:
        write_index_cache(keys, cache, slots, scale_format=scale_format, implementation="triton")
        logits = index_logits_paged(q, cache, weights, lengths, table, 50, implementation="triton")[0]
        assert ((logits.double() - exact).abs() <= most * 2**-4).all()
        assert ((logits.double() - exact).abs() > 0).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scale_format", FORMATS)
@pytest.mark.parametrize("gap", [0, 656])
def test_written_latents_are_the_reference_s_byte_for_byte(dtype: torch.dtype, scale_format: str, gap: int) -> None:
    latent, rope = keys_of_all_sizes(20, 512, dtype, 0), torch.randn(20, 64, generator=new(1)).to(dtype) * 100
    slots = torch.randperm(48, generator=new(2))[:18]
    slots[6] = -1
    ours, reference = written(
        write_latent_cache, (3, 16, 656), torch.uint8, gap, latent, rope, slots, scale_format=scale_format
    )
    assert torch.equal(ours, reference)
    assert (ours[:, 16 * 656 :] == 7).all()


@pytest.mark.parametrize("scale_format", FORMATS)
def test_packed_latents_are_read_back_within_e4m3_s_rounding_and_the_rotary_part_as_bfloat16(scale_format: str) -> None:
    latent, rope = torch.randn(9, 512, generator=new(0)).half(), torch.randn(9, 64, generator=new(1)).half()
    cache = torch.zeros(9, 656, dtype=torch.uint8)
    write_latent_cache(latent, rope, cache, torch.arange(9), scale_format=scale_format, implementation="triton")
    rows = unpack(cache)
    groups = latent.double().unflatten(-1, (4, 128))
    step = groups.abs().amax(-1, keepdim=True) / 448 * 2.0**-9 * (2 if scale_format == "ue8m0" else 1)
    far = (rows[:, :512].unflatten(-1, (4, 128)) - groups).abs()
    assert (far <= groups.abs() * 2.0**-4 + step).all()
    assert torch.equal(rows[:, 512:], rope.bfloat16().double())


@pytest.mark.parametrize("rotary", [64, 0])
def test_native_latents_are_written_beside_their_rotary_part(rotary: int) -> None:
    latent = torch.randn(5, 512, generator=new(0)).half()
    rope = torch.randn(5, rotary, generator=new(1)).half() if rotary else None
    slots = torch.tensor([3, -1, 0, 7, 5])
    ours, reference = written(write_latent_cache, (2, 4, 512 + rotary), torch.float16, 16, latent, rope, slots)
    assert torch.equal(ours, reference)
    row = ours[1, : 4 * (512 + rotary)].view(4, -1)[3]
    assert torch.equal(row, latent[3] if rope is None else torch.cat([latent[3], rope[3]]))


def test_what_was_written_is_what_sparse_mla_reads() -> None:
    """From our writer into our attention: the same answer as from the values that the packed rows stand for."""
    latent, rope = torch.randn(20, 512, generator=new(0)).half(), torch.randn(20, 64, generator=new(1)).half()
    cache = torch.zeros(2, 16, 656, dtype=torch.uint8)
    write_latent_cache(latent, rope, cache, torch.arange(20) + 7, implementation="triton")
    q, indices = torch.randn(1, 8, 576, generator=new(2)).half(), torch.arange(7, 27, dtype=torch.int32)[None]
    out, _ = sparse_mla(q, cache, indices, 0.1, implementation="latent")
    plain = unpack(cache.view(-1, 656))[7:27]
    weights = torch.softmax(0.1 * q[0].double() @ plain.T, -1)
    torch.testing.assert_close(out[0].double(), weights @ plain[:, :512], rtol=0, atol=4e-3)


WRONG = {
    "the index cache is [2, 4, 16]": {"cache": torch.zeros(2, 4, 16, dtype=torch.uint8)},
    "blocks must be contiguous": {"cache": torch.zeros(2, 8, 20, dtype=torch.uint8)[:, ::2]},
    "aligned to 4 bytes": {"cache": torch.as_strided(torch.zeros(400, dtype=torch.uint8), (2, 4, 20), (81, 20, 1))},
    "slot_mapping names 4 slots": {"slot_mapping": torch.arange(4)},
    "slot_mapping is torch.float32": {"slot_mapping": torch.zeros(3)},
    "scale_format is one of": {"scale_format": "int8"},
    "k is torch.int32": {"k": torch.zeros(3, 16, dtype=torch.int32)},
}


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_refused_in_one_sentence(message: str) -> None:
    given = {
        "k": torch.zeros(3, 16),
        "cache": torch.zeros(2, 4, 20, dtype=torch.uint8),
        "slot_mapping": torch.arange(3),
    }
    with pytest.raises((ValueError, TypeError), match=message.replace("[", r"\[")):
        write_index_cache(**{**given, **WRONG[message]})


WRONG_LATENTS = {
    "128 times a power of two": {"latent": torch.zeros(3, 384)},
    "packed rows hold 512 latent and 64": {"rope": None},
    "rows must be 656 wide": {"cache": torch.zeros(9, 576, dtype=torch.uint8)},
    "multiple of four bytes": {"cache": torch.as_strided(torch.zeros(2000, dtype=torch.uint8), (2, 656), (658, 1))},
    "rope is [3, 64], not": {"latent": torch.zeros(4, 512), "slot_mapping": torch.arange(4)},
    "slot_mapping names": {"slot_mapping": torch.arange(9)},
}


@pytest.mark.parametrize("message", WRONG_LATENTS)
def test_latents_that_do_not_fit_are_refused_in_one_sentence(message: str) -> None:
    given = {"latent": torch.zeros(3, 512), "rope": torch.zeros(3, 64), "cache": torch.zeros(9, 656, dtype=torch.uint8)}
    given |= {"slot_mapping": torch.arange(3), **WRONG_LATENTS[message]}
    with pytest.raises((ValueError, TypeError), match=message.replace("[", r"\[")):
        write_latent_cache(**given)
