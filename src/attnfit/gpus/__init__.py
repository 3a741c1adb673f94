"""What attnfit knows about GPUs: one data file (`catalog.json`) and the functions that look things up in it."""

from attnfit.gpus.catalog import (
    GpuEntry,
    Match,
    by_capability,
    by_device_name,
    capabilities,
    catalogue,
    find,
    known,
    lookup,
    matching,
    sources,
)

__all__ = [
    "GpuEntry",
    "Match",
    "by_capability",
    "by_device_name",
    "capabilities",
    "catalogue",
    "find",
    "known",
    "lookup",
    "matching",
    "sources",
]
