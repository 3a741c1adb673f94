"""The release of the vLLM that is running, and those of its classes that ours derive from."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from attnfit.engines.vllm.plugin import serves

# Where sparse implementations derive from another class than dense ones: one for both since 0.28.0 (backend.py:860).
_SPARSE_BASE = {"0.16.0": "SparseMLAAttentionImpl", "0.23.0": "SparseMLAAttentionImpl"}


class UnknownReleaseError(Exception):
    """vLLM is of a release, or of a form, that this was not written for; the text is one sentence."""


def running(*, on_cpu: bool = False) -> str:
    """The release without its build: "0.32.0" of "0.32.0+cpu". Raises UnknownReleaseError for one not in serves.py."""
    from vllm import __version__

    release = str(__version__).partition("+")[0]
    known = serves.CPU_RELEASES if on_cpu else serves.RELEASES
    if release not in known:
        raise UnknownReleaseError(f"it knows vLLM {', '.join(known)}, and this is {release}")
    return release


def base(name: str) -> Any:
    """A class of v1/attention/backend.py by its name; "MLAImpl" for that of sparse implementations.

    Raises UnknownReleaseError where it is not where it was.
    """
    release = running()
    if name == "MLAImpl":
        name = _SPARSE_BASE.get(release, "MLAAttentionImpl")
    try:
        return getattr(import_module("vllm.v1.attention.backend"), name)
    except (ImportError, AttributeError) as error:
        raise UnknownReleaseError(f"this vLLM {release} is not the one it knows: {error}") from error
