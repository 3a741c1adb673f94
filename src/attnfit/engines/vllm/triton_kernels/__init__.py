"""The release's own Triton attention kernels, launched with CPU tensors of a model's shapes while somebody records.

Loaded only in the child that compiles kernels, with real torch and Triton; never on the way of `check`. Nothing of the
engine is replicated here: tiles, warps, stages, strides and split counts are what the release's own code hands to its
kernels, called as its backends call it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attnfit.kernels.fit.loading import adapted
from attnfit.kernels.fit.records import Case

from . import gdn, mla, unified
from .release import Release

KERNELS = {"mla-decode": mla.cases, "unified-attention": unified.cases, "gdn": gdn.cases}


def cases(ask: Mapping[str, Any], capability: str) -> Iterator[Case]:
    """The launches of one kernel (`ask["kernel"]`) for the shapes of `ask`. Raises Unknown naming what is missing."""
    whole = {**ask, "capability": [int(n) for n in capability.split(".")]}
    return adapted(lambda: KERNELS[ask["kernel"]](Release(whole)))
