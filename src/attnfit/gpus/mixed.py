"""Whether a server surely sees GPUs that differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnfit.core import Capability


def mixed(kinds: Sequence[Capability], variables: Mapping[str, str]) -> bool:
    """kinds: of every GPU, in PCI order. variables: those that choose among them."""
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return len(set(kinds)) > 1
    named = [word.strip() for word in visible.split(",") if word.strip()]
    if variables.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" and all(word.isdigit() for word in named):
        return len({kinds[int(word)] for word in named if int(word) < len(kinds)}) > 1
    return len(named) > max((kinds.count(kind) for kind in kinds), default=0)
