"""float8 e4m3 (the "fn" kind: no infinity, 0x7F and 0xFF are NaN) decoded from bytes.

Triton's own fp8e4nv type exists from compute capability 8.9 only; integer arithmetic on the byte compiles everywhere.
Layout of a byte: sign (1), exponent (4, bias 7), mantissa (3). Source: OCP 8-bit Floating Point
Specification 1.0, E4M3.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def decode_e4m3(code):
    """uint8 codes -> their values in fp16, exactly, for all 254 codes that are numbers; the two NaN codes give +-480.

    Exponent and mantissa, put where fp16 has them, are the value times 2^-8 (its exponent bias is 8 more, and its
    subnormals reach further down than e4m3's); one exact multiplication gives that back.
    """
    wide = code.to(tl.int16)
    half = (((wide & 0x7F) << 7) | ((wide & 0x80) << 8)).to(tl.float16, bitcast=True)
    return half * tl.full([1], 256.0, tl.float16)


def decode_e4m3_reference(codes: torch.Tensor) -> torch.Tensor:
    """uint8 codes -> float64, by torch's own float8 type."""
    return codes.view(torch.float8_e4m3fn).to(torch.float64)


@triton.jit
def encode_e4m3(value):
    """fp32 -> uint8 codes: to the nearest, ties to even; beyond +-448, infinity included, the largest code; NaN stays.

    Normal numbers are rounded on the bit pattern: three of the 23 bits of mantissa stay. Below 2^-6 all e4m3 numbers
    are multiples of 2^-9, which is what fp32 can resolve from 2^14 on: adding 2^14 rounds to them.
    """
    bits = value.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)  # the exponent's bias goes from 127 to 7
    small = (tl.abs(value) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000  # the bits of 2^14
    code = tl.minimum(tl.where(size < 0x3C800000, small, normal), 0x7E)  # 2^-6; 448
    code = tl.where(size > 0x7F800000, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


def encode_e4m3_reference(values: torch.Tensor) -> torch.Tensor:
    """Values of any float dtype -> uint8 codes, by torch's own float8 type, which does not saturate on its own."""
    return values.to(torch.float32).clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)
