"""How vLLM groups layers that share a block table, and what a block then costs.

Source (0.33.0): vllm/v1/core/kv_cache_planning.py. Layers are counted, not named: which of several equal layers lies in
which group changes no figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import NamedTuple

import msgspec

from attnfit.engines.vllm.fit.packing import packed_groups
from attnfit.engines.vllm.fit.spec import FULL, LATENT, SLIDING, Limits, Spec, ceil_div, round_up, uniform
from attnfit.engines.vllm.launch.state import Unknown

Part = tuple[Spec, int]  # a kind of layer, and how many of it
Group = tuple[Part, ...]


class Pool(NamedTuple):
    """The groups of one rank and the bytes of one block of the pool they share."""

    groups: tuple[Group, ...]
    bytes_per_block: int

    def blocks(self, length: int, limits: Limits) -> int:
        """Blocks of one request of `length` tokens: each group draws its own from the pool."""
        return sum(max(spec.blocks(length, limits) for spec, _ in group) for group in self.groups)


def pool(specs: Sequence[Spec], layout: str, *, hybrid: bool, padded_below: float = 1.5) -> Pool:
    """Group the layers. `hybrid` False: the hybrid KV cache manager is off. Raises Unknown where the engine raises.

    padded_below: see `older.Rules`.
    """
    kept = [spec for spec in specs if spec.kind is not None]
    if not hybrid:
        kept = _promoted(kept)
    if not kept:
        return Pool((), 0)
    groups = _groups(kept, layout, padded_below)
    return Pool(groups, _bytes_per_block(groups, layout))


def _groups(specs: list[Spec], layout: str, padded_below: float) -> tuple[Group, ...]:
    if uniform(specs):
        return (tuple((spec, spec.count) for spec in specs),)
    if layout.startswith("B") and len({spec.page_bytes for spec in specs}) > 1:
        return packed_groups(specs)
    try:
        equal = _equal_pages(specs)
    except Unknown:
        full = _promoted(specs) if any(spec.kind == "SlidingWindowSpec" for spec in specs) else specs
        if not any(spec.kind == "MLAAttentionSpec" for spec in specs) or not uniform(full):
            raise
        return (tuple((spec, spec.count) for spec in full),)
    return _repeated(equal, padded_below)


def _equal_pages(specs: list[Spec]) -> list[Spec]:
    """Smaller pages grow: by more tokens a block where they divide, else by padding (kv_cache_planning.py:346)."""
    most = max(spec.page_bytes for spec in specs)
    out = []
    for spec in specs:
        page = spec.page_bytes
        if page == most:
            grown = spec
        elif spec.kind != "MambaSpec" and most % page == 0:
            assert spec.block_size is not None
            grown = msgspec.structs.replace(spec, block_size=spec.block_size * (most // page))
        elif spec.kind == "MLAAttentionSpec":
            raise Unknown(f"how {spec.layer_class} pages of {page} bytes share blocks with pages of {most}")
        else:
            grown = msgspec.structs.replace(spec, padded=most)
        if grown.page_bytes != most:
            raise Unknown(f"how {spec.layer_class} pages of {page} bytes grow to {most}")
        out.append(grown)
    return out


def _repeated(specs: list[Spec], padded_below: float) -> tuple[Group, ...]:
    """Groups of equally many layers, the scarcest kind setting the number (kv_cache_planning.py:416)."""
    kinds: dict[Spec, int] = {}
    for spec in specs:
        same = spec.same_table()
        # full attention with and without a window may share a table
        near = next((k for k in kinds if k == same or _only_windows_differ(k, same)), same)
        kinds[near] = kinds.get(near, 0) + spec.count
    fewest, most = min(kinds.values()), max(kinds.values())
    size = most if most < fewest * padded_below else fewest
    groups: list[Group] = []
    for spec, count in kinds.items():
        number = ceil_div(count, size)
        groups += [((spec, len(range(i, count, number))),) for i in range(number)]
    return tuple(groups)


def _only_windows_differ(a: Spec, b: Spec) -> bool:
    if a.kind != "FullAttentionSpec" or b.kind != "FullAttentionSpec":
        return False
    bare = [msgspec.structs.replace(x, window=None, chunk=None) for x in (a, b)]
    return bare[0] == bare[1] and (a.window is None or b.window is None) and (a.chunk is None or b.chunk is None)


def _promoted(specs: list[Spec]) -> list[Spec]:
    """Local attention gets blocks for every token (kv_cache_planning.py:744)."""
    if not specs or uniform(specs) or not any(spec.kind in FULL for spec in specs):
        return specs
    sizes = {spec.block_size for spec in specs if spec.kind in FULL}
    block = sizes.pop() if len(sizes) == 1 else None
    out = []
    for spec in specs:
        if spec.kind not in SLIDING and spec.kind != "ChunkedLocalAttentionSpec":
            out.append(spec)
            continue
        kind = "MLAAttentionSpec" if spec.kind in LATENT else "FullAttentionSpec"
        out.append(msgspec.structs.replace(spec, kind=kind, block_size=block or spec.block_size))
    if not uniform(out):
        raise Unknown("a grouping of this model's layers with the hybrid KV cache manager off")
    return out


def _bytes_per_block(groups: Sequence[Group], layout: str) -> int:
    """The widest group sets what a block costs (kv_cache_planning.py:574)."""
    if not layout.startswith("B"):
        return max(sum(round_up(spec.page_bytes, spec.stride) * n for spec, n in group) for group in groups)
    widest = max(sum(spec.page_bytes * n for spec, n in group) for group in groups)
    return round_up(widest, lcm(*(spec.stride for group in groups for spec, _ in group)))
