"""bfloat16 in Triton's interpreter: wrong as it comes, right once patched, and the patch goes when it is not needed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from attnfit.kernels import interpreted_bf16, interpreter

BF16 = torch.bfloat16


@triton.jit
def _dot(a, b, out, N: tl.constexpr):
    row, column = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(out + row * N + column, tl.dot(tl.load(a + row * N + column), tl.load(b + row * N + column).T))


@triton.jit
def _cast(a, b, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(a + at).to(out.dtype.element_ty))


@triton.jit
def _add(a, b, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(a + at) + tl.load(b + at))


@triton.jit
def _multiply(a, b, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(a + at) * tl.load(b + at))


@triton.jit
def _divide(a, b, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(a + at) / tl.load(b + at))


@triton.jit
def _negate(a, b, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, -tl.load(a + at))


@triton.jit
def _fma(a, b, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.fma(tl.load(a + at), tl.load(b + at), tl.load(b + at)))


@triton.jit
def _compare(a, b, out, N: tl.constexpr):
    at = tl.arange(0, N)
    x, y = tl.load(a + at), tl.load(b + at)
    tl.store(out + at, ((x < y) & (x != x.abs())).to(tl.int32))


@triton.jit
def _sum(a, b, out, N: tl.constexpr):
    tl.store(out + tl.arange(0, 1), tl.sum(tl.load(a + tl.arange(0, N)), keep_dims=True))


@triton.jit
def _running_sum(a, b, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.associative_scan(tl.load(a + at), 0, _plus))


@triton.jit
def _plus(x, y):
    return x + y


@triton.jit
def _where(a, b, out, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(a + at)
    tl.store(out + at, tl.where(at % 2 == 0, tl.abs(x), tl.load(b + at)))


@triton.jit
def _maximum(a, b, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.maximum(tl.load(a + at), tl.load(b + at)) + tl.max(tl.load(a + at)))


@triton.jit
def _constant(a, b, out, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), tl.full([N], 0.7, tl.bfloat16))


def run(kernel, shape=(64,), out_dtype=BF16, in_dtype=BF16):
    a, b = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(in_dtype) for seed in (1, 2))
    out = torch.zeros(1 if kernel is _sum else shape, dtype=out_dtype)
    kernel[(1,)](a, b, out, shape[0])
    return a, b, out


FAULTS = {  # what is computed, the shape, dtypes out and in, and the right answer in float64
    "dot": (_dot, (32, 32), torch.float32, BF16, lambda a, b: a @ b.T),
    "int to bf16": (_cast, (64,), BF16, torch.int32, lambda a, b: a),
    "fp64 to bf16": (_cast, (64,), BF16, torch.float64, lambda a, b: a),
    "fp32 to bf16 truncates": (_cast, (64,), BF16, torch.float32, lambda a, b: a),
    "addition": (_add, (64,), BF16, BF16, lambda a, b: a + b),
    "multiplication": (_multiply, (64,), BF16, BF16, lambda a, b: a * b),
    "negation": (_negate, (64,), BF16, BF16, lambda a, b: -a),
    "fma": (_fma, (64,), BF16, BF16, lambda a, b: a * b + b),
    "comparisons": (_compare, (64,), torch.int32, BF16, lambda a, b: (a < b) & (a < 0)),
    "sum": (_sum, (64,), BF16, BF16, lambda a, b: a.sum()),
    "scan": (_running_sum, (64,), BF16, BF16, lambda a, b: a.cumsum(0)),
}
RIGHT_ALREADY = {  # only bits move, or Triton goes to fp32 on its own
    "bf16 to fp32": (_cast, (64,), torch.float32, BF16, lambda a, b: a),
    "bf16 to fp64": (_cast, (64,), torch.float64, BF16, lambda a, b: a),
    "bf16 to int": (_cast, (64,), torch.int32, BF16, lambda a, b: a.trunc()),
    "where and abs": (_where, (64,), BF16, BF16, lambda a, b: torch.where(torch.arange(64) % 2 == 0, a.abs(), b)),
}
RIGHT_WITH_A_RIGHT_CAST = {
    "division": (_divide, (64,), BF16, BF16, lambda a, b: a / b),
    "maximum": (_maximum, (64,), BF16, BF16, lambda a, b: torch.maximum(a, b) + a.max()),
    "bf16 to fp16": (_cast, (64,), torch.float16, BF16, lambda a, b: a),
    "fp16 to bf16": (_cast, (64,), BF16, torch.float16, lambda a, b: a),
    "constant": (_constant, (64,), BF16, BF16, lambda a, b: torch.full((64,), 0.7)),
}
NEAREST = 2**-8  # half a unit in the last place of bfloat16's 8 significant bits, relative
STEPS = 64 * NEAREST  # 64 roundings, one a step, bound a running sum; nonsense is off by orders of magnitude


def wrong(case) -> bool:
    kernel, shape, out_dtype, in_dtype, right = case
    a, b, out = run(kernel, shape, out_dtype, in_dtype)
    expected = right(a.double(), b.double()).double()
    per_element = NEAREST if out_dtype is BF16 else 2**-10 if out_dtype is torch.float16 else 1e-5
    if kernel is _maximum:
        per_element *= 3  # two values rounded, then their sum
    slack = STEPS * expected.abs().max() if kernel is _running_sum else 0
    return bool(((out.double() - expected).abs() > per_element * expected.abs() + slack + 1e-30).any())


@pytest.mark.parametrize("what", [*FAULTS, *RIGHT_ALREADY, *RIGHT_WITH_A_RIGHT_CAST])
def test_patched_bfloat16_is_right(what: str) -> None:
    assert not wrong({**FAULTS, **RIGHT_ALREADY, **RIGHT_WITH_A_RIGHT_CAST}[what])


@pytest.mark.parametrize("what", FAULTS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_triton_s_own_interpreter_is_wrong_there_and_the_patch_still_needed(what: str) -> None:
    with interpreter.unpatched():
        assert wrong(FAULTS[what]), (
            f"the patch of {what!r} is no longer needed for Triton {triton.__version__}: remove it from "
            "attnfit/kernels/interpreted_bf16.py (once every Triton we support computes it rightly)"
        )
    assert interpreter.patched()


@pytest.mark.parametrize("what", RIGHT_ALREADY)
def test_what_only_moves_bits_needs_no_patch(what: str) -> None:
    with interpreter.unpatched():
        assert not wrong(RIGHT_ALREADY[what])


def test_every_bfloat16_widens_as_torch_widens_it() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    torch_s = torch.from_numpy(bits.view(np.int16)).view(BF16).float().numpy()
    np.testing.assert_array_equal(interpreted_bf16.widen(bits), torch_s)


def test_fp32_narrows_to_the_nearest_bfloat16_ties_to_even_as_torch_does() -> None:
    random = np.random.default_rng(0).integers(0, 2**32, 2_000_000, dtype=np.uint32)
    halves = (np.arange(65536, dtype=np.uint32) << 16) | 0x8000  # every tie, and one step to either side of it
    bits = np.concatenate([random, halves - 1, halves, halves + 1])
    values = bits.view(np.float32)
    ours = torch.from_numpy(interpreted_bf16.narrow(values).view(np.int16)).view(BF16)
    torch.testing.assert_close(ours, torch.from_numpy(values).to(BF16), rtol=0, atol=0, equal_nan=True)


def test_infinity_nan_and_overflow_survive_the_way_through_a_kernel() -> None:
    values = torch.tensor([math.inf, -math.inf, math.nan, 3.4e38, -0.0, 1e-40, 9.2e-41, 0.0])
    out = torch.zeros(8, dtype=BF16)
    _cast[(1,)](values, values, out, 8)
    torch.testing.assert_close(out, values.to(BF16), rtol=0, atol=0, equal_nan=True)
    assert math.copysign(1, out[4].item()) == -1


def test_bfloat16_in_an_unpatched_interpreter_is_refused_with_what_to_do() -> None:
    interpreter.require_bf16(BF16)
    with interpreter.unpatched():
        interpreter.require_bf16(torch.float16)
        with pytest.raises(RuntimeError, match=r"interpreter\.patch\(\) first, or use float16"):
            interpreter.require_bf16(BF16)
