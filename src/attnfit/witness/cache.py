"""Where fetched and unpacked source files are kept: all or nothing, safe against two processes at once."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from attnfit.errors import InputError
from attnfit.witness.env import default_env

if TYPE_CHECKING:
    import zipfile

DISTRIBUTION = "vllm"
Say = Callable[[str], None]
KEPT = (".py", "METADATA", "entry_points.txt")
TELLING = ("vllm/vllm_flash_attn/cute/", "vllm/third_party/deep_gemm/")
MOST_MEMBERS, MOST_BYTES = 60_000, 600 << 20  # of a wheel's source files; 0.33.0 has 3,231 of 50 MB


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Source files of one release, and what they say about themselves."""

    root: str  # directory holding vllm/
    version: str
    env: dict[str, bool]  # environment facts: what pip brings, or what is installed
    origin: str  # for people: "vllm-0.33.0-...whl", "installed in /opt/venv"
    sha256: str | None = None  # of the wheel, where it was read whole


def to_stderr(text: str) -> None:
    """Announce what is about to be fetched."""
    print(text, file=sys.stderr)


def cache_dir() -> Path:
    """Where fetched sources are kept: ATTNFIT_CACHE, else the user's cache directory."""
    given = os.environ.get("ATTNFIT_CACHE")
    if given:
        return Path(given)
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/attnfit"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnfit"


def members_of(archive: zipfile.ZipFile, name: str) -> list[zipfile.ZipInfo]:
    """The source files in a wheel. Raises InputError if there are implausibly many."""
    members = [m for m in archive.infolist() if m.filename.endswith(KEPT) and not m.is_dir()]
    if len(members) > MOST_MEMBERS or sum(m.file_size for m in members) > MOST_BYTES:
        raise InputError(f"{name} holds more source than any release of {DISTRIBUTION}; is it one?")
    return members


class _Kept(msgspec.Struct):
    """attnfit.json beside the kept files: what cannot be read off them. Facts are worked out anew each time."""

    origin: str
    names: list[str]  # files of the wheel that facts depend on
    sha256: str | None = None


def store(
    name: str, names: Iterable[str], origin: str, sha256: str | None, contents: Iterable[tuple[str, bytes]]
) -> Source:
    """Write a wheel's source files (member name, bytes) into the cache under `name`. Raises InputError."""
    import shutil
    import tempfile

    home = cache_dir() / "sources"
    try:
        home.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".new-", dir=home))
    except OSError as error:
        raise InputError(f"the cache {home} cannot be written ({error}); set ATTNFIT_CACHE to one that can") from error
    try:
        for member, data in contents:
            parts = PurePosixPath(member).parts
            if member.startswith("/") or ".." in parts or "\\" in member or ":" in member:
                raise InputError(f"{origin} holds a member outside itself ({member!r}); it was not used")
            target = work.joinpath(*parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        wheel_metadata(work)
        if not (work / "vllm" / "platforms").is_dir():
            raise InputError(f"{origin} holds no vllm/platforms; is it a wheel of {DISTRIBUTION}?")
        record = _Kept(origin, [n for n in names if n.endswith(".so") or n.startswith(TELLING)], sha256)
        (work / "attnfit.json").write_bytes(msgspec.json.encode(record))
        try:
            os.rename(work, home / name)
        except OSError as error:  # another process was faster, with the same files
            if kept(name) is None:
                raise InputError(f"the cache {home / name} cannot be written ({error}); remove it") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    source = kept(name)
    assert source is not None
    return source


def kept(name: str) -> Source | None:
    """The source kept under `name`, or None."""
    root = cache_dir() / "sources" / name
    try:
        record = msgspec.json.decode((root / "attnfit.json").read_bytes(), type=_Kept)
        metadata = wheel_metadata(root)
    except (OSError, msgspec.DecodeError, InputError):
        return None
    version = metadata_version(metadata)
    env = default_env(version, metadata, record.names)
    return Source(root=str(root), version=version, env=env, origin=record.origin, sha256=record.sha256)


def wheel_metadata(root: Path) -> str:
    for file in root.glob(f"{DISTRIBUTION}-*.dist-info/METADATA"):
        return file.read_text("utf-8", "replace")
    raise InputError(f"no {DISTRIBUTION} METADATA in the wheel; is it a wheel of {DISTRIBUTION}?")


def metadata_version(metadata: str) -> str:
    match = re.search(r"^Version: *(\S+)", metadata, re.MULTILINE)
    return match[1] if match else "unknown"
