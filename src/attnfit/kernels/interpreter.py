"""Triton's interpreter, repaired for bfloat16: a patch that is applied openly, and that tests hold to its need.

With TRITON_INTERPRET=1 Triton runs kernels in numpy, which has no bfloat16. Triton 3.8 and 3.9 keep such values as
uint16 and compute with the raw bits: `tl.dot`, arithmetic, comparisons, negation, reductions and casts from fp64 and
integers answer nonsense, and fp32 -> bf16 truncates instead of rounding. Nothing warns. `patch()` puts that right; the
kernels here refuse bfloat16 in an interpreter without it (`require_bf16`).

Repaired: `tl.dot`; + - * / % and comparisons; negation and other unary operations; `tl.fma`; casts to bf16 (to the
nearest, ties to even; fp64 and integers go through fp32, so they round twice); reductions and scans (accumulated in
fp32, rounded once; a GPU may round at every step); bf16 constants (Triton 3.8 has none).
Right without it: casts from bf16; what only moves bits (loads, stores, `tl.where`, `trans`, `reshape`, `join`, `abs`);
and `tl.maximum`, `tl.minimum`, `tl.max`, which go through fp32 on their own.
Not covered: casts between bf16 and fp8, `fp_downcast_rounding="rtz"`, atomics on bf16, NaN padding of tensor
descriptors, `tl.dot_scaled`. Our kernels use none of them.
What the interpreter cannot show at all, in any dtype: shared memory, registers, races, tensor-core rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import triton


def interpreting() -> bool:
    """Whether kernels that are decorated from now on run in the interpreter."""
    return bool(triton.knobs.runtime.interpret)


def patched() -> bool:
    """Whether the interpreter of this process computes bfloat16 rightly."""
    from attnfit.kernels import interpreted_bf16  # reaches into Triton, which must not break who never interprets

    return interpreted_bf16.applied()


def require_bf16(dtype: torch.dtype) -> None:
    """Refuse what an unpatched interpreter would silently get wrong. Raises RuntimeError."""
    if dtype is torch.bfloat16 and interpreting() and not patched():
        raise RuntimeError(
            f"Triton {triton.__version__}'s interpreter computes bfloat16 wrongly: call "
            "attnfit.kernels.interpreter.patch() first, or use float16"
        )


def patch() -> None:
    """Repair bfloat16 in this process's interpreter. Changes Triton's own classes; harmless outside the interpreter."""
    from attnfit.kernels import interpreted_bf16

    interpreted_bf16.apply()


@contextmanager
def unpatched() -> Iterator[None]:
    """Triton's interpreter as it came, for the tests that show what is wrong with it."""
    from attnfit.kernels import interpreted_bf16

    was = patched()
    interpreted_bf16.remove()
    try:
        yield
    finally:
        if was:
            patch()
