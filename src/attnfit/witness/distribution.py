"""What an engine says of its own distribution, so that one piece of code finds the source files of any of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

_VERSION = re.compile(r"^__version__ *=(?: *version *=)? *['\"]([^'\"]+)", re.MULTILINE)
_PROJECT_VERSION = re.compile(r"^version *= *\"([^\"]+)\"", re.MULTILINE)


class Checkout(msgspec.Struct, frozen=True, kw_only=True):
    """What a source tree without metadata says of itself."""

    version: str = "unknown"
    metadata: str = ""  # its requirements, in the form of METADATA
    built: tuple[str, ...] = ()  # files that its build adds, such as compiled modules


def _no_facts(version: str, metadata: str, names: Iterable[str], whole: bool) -> dict[str, bool]:
    return {}


def _as_they_are(env: dict[str, bool], found: Mapping[str, Path]) -> dict[str, bool]:
    return env


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's distribution: its name on the index, what must be in it, and what is kept of it.

    `env` works out the environment facts of a release from (version, METADATA, names of its files, whether these are
    all of them); `beside` what the distributions installed beside it (normalised name -> .dist-info) change in them.
    """

    name: str  # on the package index, normalised ("some-engine")
    package: str  # the directory of its import package
    holds: str  # a directory that every release has, e.g. "package/part"
    folders: tuple[str, ...] = ("",)  # where in a repository the package may lie, e.g. ("", "python")
    kept: tuple[str, ...] = (".py", "METADATA", "entry_points.txt")  # ends of the names of files that are kept
    telling: tuple[str, ...] = ()  # beginnings of further names that facts depend on; compiled modules always count
    env: Callable[[str, str, Iterable[str], bool], dict[str, bool]] = _no_facts
    beside: Callable[[dict[str, bool], Mapping[str, Path]], dict[str, bool]] = _as_they_are
    checkout: Callable[[Path], Checkout] | None = None  # of the directory that holds the package

    @property
    def stem(self) -> str:
        """How the names of its files begin: wheels, sdists, .dist-info."""
        return re.sub(r"[-_.]+", "_", self.name)

    def read_checkout(self, root: Path) -> Checkout:
        """What the tree at `root` (the directory that holds the package) says of itself."""
        return self.checkout(root) if self.checkout else Checkout(version=stated_version(root, self.package))


def stated_version(root: Path, package: str) -> str:
    """The version a source tree states literally, or "unknown"."""
    for file, pattern in (
        (root / package / "_version.py", _VERSION),
        (root / package / "version.py", _VERSION),
        (root / "pyproject.toml", _PROJECT_VERSION),
        (root / "PKG-INFO", re.compile(r"^Version: *(\S+)", re.MULTILINE)),
    ):
        match = pattern.search(read_text(file))
        if match:
            return match[1]
    return "unknown"


def read_text(file: Path) -> str:
    """A file's text; "" for one that cannot be read."""
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""
