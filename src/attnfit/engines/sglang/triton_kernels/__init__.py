"""The release's own Triton kernels of attention, launched with CPU tensors of a model's shapes while somebody
records. Loaded only in the child that compiles kernels, with real torch and Triton; never on the way of `check`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attnfit.kernels.fit.loading import adapted
from attnfit.kernels.fit.records import Case

from . import attention, gdn
from .release import Release

KERNELS = {"attention": attention.cases, "gdn": gdn.cases}


def cases(ask: Mapping[str, Any], capability: str) -> Iterator[Case]:
    """The launches of one kernel (`ask["kernel"]`) for the shapes of `ask`. Raises Unknown naming what is missing."""
    whole = {**ask, "capability": [int(n) for n in capability.split(".")]}
    return adapted(lambda: KERNELS[ask["kernel"]](Release(whole)))
