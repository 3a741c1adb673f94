"""Which CUDA compiles for which GPU (release notes of the CUDA toolkit). Figures, no I/O."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from packaging.version import InvalidVersion, Version

from attnfit.core import Capability

#: compute capability -> the first CUDA whose nvcc compiles for it
FIRST: Sequence[tuple[Capability, str]] = (
    (Capability(8, 9), "11.8"), (Capability(9, 0), "11.8"), (Capability(10, 0), "12.8"), (Capability(10, 3), "12.9"),
    (Capability(11, 0), "13.0"), (Capability(12, 0), "12.8"), (Capability(12, 1), "12.9"),
)  # fmt: skip
OLDEST_OF_13 = Capability(7, 5)  # CUDA 13 compiles for none that is older


def too_old(cuda: str, capabilities: Collection[Capability]) -> str:
    """ "12.1 needs 12.9" for each that this CUDA ("12.8") came before; "" for none, or where it is not known."""
    late = [f"{c} needs {first}" for c, first in FIRST if c in capabilities and _before(cuda, first)]
    return ", ".join(late)


def left_out(cuda: str, capabilities: Collection[Capability]) -> bool:
    """Whether one of them is older than what this CUDA still compiles for."""
    return cuda.partition(".")[0] == "13" and any(c < OLDEST_OF_13 for c in capabilities)


def _before(have: str, wanted: str) -> bool:
    try:
        return Version(have) < Version(wanted)
    except InvalidVersion:
        return False
