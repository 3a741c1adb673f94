"""Which rule book answers for a release: its own, a patch's that the witness proved equal, one the user learned, or
the nearest one's opinion.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
from packaging.version import InvalidVersion, Version

from attnfit.engines.vllm import book
from attnfit.engines.vllm.book import Book
from attnfit.errors import UnknownAnswer, UsageError, did_you_mean

SHARED = Path(__file__).with_name("releases.json")
OLDEST = Version("0.12.0")
CUDA_BUILD = re.compile(r"cu\d+")  # "+cu129": the same sources, compiled for another CUDA


class Resolved(NamedTuple):
    """A book, whether it is this very release's, and a sentence for the user where something is to be said."""

    book: Book
    exact: bool
    note: str


def user_books() -> Path:
    """Where `attnfit learn` keeps books: ATTNFIT_DATA/books, else the platform's data directory."""
    given = os.environ.get("ATTNFIT_DATA")
    if given:
        return Path(given) / "books"
    if sys.platform == "darwin":
        return Path.home() / "Library/Application Support/attnfit/books"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "attnfit/books"


@functools.cache
def shared() -> dict[str, dict[str, str]]:
    """Patch release -> {"book": whose book serves it, "proof": how that was shown}."""
    if not SHARED.is_file():
        return {}
    return msgspec.json.decode(SHARED.read_bytes(), type=dict[str, dict[str, str]])


def shipped() -> list[str]:
    """Releases with a book of their own in this package, oldest first."""
    return list(_shipped(book.BOOKS))


@functools.cache
def _shipped(folder: Path) -> tuple[str, ...]:
    return tuple(_versions(folder))


def learned() -> list[str]:
    """Releases whose book the user learned, oldest first."""
    return _versions(user_books())


def known() -> list[str]:
    """Every release that gets an exact answer, oldest first."""
    return sorted({*shipped(), *shared(), *learned()}, key=Version)


def newest() -> str:
    """The newest shipped release."""
    return shipped()[-1]


def _versions(folder: Path) -> list[str]:
    found = []
    for path in folder.glob("*.json") if folder.is_dir() else ():
        try:
            found.append((Version(path.stem), path.stem))
        except InvalidVersion:
            continue
    return [stem for _, stem in sorted(found)]


@functools.lru_cache(maxsize=32)
def _load(version: str, folder: Path) -> Book:
    return book.load(version, folder)


def resolve(text: str) -> Resolved:
    """The book for a release as users write it ("0.33.0", "v0.33.0", "0.33.1rc1", "0.33.0+cu129").

    Raises UsageError for what is no version and UnknownAnswer for releases older than 0.12.0.
    """
    plain = text.strip().removeprefix("v")
    try:
        version = Version(plain)
    except InvalidVersion:
        raise UsageError(
            f"{text!r} is no vLLM release{did_you_mean(plain, known())}; known are {', '.join(known())}"
        ) from None
    if version < OLDEST and version.release < OLDEST.release:
        raise UnknownAnswer(
            f"vLLM {plain} chooses backends in another way; attnfit answers for {OLDEST} and newer, "
            f"known are {', '.join(known())}"
        )
    public = version.public
    same_sources = version.local is None or CUDA_BUILD.fullmatch(version.local)
    if same_sources:
        if public in shipped():
            return Resolved(_load(public, book.BOOKS), True, "")
        if public in shared():
            serves = shared()[public]["book"]
            return Resolved(
                _load(serves, book.BOOKS), True, f"vLLM {public} decides as {serves} does: {shared()[public]['proof']}"
            )
    if plain in learned():
        return Resolved(
            _load(plain, user_books()), True, f"from the book learned on this machine, {user_books() / plain}.json"
        )
    nearest = _nearest(version)
    what = "nightly or pre-release" if version.is_prerelease or version.is_devrelease else "release or build"
    note = (
        f"{plain} is a {what} without a rule book; this is the opinion of {nearest}. `attnfit learn` makes an exact one"
    )
    folder = book.BOOKS if nearest in shipped() else user_books()
    return Resolved(_load(nearest, folder), False, note)


def walked_as(version: str) -> str:
    """The shipped release whose flags and model classes a launch of the book `version` is walked with: a book that the
    user learned says what the selector answers, and no more."""
    if version in shipped():
        return version
    before = [known for known in shipped() if Version(known) <= Version(version)]
    return (before or shipped()[:1])[-1]


def _nearest(version: Version) -> str:
    """The same minor's newest book, else the closest release before it, else the oldest."""
    books = sorted({*shipped(), *learned()}, key=Version)
    if not books:
        raise UnknownAnswer("this installation has no rule books; install attnfit again, or run `attnfit learn`")
    minor = [b for b in books if Version(b).release[:2] == version.release[:2]]
    before = [b for b in books if Version(b) <= version]
    return (minor or before or books[:1])[-1]
