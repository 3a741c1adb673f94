"""The fp32 scale under which a group of values becomes e4m3 codes: value = code * scale.

scale = max(largest magnitude, least) / 448, as it is ("fp32") or rounded up to a power of two ("ue8m0"). A magnitude
that is NaN does not count; an infinity makes the scale infinite.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

FORMATS = ("fp32", "ue8m0")
MOST = 448.0  # the largest e4m3 number


def is_power_of_two(scale_format: str) -> bool:
    """Whether scales are rounded up to powers of two. Raises ValueError for a format that is none."""
    if scale_format not in FORMATS:
        raise ValueError(f"scale_format is one of {', '.join(FORMATS)}, not {scale_format!r}")
    return scale_format == "ue8m0"


@triton.jit
def scale_for(values, LEAST: tl.constexpr, POWER_OF_TWO: tl.constexpr):
    """The scales of fp32 values along their last axis, correctly rounded. LEAST: magnitude that is assumed at least.

    The power of two is made on the bit pattern, which is exact: log2 in fp32 would be off by one here and there.
    """
    size = tl.where(values != values, 0.0, tl.abs(values))
    most = tl.maximum(tl.max(size, len(values.shape) - 1), LEAST)
    scale = tl.div_rn(most, tl.full(most.shape, 448.0, tl.float32))
    if POWER_OF_TWO:
        bits = scale.to(tl.int32, bitcast=True)
        return ((bits + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)
    else:
        return scale


def scale_reference(values: torch.Tensor, least: float, power_of_two: bool) -> torch.Tensor:
    """The same along the last dimension of a tensor, fp32, by torch's own arithmetic."""
    size = values.to(torch.float32).abs().nan_to_num(nan=0.0, posinf=float("inf"))
    scale = size.amax(-1).clamp_min(least) / MOST
    if not power_of_two:
        return scale
    mantissa, exponent = torch.frexp(scale)  # mantissa in [0.5, 1)
    rounded = torch.ldexp(torch.ones_like(scale), torch.where(mantissa == 0.5, exponent - 1, exponent))
    return torch.where(torch.isinf(scale), scale, rounded)
