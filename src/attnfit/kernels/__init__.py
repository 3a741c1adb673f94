"""Sparse MLA where no engine brings it: Triton kernels for float16 and bfloat16, each beside its readable reference.

Needs the extra `attnfit[kernels]` (torch, Triton). Nothing else in attnfit imports this room: what the rest of the
house wants to know of a kernel it asks through a child process (`python -m attnfit.kernels.fit`).
CPU tensors go through the float64 reference, so that everything here can be used, slowly, on any machine.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "sparse_mla": "mla",
    "sparse_mla_workspace": "mla",
    "index_logits": "indexer",
    "index_logits_paged": "indexer",
    "index_topk": "indexer",
    "write_index_cache": "indexer",
    "write_latent_cache": "mla.cache_writer",
}

__all__ = [
    "index_logits",
    "index_logits_paged",
    "index_topk",
    "sparse_mla",
    "sparse_mla_workspace",
    "write_index_cache",
    "write_latent_cache",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
