"""Block sizes, warps and stages: one static table, no tuning at run time.

Chosen without a GPU, from what the compiler says (Triton 3.8 and 3.9, `attnfit kernels fit`): the most heads to a
program that leaves shared memory and registers without spills, since heads of one program share a load of the row. Not
measured for speed.
"""

from __future__ import annotations

from typing import NamedTuple


class Config(NamedTuple):
    """One way to launch an attention kernel."""

    block_h: int  # heads per program; the last block is padded
    block_n: int  # keys per step
    num_warps: int
    num_stages: int


FEW = Config(16, 32, 8, 3)
MORE = Config(32, 32, 8, 3)
PACKED_MORE = Config(32, 16, 8, 1)  # decoding takes registers: with more keys, or a second stage, some spill
VIRTUAL_BLOCKS = FEW  # key and value tiles both: more heads would exceed 101,376 bytes
MANY = Config(64, 16, 8, 3)  # 32 keys beside 64 heads exceed 101,376 bytes, and spill on 8.0
HOPPER_MORE = Config(32, 32, 8, 2)  # a third stage spills 8 bytes
HOPPER = Config(64, 16, 8, 2)  # HGMMA; with more keys or stages, Triton 3.9 spills

# Compute capability -> native rows: up to 32 heads, and more. With 64 heads, tcgen05 (10.0, 10.3, 11.0) would keep the
# accumulators in 576 columns of tensor memory, of which there are 512.
_NATIVE: dict[tuple[int, int], tuple[Config, Config]] = {
    (8, 0): (MORE, MANY),
    (8, 6): (MORE, MANY),
    (8, 7): (MORE, MANY),
    (8, 9): (MORE, MANY),
    (9, 0): (HOPPER_MORE, HOPPER),
    (10, 0): (MORE, MORE),
    (10, 3): (MORE, MORE),
    (11, 0): (MORE, MORE),
    (12, 0): (MORE, MANY),
    (12, 1): (MORE, MANY),
}
CAPABILITIES = tuple(_NATIVE)


def config_of(capability: tuple[int, int], heads: int, packed: bool) -> Config:
    """How the latent kernel is launched for that many query heads. Raises ValueError for an unknown capability."""
    if capability not in _NATIVE:
        known = ", ".join(f"{major}.{minor}" for major, minor in CAPABILITIES)
        raise ValueError(
            f"no sparse MLA kernel of ours for compute capability {capability[0]}.{capability[1]}; there is for {known}"
        )
    if heads <= 16:
        return FEW
    if packed:
        return PACKED_MORE
    return _NATIVE[capability][heads > 32]
