"""Bytes that are known, or known to lie between two ends."""

from __future__ import annotations

import msgspec


class Span(msgspec.Struct, frozen=True, order=False):
    """From `low` to `high` bytes, both included; equal where the figure is exact."""

    low: int
    high: int

    @classmethod
    def exact(cls, n: int) -> Span:
        return cls(n, n)

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.high + other.high)

    def minus(self, n: int) -> Span:
        """Less `n` bytes, never below nothing."""
        return Span(max(0, self.low - n), max(0, self.high - n))

    @property
    def known(self) -> bool:
        return self.low == self.high
