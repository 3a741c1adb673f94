"""A model on the hub: its small files through huggingface_hub's cache, parts of its large ones by range requests.

Never weights. `open_repository` asks the hub once which commit is meant and which files it has; what is fetched after
that is fetched for that commit. Without the hub, the cache answers. Imported only for what is no path here.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from attnfit.errors import AttnfitError, InputError, UnknownAnswer
from attnfit.inputs import hub_kept
from attnfit.inputs.hub_errors import Unreachable, missing_file, not_a_hub, offline, sentence
from attnfit.inputs.hub_ranges import document, ranges, without_telemetry
from attnfit.inputs.hub_ref import HubRef, HubSettings
from attnfit.inputs.json_file import MOST_BYTES, read_object
from attnfit.inputs.ranges import FileSource, ReadAhead, Source
from attnfit.inputs.waiting import told, within

TIMEOUT = 15.0  # seconds without a byte
LONGEST = 30.0  # seconds for the list of files and all small files together
MOST_LISTING = 32 << 20  # bytes of a list of files; the largest known has a few MiB
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HEADER_WINDOW = 128 << 10  # bytes: most safetensors headers fit
_GGUF_WINDOW = 1 << 20
_WHERE_COMMITS_SHOW = ("config.json", "params.json", "README.md", ".gitattributes")


class Repository:
    """One repository at one commit; see `attnfit.inputs.places.Place`."""

    def __init__(self, ref: HubRef, settings: HubSettings, listing: hub_kept.Listing, note: str = "") -> None:
        self.ref, self.settings = ref, settings
        self.commit = listing.commit
        self.files = listing.files  # every path in it, and its bytes; None: not known
        self.note = note  # why it is not fresh, if it is not
        self.fetched: list[str] = []  # files that this process asked the hub for
        self.asked = 0  # bytes of large files that were read
        self.spent = 0.0  # seconds that small requests took

    @property
    def names(self) -> frozenset[str] | None:
        return None if self.files is None else frozenset(f.partition("/")[0] for f in self.files)

    def where(self, name: str) -> str:
        return f"{name} of {self.ref.repo}"

    def has(self, name: str) -> bool:
        return self.files is None or name in self.files

    def notes(self) -> tuple[str, ...]:
        """Where it is read, for people."""
        at = f"{self.ref.repo} is no path here: read from {self.settings.host}, commit {self.commit[:12]}"
        asked = f" ({self.ref.revision})" if self.ref.revision and self.ref.revision != self.commit else ""
        return (at + asked, *((self.note,) if self.note else ()))

    def json(self, name: str, notes: list[str] | None = None, most: int = MOST_BYTES) -> dict[str, Any]:
        """The JSON object in `name`, fetched into huggingface_hub's cache if it is not there."""
        size = (self.files or {}).get(name)
        if size is not None and size > most:
            raise self._too_large(name, size, most)
        return read_object(self.path(name, most), notes, most)

    def path(self, name: str, most: int | None = None) -> Path:
        """The file in huggingface_hub's cache, fetched if it is not there and has at most `most` bytes.

        Raises UnknownAnswer, InputError.
        """
        if (found := self._cached(name)) is not None:
            return found
        if self.settings.offline:
            raise offline(self.ref, self.settings)
        with _translated(self.ref, self.settings, self.where(name)), told(f"reading {self.where(name)}"):
            began = time.monotonic()
            try:
                got = within(LONGEST - self.spent, lambda: self._fetched(name, most))
            finally:
                self.spent += time.monotonic() - began
        self.fetched.append(name)
        return Path(got)

    def _fetched(self, name: str, most: int | None) -> str:
        import huggingface_hub as hub

        s = self.settings
        # Asked first without a retry: the download would wait, silently and for minutes, for a hub that is busy.
        url = hub.hf_hub_url(self.ref.repo, name, revision=self.commit, endpoint=s.endpoint)
        size = hub.get_hf_file_metadata(url, token=s.token, timeout=TIMEOUT, **_ours()).size
        if most is not None and size is not None and size > most:
            raise self._too_large(name, size, most)
        got: str = hub.hf_hub_download(
            self.ref.repo,
            name,
            revision=self.commit,
            cache_dir=s.cache,
            endpoint=s.endpoint,
            token=s.token,
            **_ours(),
        )
        return got

    def _too_large(self, name: str, size: int, most: int) -> InputError:
        return InputError(f"{self.where(name)} has {size >> 20:,} MiB; no such file has more than {most >> 20}")

    def source(self, name: str) -> Source:
        """The large file `name`: from a cache if the engine has put it there, else by ranges over HTTP."""
        folders = [self.settings.cache, self.settings.download_dir]
        for folder in folders if self.settings.download_dir else folders[:1]:
            if (found := self._cached(name, folder)) is not None:
                return FileSource(found)
        if self.files is not None and name not in self.files:
            raise missing_file(self.ref, self.settings, name)
        if self.settings.offline:
            raise offline(self.ref, self.settings)
        gguf = name.lower().endswith(".gguf")
        fetch, size = ranges(self.ref, self.settings, self.commit, name), (self.files or {}).get(name)

        def counted(offset: int, length: int) -> bytes:
            data = fetch(offset, length)
            self.asked += len(data)
            return data

        if gguf:
            return ReadAhead(f"{self.ref.repo}:{name}", size, counted, first=_GGUF_WINDOW)
        # Behind the header lie weights, so nothing is read ahead but the first window.
        return ReadAhead(f"{self.ref.repo}:{name}", size, counted, first=_HEADER_WINDOW, most=0)

    def _cached(self, name: str, folder: str | None = None) -> Path | None:
        import huggingface_hub as hub

        with contextlib.suppress(ValueError, OSError):  # names that cannot be file names
            found = hub.try_to_load_from_cache(self.ref.repo, name, folder or self.settings.cache, self.commit)
            if isinstance(found, str):
                return Path(found)
        return None


