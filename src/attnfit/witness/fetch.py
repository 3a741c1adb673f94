"""Published releases: only the source files, from the user's own package index.

A large wheel is read by HTTP ranges; a small one, or an sdist, comes whole and its sha256 is checked.
"""

from __future__ import annotations

import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable
from typing import IO

from attnfit.errors import UnknownAnswer, did_you_mean
from attnfit.witness.cache import Say, Source, kept, members_of, store, to_stderr
from attnfit.witness.distribution import Distribution
from attnfit.witness.index import Index, IndexFile, RangedFile, configured

GAP, SPAN = 200_000, 16 << 20  # members closer than this are fetched in one request, up to this length
WHOLE = 64 << 20  # bytes up to which a wheel is fetched whole, so that its sha256 can be checked
QUIET_SECONDS = 1.0  # a progress line no more often than this


def fetched(
    distribution: Distribution,
    version: str,
    *,
    offline: bool = False,
    say: Say = to_stderr,
    indexes: list[Index] | None = None,
) -> Source:
    """The source files of a published release: from the cache, else from the user's package index."""
    name, wanted = f"{distribution.name}-{version}", f"{distribution.name} {version}"
    found = kept(distribution, name)
    if found is not None:
        return found
    if offline:
        raise UnknownAnswer(f"{wanted} is not in the cache; drop --offline, or give a wheel or a tree")
    problems = []
    for index in indexes if indexes is not None else configured():
        try:
            listed = index.files(distribution.name)
        except UnknownAnswer as error:
            problems.append(str(error))
            continue
        file = choose(distribution, listed, version)
        if file is not None:
            return _from_index(distribution, index, file, name, say)
        versions = sorted({v for f in listed if (v := _version(distribution, f.name))})
        problems.append(f"{index.url} has no wheel or sdist of {wanted}{did_you_mean(version, versions)}")
    raise UnknownAnswer("; ".join(problems) or "no http(s) package index is configured; give a wheel or a source tree")


def _version(distribution: Distribution, name: str) -> str:
    """The version in the name of a wheel or an sdist, '' for other files."""
    if name.endswith(".whl"):
        return name.split("-")[1] if name.count("-") >= 4 else ""
    stem, _, version = name.removesuffix(".tar.gz").rpartition("-")
    same = stem.replace("-", "_").replace(".", "_") == distribution.stem
    return version if name.endswith(".tar.gz") and same else ""


def choose(distribution: Distribution, listed: list[IndexFile], version: str) -> IndexFile | None:
    """Which file of a release to read: a Linux x86_64 wheel, else any wheel, else the sdist. Source is the same in all.

    Deterministic, whatever order the index lists them in.
    """

    def rank(file: IndexFile) -> tuple[int, bool, str]:
        name = file.name
        built = "x86_64" in name and "linux" in name
        kind = 3 if not name.endswith(".whl") else 0 if built else 1 if name.endswith("-any.whl") else 2
        return kind, file.yanked, name

    files = [f for f in listed if _version(distribution, f.name) == version]
    return min(files, key=rank, default=None)


def _from_index(distribution: Distribution, index: Index, file: IndexFile, name: str, say: Say) -> Source:
    from attnfit.witness.sdist import is_sdist

    sdist = is_sdist(file.name)
    remote = None if sdist else index.ranged(file)
    why = "sdist" if sdist else "the server does not serve parts"
    if remote is not None and (remote.size > WHOLE or not file.sha256):
        say(f"fetching the source files of {file.name} from {index.url}")
        try:
            return _ranged(distribution, remote, file, name, say)
        except (zipfile.BadZipFile, EOFError, ValueError):
            why = "its parts do not fit together"
    elif remote is not None:
        why = f"{remote.size / 1e6:.1f} MB"
    with tempfile.TemporaryFile() as whole:
        say(f"fetching {file.name} from {index.url}, whole: {why}")
        index.download(file, whole, progress(say))
        whole.seek(0)
        return _unpacked(distribution, index, file, name, whole)


def _unpacked(distribution: Distribution, index: Index, file: IndexFile, name: str, whole: IO[bytes]) -> Source:
    """A wheel or an sdist that was fetched whole and has the listed sha256."""
    from attnfit.witness.sdist import DAMAGED, contents, is_sdist

    try:
        if is_sdist(file.name):
            import tarfile

            with tarfile.open(fileobj=whole, mode="r:gz") as packed:
                members = contents(distribution, packed, file.name)
                return store(distribution, name, (), file.name, file.sha256, members, whole=False)
        with zipfile.ZipFile(whole) as archive:
            kept_ones = members_of(distribution, archive, file.name)
            pairs = ((member.filename, archive.read(member)) for member in kept_ones)
            return store(distribution, name, archive.namelist(), file.name, file.sha256, pairs)
    except (zipfile.BadZipFile, *DAMAGED) as error:
        raise UnknownAnswer(f"{file.name} from {index.url} is damaged ({error}); tell whoever runs it") from error


def progress(say: Say) -> Callable[[int, int], None]:
    """Tells how far a download is: (bytes done, bytes in all), a line a second once it takes longer than that."""
    last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= QUIET_SECONDS and done < total:
            last = now
            say(f"  {done / 1e6:.0f} of {total / 1e6:.0f} MB")

    return tell


def _ranged(distribution: Distribution, remote: RangedFile, file: IndexFile, name: str, say: Say) -> Source:
    """Only the source files: neighbours in one request each; zipfile checks every member's CRC."""
    with zipfile.ZipFile(remote) as archive:
        members = sorted(members_of(distribution, archive, file.name), key=lambda m: m.header_offset)
        groups: list[list[zipfile.ZipInfo]] = []
        for member in members:
            last = groups[-1] if groups else None
            if last and member.header_offset - _end(last[-1]) < GAP and _end(member) - last[0].header_offset < SPAN:
                last.append(member)
            else:
                groups.append([member])

        tell, total = progress(say), sum(_end(group[-1]) - group[0].header_offset for group in groups)

        def contents() -> Iterable[tuple[str, bytes]]:
            done = 0
            for group in groups:
                start, end = group[0].header_offset, _end(group[-1])
                remote.keep(start, end)
                done += end - start
                tell(done, total)
                for member in group:
                    yield member.filename, archive.read(member)

        return store(distribution, name, archive.namelist(), file.name, None, contents())


def _end(member: zipfile.ZipInfo) -> int:
    return member.header_offset + 30 + len(member.filename.encode()) + 512 + member.compress_size
