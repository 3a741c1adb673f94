"""A GGUF file wherever it lies: here, at a web address, in a repository on the hub."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from attnfit.errors import UnknownAnswer, did_you_mean
from attnfit.inputs.hub_ref import HubRef, HubSettings, parse_ref, settings_of
from attnfit.inputs.ranges import FileSource, ReadAhead, Source

if TYPE_CHECKING:
    from attnfit.inputs.gguf.traits import GgufModel


def read_remote_gguf(path: str, ref: HubRef | None, settings: HubSettings) -> tuple[GgufModel, OpenGguf]:
    """The model that a GGUF file on the hub or at a web address describes. Raises InputError and UnknownAnswer."""
    from attnfit.inputs.gguf import read_set
    from attnfit.inputs.gguf.traits import describe

    opened = _on_the_hub(ref, settings) if ref is not None else _at_an_address(path)
    return describe(read_set(opened.source, opened.beside)), opened


class OpenGguf(msgspec.Struct, frozen=True, kw_only=True):
    """A GGUF file, and how to open the other parts of its set."""

    source: Source
    beside: Callable[[str], Source | None]  # by file name, in the same folder
    folder: frozenset[str] | None = None  # names of the files beside it; None: not known
    notes: tuple[str, ...] = ()
    commit: str | None = None  # of the repository it lies in


def open_gguf(path: str, settings: Callable[[], HubSettings] | None = None) -> OpenGguf:
    """Open what `path` names: a file, `https://...`, `org/repo:FILE.gguf`, `org/repo:Q4_K_M`.

    settings: how to reach the hub; asked only if it is needed. Raises InputError and UnknownAnswer.
    """
    if os.path.exists(path):
        from attnfit.inputs.gguf import open_beside

        return OpenGguf(source=FileSource(path), beside=open_beside(path))
    found = settings() if settings is not None else settings_of({})
    ref = parse_ref(path, found.endpoint)
    if ref is not None:
        return _on_the_hub(ref, found)
    if re.match(r"https?://", path, re.IGNORECASE):
        return _at_an_address(path)
    raise UnknownAnswer(f"{path} is no file here and names none on the hub; write org/repo:FILE.gguf")


def _on_the_hub(ref: HubRef, settings: HubSettings) -> OpenGguf:
    from attnfit.inputs.hub import open_repository

    if settings.revision and not ref.revision:
        ref = msgspec.structs.replace(ref, revision=settings.revision)
    repository = open_repository(ref, settings)
    name = ref.file or by_quant(ref, repository.files)
    folder, _, _ = name.rpartition("/")

    def beside(other: str) -> Source | None:
        path = f"{folder}/{other}" if folder else other
        return repository.source(path) if repository.has(path) else None

    return OpenGguf(
        source=repository.source(name),
        beside=beside,
        folder=repository.names,
        notes=(*repository.notes(), *((f"{ref} is the file {name}",) if ref.quant else ())),
        commit=repository.commit,
    )


def by_quant(ref: HubRef, files: dict[str, int | None] | None) -> str:
    """The file an engine takes for `org/repo:Q4_K_M`: the fewest dashes, then the first name."""
    if files is None:
        raise UnknownAnswer(f"which file {ref} names: the list of its files is not in the cache; name the file itself")
    every = [f for f in files if f.lower().endswith(".gguf")]
    patterns = (f"*-{ref.quant}.gguf", f"*-{ref.quant}-*.gguf")
    fitting = [f for f in every if ref.quant and any(fnmatchcase(f.rpartition("/")[2], p) for p in patterns)]
    if fitting:
        return min(fitting, key=lambda f: (f.count("-"), f))
    if not every:
        raise UnknownAnswer(f"{ref.repo} holds no GGUF file; check the name")
    if ref.quant is None:
        raise UnknownAnswer(f"{ref.repo} holds {len(every)} GGUF files; name one, as {ref.repo}:{min(every)}")
    guess = did_you_mean(ref.quant, sorted({f.rpartition("/")[2] for f in every}))
    raise UnknownAnswer(f"{ref.repo} has no GGUF file for {ref.quant!r}{guess}; name one, as {ref.repo}:{min(every)}")


def _at_an_address(url: str) -> OpenGguf:
    from urllib.parse import urlsplit

    from attnfit.inputs.hub_ranges import address

    def at(where: str) -> Source:
        plain = where.partition("?")[0].partition("#")[0]
        return ReadAhead(re.sub(r"//[^/@]*@", "//", plain), None, address(where), first=1 << 20)

    def beside(other: str) -> Source | None:
        head, mark, query = url.partition("?")
        return at(f"{head.rpartition('/')[0]}/{other}{mark}{query}")

    source = at(url)
    return OpenGguf(source=source, beside=beside, notes=(f"read from {urlsplit(url).netloc.rpartition('@')[2]}",))
