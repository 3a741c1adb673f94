"""Figures that a remedy needs and no log prints: named functions from those captured to more of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Figures = Mapping[str, str]


def divisor(found: Figures) -> Figures:
    """`fits`: the largest power of two up to `size` that divides `heads`.

    KV heads, blocks of the weights and a vision tower must be divided too. No line says them, and most are powers of
    two, or multiples of one.
    """
    heads, size = int(found.get("heads", 0)), int(found.get("size", 0))
    if not 0 < size < 1 << 16 or heads <= 0:
        return {}
    return {"fits": str(max(1 << n for n in range(size.bit_length()) if heads % (1 << n) == 0))}


def shared_memory(found: Figures) -> Figures:
    """`over`: by how many bytes a kernel is above the limit."""
    needed, limit = int(found.get("needed", 0)), int(found.get("limit", 0))
    return {"over": str(needed - limit)} if needed > limit > 0 else {}


def workspace(found: Figures) -> Figures:
    """`larger`: the next power of two above twice what one allocation asked for: others share the buffer."""
    needed = int(found.get("needed", 0))
    return {"larger": str(1 << (2 * needed - 1).bit_length())} if 0 < needed < 1 << 40 else {}


FUNCTIONS: Mapping[str, Callable[[Figures], Figures]] = {
    "divisor": divisor,
    "shared_memory": shared_memory,
    "workspace": workspace,
}
