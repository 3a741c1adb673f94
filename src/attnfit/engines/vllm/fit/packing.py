"""Groups of layers with unequal pages, packed side by side within one block (block-outermost layouts).

Source (0.33.0): vllm/v1/core/kv_cache_planning.py:914.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from attnfit.engines.vllm.fit.spec import SLIDING, Spec, ceil_div, uniform
from attnfit.engines.vllm.launch.state import Unknown


class _Bucket(NamedTuple):
    """Layers that one block table can serve, and how many there are of each page size."""

    specs: list[Spec]

    @property
    def pages(self) -> Counter[int]:
        counts: Counter[int] = Counter()
        for spec in self.specs:
            counts[spec.page_bytes] += spec.count
        return counts

    @property
    def layers(self) -> int:
        return sum(spec.count for spec in self.specs)

    @property
    def balanced(self) -> bool:
        return len(set(self.pages.values())) == 1

    @property
    def repeats(self) -> int:
        return max(self.pages.values())

    def widest(self, groups: int) -> int:
        """Page bytes of the largest of so many groups."""
        return sum(ceil_div(count, groups) * page for page, count in self.pages.items())


def packed_groups(specs: list[Spec]) -> tuple[tuple[tuple[Spec, int], ...], ...]:
    """One group for each bucket, large ones split so that all pack into about the same block."""
    buckets: list[_Bucket] = []
    for spec in specs:
        home = next((b for b in buckets if uniform([*b.specs, spec])), None)
        if home is None:
            buckets.append(_Bucket([spec]))
        else:
            home.specs.append(spec)
    least = max((b.repeats for b in buckets if b.balanced and len(b.pages) > 1), default=0)
    per_group = _least_padding([b.repeats for b in buckets if b.balanced], least) if least else None

    def groups_of(bucket: _Bucket) -> int:
        return ceil_div(bucket.repeats, per_group) if bucket.balanced and per_group else 1

    def is_state(bucket: _Bucket) -> bool:
        first = bucket.specs[0].kind
        return first in ("MambaSpec", "CircularBufferSpec") or (per_group is None and first in SLIDING)

    anchor = max(b.widest(b.layers if is_state(b) else groups_of(b)) for b in buckets)
    out: list[tuple[tuple[Spec, int], ...]] = []
    for bucket in buckets:
        number = groups_of(bucket)
        if anchor and is_state(bucket):
            number = max(number, ceil_div(bucket.layers, max(anchor // bucket.specs[0].page_bytes, 1)))
        if number > 1 and not bucket.balanced:
            raise Unknown("how layers of unequal numbers are split into groups")
        for i in range(number):
            out.append(tuple(_part(bucket, i, number)))
    return tuple(out)


def _part(bucket: _Bucket, i: int, number: int) -> list[tuple[Spec, int]]:
    """The i-th of `number` groups: every `number`-th repeat of the pattern, one layer of each page size."""
    if number == 1:
        return [(spec, spec.count) for spec in bucket.specs]
    parts = []
    for page, count in bucket.pages.items():
        spec = next(s for s in bucket.specs if s.page_bytes == page)
        parts.append((spec, len(range(i, count, number))))
    return parts


def _least_padding(values: list[int], least: int) -> int:
    """The chunk size that rounds all values up with the least padding; of equal ones the largest."""
    low, high = max(1, least), max(values)
    if low > high:
        return low
    return min(range(low, high + 1), key=lambda d: (sum(-value % d for value in values), -d))
