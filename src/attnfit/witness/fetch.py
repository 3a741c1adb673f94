"""Published releases: only the source files of a wheel, by HTTP ranges, from the user's own package index."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterable

from attnfit.errors import UnknownAnswer, did_you_mean
from attnfit.witness.cache import DISTRIBUTION, Say, Source, kept, members_of, store, to_stderr
from attnfit.witness.index import Index, IndexFile, RangedFile, configured

GAP, SPAN = 200_000, 16 << 20  # members closer than this are fetched in one request, up to this length


def fetched(version: str, *, offline: bool = False, say: Say = to_stderr, indexes: list[Index] | None = None) -> Source:
    """The source files of a published release: from the cache, else from the user's package index."""
    name = f"{DISTRIBUTION}-{version}"
    found = kept(name)
    if found is not None:
        return found
    if offline:
        raise UnknownAnswer(f"{DISTRIBUTION} {version} is not in the cache; drop --offline, or give a wheel or a tree")
    problems = []
    for index in indexes if indexes is not None else configured():
        try:
            listed = index.files(DISTRIBUTION)
        except UnknownAnswer as error:
            problems.append(str(error))
            continue
        file = _choose(listed, version)
        if file is not None:
            return _from_index(index, file, name, say)
        versions = sorted({_wheel_version(f.name) for f in listed if f.name.endswith(".whl")})
        wanted = f"{DISTRIBUTION} {version}"
        problems.append(f"{index.url} has no Linux x86_64 wheel of {wanted}{did_you_mean(version, versions)}")
    raise UnknownAnswer("; ".join(problems) or "no http(s) package index is configured; give a wheel or a source tree")


def _wheel_version(name: str) -> str:
    return name.split("-")[1] if name.count("-") >= 4 else ""


def _choose(listed: list[IndexFile], version: str) -> IndexFile | None:
    wheels = [f for f in listed if f.name.endswith(".whl") and _wheel_version(f.name) == version]
    built = [f for f in wheels if "x86_64" in f.name and "linux" in f.name]
    wheels = built or [f for f in wheels if f.name.endswith("-any.whl")]
    return min(wheels, key=lambda f: (f.yanked, f.name), default=None)


def _from_index(index: Index, file: IndexFile, name: str, say: Say) -> Source:
    remote = index.ranged(file)
    if remote is not None:
        say(f"fetching the source files of {file.name} from {index.url}")
        try:
            return _ranged(remote, file, name)
        except (zipfile.BadZipFile, EOFError, ValueError):
            say("its parts do not fit together; fetching it whole")
    with tempfile.TemporaryFile() as whole:
        say(f"fetching {file.name} from {index.url}, whole: the server does not serve parts")
        index.download(file, whole, lambda done, total: None)
        try:
            with zipfile.ZipFile(whole) as archive:
                members = members_of(archive, file.name)
                contents = ((member.filename, archive.read(member)) for member in members)
                return store(name, archive.namelist(), file.name, file.sha256, contents)
        except (zipfile.BadZipFile, EOFError, ValueError) as error:
            raise UnknownAnswer(f"{file.name} from {index.url} is damaged ({error}); tell whoever runs it") from error


def _ranged(remote: RangedFile, file: IndexFile, name: str) -> Source:
    """Only the source files: neighbours in one request each; zipfile checks every member's CRC."""
    with zipfile.ZipFile(remote) as archive:
        members = sorted(members_of(archive, file.name), key=lambda m: m.header_offset)
        groups: list[list[zipfile.ZipInfo]] = []
        for member in members:
            last = groups[-1] if groups else None
            if last and member.header_offset - _end(last[-1]) < GAP and _end(member) - last[0].header_offset < SPAN:
                last.append(member)
            else:
                groups.append([member])

        def contents() -> Iterable[tuple[str, bytes]]:
            for group in groups:
                remote.keep(group[0].header_offset, _end(group[-1]))
                for member in group:
                    yield member.filename, archive.read(member)

        return store(name, archive.namelist(), file.name, None, contents())


def _end(member: zipfile.ZipInfo) -> int:
    return member.header_offset + 30 + len(member.filename.encode()) + 512 + member.compress_size
