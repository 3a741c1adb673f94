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
    """uint8 codes -> their values in fp32, exactly, for all 254 codes that are numbers; the two NaN codes give +-480.

    The seven bits of exponent and mantissa, put where fp32 has them, are the value times 2^-120: fp32 reads a zero
    exponent as subnormal just as e4m3 does, so one exact multiplication by 2^120 serves both kinds.
    """
    wide = code.to(tl.int32)
    magnitude = ((wide & 0x7F) << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2^120
    return tl.where(wide >= 128, -magnitude, magnitude)


def decode_e4m3_reference(codes: torch.Tensor) -> torch.Tensor:
    """uint8 codes -> float64, by torch's own float8 type."""
    return codes.view(torch.float8_e4m3fn).to(torch.float64)