def open_repository(ref: HubRef, settings: HubSettings) -> Repository:
    """The repository `ref` names, at the commit its revision stands for now.

    Raises UnknownAnswer, one sentence each: gated, private or missing, no such revision, offline and not cached, busy,
    in trouble, not reachable.
    """
    if settings.modelscope:
        raise UnknownAnswer(
            f"{ref} is taken from ModelScope ({settings.modelscope}), which is not read; give a directory with its "
            "config.json, or unset the variable if the same model is on the hub"
        )
    with _translated(ref, settings):
        from huggingface_hub.utils import validate_repo_id

        validate_repo_id(ref.repo)
    fixed = ref.revision is not None and _COMMIT.fullmatch(ref.revision) is not None
    kept = hub_kept.listing(ref)
    if fixed and kept is not None:
        return Repository(ref, settings, kept)
    if settings.offline:
        return _from_cache(ref, settings, kept, offline(ref, settings))
    try:
        found = _listed(ref, settings)
    except Unreachable as error:
        return _from_cache(ref, settings, kept, error)
    hub_kept.keep(ref, found)
    return Repository(ref, settings, found)


def _listed(ref: HubRef, settings: HubSettings) -> hub_kept.Listing:
    """What the hub says now: one request."""
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.utils import build_hf_headers

    at = f"/revision/{quote(ref.revision, safe='')}" if ref.revision else ""
    url = f"{(settings.endpoint or ENDPOINT).rstrip('/')}/api/models/{ref.repo}{at}?blobs=true"
    with _translated(ref, settings), told(f"asking {settings.host} for the files of {ref.repo}"):
        text = within(
            LONGEST, lambda: document(url, build_hf_headers(token=settings.token, **_ours()), MOST_LISTING, TIMEOUT)
        )
    try:
        info = msgspec.json.decode(text or b"", type=_Info)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise not_a_hub(ref, settings) from None
    return hub_kept.Listing(commit=info.sha, files={s.rfilename: s.size for s in info.siblings or ()})


class _Sibling(msgspec.Struct):
    rfilename: str
    size: int | None = None


class _Info(msgspec.Struct):
    sha: str
    siblings: list[_Sibling] | None = None


def _from_cache(ref: HubRef, settings: HubSettings, kept: hub_kept.Listing | None, why: Unreachable) -> Repository:
    """What was fetched before, by attnfit or by an engine. Raises `why` where nothing was."""
    said = "offline mode" if settings.offline else str(why).partition(";")[0].partition(", and ")[2]
    note = f"{said}: taken from the cache, the hub may have a newer one"
    snapshot = _snapshot(ref, settings, ref.revision or "main")
    if snapshot is None and kept is not None:  # fetched by its commit: no branch points at it in the cache
        snapshot = _snapshot(ref, settings, kept.commit)
    if snapshot is None:
        raise why
    if kept is not None and kept.commit == snapshot.name:
        return Repository(ref, settings, kept, note)
    # In offline mode the engine sees what lies there, and nothing else.
    files = _sizes(snapshot) if settings.offline else None
    return Repository(ref, settings, hub_kept.Listing(commit=snapshot.name, files=files), note)


def _snapshot(ref: HubRef, settings: HubSettings, revision: str) -> Path | None:
    """The folder of huggingface_hub's cache that holds files of this revision."""
    import huggingface_hub as hub

    for name in (*_WHERE_COMMITS_SHOW, *((ref.file,) if ref.file else ())):
        with contextlib.suppress(ValueError, OSError):
            found = hub.try_to_load_from_cache(ref.repo, name, settings.cache, revision)
            if isinstance(found, str):
                folder: Path = Path(found).parents[name.count("/")]
                return folder
    return None


def _sizes(snapshot: Path) -> dict[str, int | None]:
    return {str(p.relative_to(snapshot)): p.stat().st_size for p in snapshot.rglob("*") if p.is_file()}


def _ours() -> dict[str, Any]:
    from attnfit import __version__

    return {"library_name": "attnfit", "library_version": __version__}


@contextlib.contextmanager
def _translated(ref: HubRef, settings: HubSettings, what: str = "") -> Iterator[None]:
    """Runs the library without its progress bars and warnings; what it raises becomes one sentence."""
    try:
        with _quiet():
            yield
    except AttnfitError:
        raise
    except ImportError:
        raise UnknownAnswer(
            f"{ref} is no path here, and to ask the hub huggingface_hub is needed; pip install huggingface_hub, or "
            "give a directory with the model's config.json"
        ) from None
    except Exception as error:
        said = sentence(error, ref, settings, what)
        if said is None:
            raise
        raise said from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    logger, shown = logging.getLogger("huggingface_hub"), not are_progress_bars_disabled()
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # its warnings name addresses that may be signed
    if shown:
        disable_progress_bars()
    try:
        with without_telemetry():
            yield
    finally:
        logger.setLevel(level)
        if shown:
            enable_progress_bars()
