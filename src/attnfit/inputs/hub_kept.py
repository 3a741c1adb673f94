"""What attnfit remembers of a hub repository so that a second run needs no hub: its list of files, its tensors.

huggingface_hub's cache has no place for either. Both belong to a commit and never change. Kept beside the other
fetched things (ATTNFIT_CACHE, else the user's cache directory); a cache that cannot be written is no error.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path

import msgspec

from attnfit.inputs.hub_ref import HubRef
from attnfit.inputs.safetensors import Checkpoint
from attnfit.witness.cache import cache_dir

_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_MOST = 256 << 20  # bytes of one kept file


class Listing(msgspec.Struct, frozen=True):
    """The files of a repository at a commit, and the bytes of each where the hub says."""

    commit: str
    files: dict[str, int | None] | None


def listing(ref: HubRef) -> Listing | None:
    """The list kept for this revision, or None."""
    found = _read(_folder(ref) / f"{_safe(ref.revision or 'main')}.files")
    try:
        return None if found is None else msgspec.msgpack.decode(found, type=Listing)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def keep(ref: HubRef, found: Listing) -> None:
    data = msgspec.msgpack.encode(found)
    for name in {ref.revision or "main", found.commit}:
        _write(_folder(ref) / f"{_safe(name)}.files", data)


def checkpoint(ref: HubRef, commit: str) -> Checkpoint | None:
    """The tensors kept for this commit, or None."""
    found = _read(_folder(ref) / f"{_safe(commit)}.tensors")
    try:
        return None if found is None else msgspec.msgpack.decode(found, type=Checkpoint)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def keep_checkpoint(ref: HubRef, commit: str, found: Checkpoint) -> None:
    if _COMMIT.fullmatch(commit):
        _write(_folder(ref) / f"{_safe(commit)}.tensors", msgspec.msgpack.encode(found))


def _folder(ref: HubRef) -> Path:
    return cache_dir() / "hub" / ref.repo.replace("/", "--")


def _safe(name: str) -> str:
    """A file name that no other revision has."""
    from urllib.parse import quote

    return quote(name, safe="")[:200]


def _read(path: Path) -> bytes | None:
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST + 1)
    except OSError:
        return None
    return data if len(data) <= _MOST else None


def _write(path: Path, data: bytes) -> None:
    """All or nothing; two processes at once write the same."""
    if len(data) > _MOST:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(name, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(name)
