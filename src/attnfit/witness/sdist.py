"""The source files in an sdist (.tar.gz), laid out as in a wheel. Nothing is unpacked here, links are not followed."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath

from attnfit.errors import InputError
from attnfit.witness.cache import metadata_version, plausible
from attnfit.witness.distribution import Distribution

MOST_UNPACKED = 4 << 30  # bytes of everything in it
# What reading a damaged archive may raise.
DAMAGED = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError)


def is_sdist(name: str) -> bool:
    return name.endswith((".tar.gz", ".tgz"))


def contents(distribution: Distribution, archive: tarfile.TarFile, name: str) -> Iterator[tuple[str, bytes]]:
    """(member name as a wheel has it, bytes) of the source files and the metadata.

    Raises InputError for what is no sdist of the distribution, or is not safe to keep.
    """
    members = _members(archive, name)
    top = _root(distribution, members, name)
    source = [m for m in members if m.name.startswith(f"{top}{distribution.package}/")]
    source = [m for m in source if m.name.endswith(distribution.kept) and not m.isdir()]
    plausible(distribution, name, len(source), sum(m.size for m in source))
    for member in source:
        yield member.name.removeprefix(top), _read(archive, member, name)
    home = members[0].name.split("/")[0]
    information = next((m for m in members if m.name == f"{home}/PKG-INFO"), None)
    if information is None:
        raise InputError(f"{name} holds no PKG-INFO; is it an sdist of {distribution.name}?")
    metadata = _read(archive, information, name)
    folder = f"{distribution.stem}-{metadata_version(metadata.decode('utf-8', 'replace'))}.dist-info"
    yield f"{folder}/METADATA", metadata
    for member in members:
        if member.name.endswith(f"{distribution.stem}.egg-info/entry_points.txt"):
            yield f"{folder}/entry_points.txt", _read(archive, member, name)
            return


def _members(archive: tarfile.TarFile, name: str) -> list[tarfile.TarInfo]:
    members, size = [], 0
    for member in archive:
        size += member.size
        if size > MOST_UNPACKED:
            raise InputError(f"{name} unpacks to more than {MOST_UNPACKED >> 30} GiB; is it an sdist?")
        member.name = member.name.removeprefix("./")
        if member.name.startswith("/") or ".." in PurePosixPath(member.name).parts:
            raise InputError(f"{name} holds a member outside itself ({member.name!r}); it was not used")
        members.append(member)
    if not members:
        raise InputError(f"{name} is empty; download it again")
    return members


def _root(distribution: Distribution, members: list[tarfile.TarInfo], name: str) -> str:
    """The directory in the archive that holds the package, with a trailing slash."""
    mark = f"/{distribution.holds}/"
    found = {m.name[: m.name.index(mark) + 1] for m in members if mark in m.name}
    if not found:
        raise InputError(f"{name} holds no {distribution.holds}; is it an sdist of {distribution.name}?")
    return min(found, key=lambda path: (path.count("/"), path))


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> bytes:
    """A member's bytes; a link in place of a file is refused: what it leads to may be anything."""
    stream = archive.extractfile(member) if member.isreg() else None
    if stream is None:
        raise InputError(f"{name} holds a link where a source file belongs ({member.name!r}); it was not used")
    return stream.read()
