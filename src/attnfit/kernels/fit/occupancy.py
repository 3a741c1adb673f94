"""How many blocks of a kernel one multiprocessor can hold at once: the arithmetic of NVIDIA's own calculator.

An upper bound from static figures, no measurement: it says how much latency could be hidden, not how fast a kernel is.
Source of the method: cuda_occupancy.h of the CUDA toolkit 13.0 (Triton's wheel brings one too); this agreed with it on
220,000 random blocks. Source of the limits: CUDA Programming Guide 13, "Compute Capabilities", tables "Device and
Streaming Multiprocessor (SM) Information" and "Memory Information". The whole of the carve-out is taken for shared
memory, as Triton's loader asks above 48 KiB.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

WARP = 32
REGISTERS = 65536  # 32-bit, each multiprocessor and most of one block, from 7.5 on
REGISTER_UNIT = 256  # allocated a warp at a time in steps of this many
PARTITIONS = 4  # each with a quarter of the registers
MOST_THREADS = 1024  # of one block
TENSOR_COLUMNS = 512
UNBOUND = 1 << 30  # by what a kernel does not use


@dataclass(frozen=True)
class Sm:
    """What one multiprocessor holds at most; shared memory in KiB."""

    blocks: int
    warps: int
    shared_kib: int


LIMITS = {
    "7.5": Sm(16, 32, 64),
    "8.0": Sm(32, 64, 164),
    "8.6": Sm(16, 48, 100),
    "8.7": Sm(16, 48, 164),
    "8.9": Sm(24, 48, 100),
    "9.0": Sm(32, 64, 228),
    "10.0": Sm(32, 64, 228),
    "10.3": Sm(32, 64, 228),
    "11.0": Sm(24, 48, 228),
    "12.0": Sm(24, 48, 100),
    "12.1": Sm(24, 48, 100),
}


@dataclass(frozen=True)
class Estimate:
    """`blocks` a multiprocessor holds; `warps` of the `most` it could; what stands in the way of one more block."""

    blocks: int
    warps: int
    most: int
    limited_by: tuple[str, ...]


def registers_of_a_warp(registers: int) -> int:
    """Registers set aside for one warp whose threads use `registers` each."""
    return -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT


def most_threads(registers: int) -> int:
    """Threads of the largest block whose registers a multiprocessor has; the hardware counts whole partitions."""
    if registers == 0:
        return MOST_THREADS
    warps = REGISTERS // registers_of_a_warp(registers) // PARTITIONS * PARTITIONS
    return min(MOST_THREADS, warps * WARP)


def estimate(capability: str, threads: int, registers: int, shared: int, columns: int = 0) -> Estimate | None:
    """None for a capability without a row in the table. `shared` in bytes, static and dynamic together; `columns` of
    tensor memory (tcgen05), of which a multiprocessor has 512 (PTX ISA, "Tensor Memory")."""
    sm = LIMITS.get(capability)
    if sm is None:
        return None
    modern = not capability.startswith("7.")
    step, reserved = (
        (128, 1024) if modern else (256, 0)
    )  # allocation step; what the driver keeps for itself, each block
    warps = -(-threads // WARP)
    each = -(-(shared + reserved) // step) * step
    held = {
        "warps": sm.warps // warps if threads <= MOST_THREADS else 0,
        "blocks": sm.blocks,
        "shared memory": sm.shared_kib * 1024 // each if each else UNBOUND,
        "registers": _by_registers(registers, warps) if registers else UNBOUND,
        "tensor memory": TENSOR_COLUMNS // columns if columns else UNBOUND,
    }
    blocks = min(held.values())
    return Estimate(blocks, blocks * warps, sm.warps, _standing_in_the_way(held, blocks))


def _standing_in_the_way(held: dict[str, int], blocks: int) -> tuple[str, ...]:
    return tuple(name for name, most in held.items() if most == blocks)


def _by_registers(registers: int, warps: int) -> int:
    each = registers_of_a_warp(registers)
    if each * (-(-warps // PARTITIONS) * PARTITIONS) > REGISTERS:
        return 0
    return REGISTERS // PARTITIONS // each * PARTITIONS // warps


def plain(found: Estimate | None) -> dict[str, Any] | None:
    """As JSON takes it."""
    return asdict(found) if found else None
