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
from attnfit.witness.distribution import Distribution

if TYPE_CHECKING:
    import zipfile

Say = Callable[[str], None]
MOST_MEMBERS, MOST_BYTES = 60_000, 600 << 20  # of a release's source files; the largest known has 4,719 of 79 MB


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Source files of one release, and what they say about themselves."""

    root: str  # directory holding the engine's package
    version: str
    env: dict[str, bool]  # environment facts: what pip brings, or what is installed
    origin: str  # for people: "NAME-VERSION-...whl", "installed in /opt/venv"
    sha256: str | None = None  # of the wheel or sdist, where it was read whole


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


def members_of(distribution: Distribution, archive: zipfile.ZipFile, name: str) -> list[zipfile.ZipInfo]:
    """The source files in a wheel. Raises InputError if there are implausibly many."""
    members = [m for m in archive.infolist() if m.filename.endswith(distribution.kept) and not m.is_dir()]
    plausible(distribution, name, len(members), sum(m.file_size for m in members))
    return members


def plausible(distribution: Distribution, name: str, count: int, size: int) -> None:
    """Raises InputError if an archive holds implausibly many files or bytes of source."""
    if count > MOST_MEMBERS or size > MOST_BYTES:
        raise InputError(f"{name} holds more source than any release of {distribution.name}; is it one?")


class _Kept(msgspec.Struct):
    """attnfit.json beside the kept files: what cannot be read off them. Facts are worked out anew each time."""

    origin: str
    names: list[str]  # files of the wheel that facts depend on
    sha256: str | None = None
    whole: bool = True  # every file of the release is known: false for an sdist, which is yet to be built
    sizes: dict[str, int] = {}  # bytes of every kept file: a file that was cut off or lost shows


def store(
    distribution: Distribution,
    name: str,
    names: Iterable[str],
    origin: str,
    sha256: str | None,
    contents: Iterable[tuple[str, bytes]],
    *,
    whole: bool = True,
) -> Source:
    """Write a release's source files (member name, bytes) into the cache under `name`. Raises InputError."""
    import shutil
    import tempfile

    home = cache_dir() / "sources"
    try:
        home.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".new-", dir=home))
    except OSError as error:
        raise InputError(f"the cache {home} cannot be written ({error}); set ATTNFIT_CACHE to one that can") from error
    try:
        sizes: dict[str, int] = {}
        for member, data in contents:
            sizes[member] = len(data)
            parts = PurePosixPath(member).parts
            if member.startswith("/") or ".." in parts or "\\" in member or ":" in member:
                raise InputError(f"{origin} holds a member outside itself ({member!r}); it was not used")
            target = work.joinpath(*parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        _metadata(distribution, work)
        if not (work / distribution.holds).is_dir():
            raise InputError(f"{origin} holds no {distribution.holds}; is it a release of {distribution.name}?")
        telling = [n for n in names if n.endswith(".so") or n.startswith(distribution.telling)]
        record = _Kept(origin, telling, sha256, whole, sizes)
        (work / "attnfit.json").write_bytes(msgspec.json.encode(record))
        try:
            if os.path.lexists(home / name) and kept(distribution, name) is None:
                os.rename(home / name, damaged := Path(f"{work}-damaged"))  # and made anew
                _remove(damaged)
            os.rename(work, home / name)
        except OSError as error:  # another process was faster, with the same files
            if kept(distribution, name) is None:
                raise InputError(f"the cache {home / name} cannot be written ({error}); remove it") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    source = kept(distribution, name)
    assert source is not None
    return source


def _remove(path: Path) -> None:
    import shutil

    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def kept(distribution: Distribution, name: str) -> Source | None:
    """The source kept under `name`, or None."""
    root = cache_dir() / "sources" / name
    try:
        record = msgspec.json.decode((root / "attnfit.json").read_bytes(), type=_Kept)
        metadata = _metadata(distribution, root)
        if any(os.stat(f"{root}/{member}").st_size != size for member, size in record.sizes.items()):
            return None
    except (OSError, msgspec.DecodeError, InputError):
        return None
    version = metadata_version(metadata)
    env = distribution.env(version, metadata, record.names, record.whole)
    return Source(root=str(root), version=version, env=env, origin=record.origin, sha256=record.sha256)


def _metadata(distribution: Distribution, root: Path) -> str:
    for file in root.glob(f"{distribution.stem}-*.dist-info/METADATA"):
        return file.read_text("utf-8", "replace")
    raise InputError(f"no {distribution.name} METADATA in there; is it a wheel or an sdist of {distribution.name}?")


def metadata_version(metadata: str) -> str:
    """The version that METADATA or PKG-INFO states."""
    match = re.search(r"^Version: *(\S+)", metadata, re.MULTILINE)
    return match[1] if match else "unknown"
