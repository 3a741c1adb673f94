"""Where a model's files lie: a directory here, or a repository on the hub (hub.py). Readers see no difference."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

from attnfit.errors import InputError
from attnfit.inputs.json_file import MOST_BYTES, read_object, why
from attnfit.inputs.ranges import FileSource, Source

MOST_FILES = 20_000  # of a directory are looked at


class Place(Protocol):
    """The files of one model. Names are those beside config.json; what lies deeper counts by its first folder."""

    @property
    def names(self) -> frozenset[str] | None:
        """All of them; None where nobody can say (offline, and never listed)."""
        ...

    def where(self, name: str) -> str:
        """How errors and notes call the file `name`."""
        ...

    def has(self, name: str) -> bool:
        """Whether it is there, or may be."""
        ...

    def json(self, name: str, notes: list[str] | None = None, most: int = MOST_BYTES) -> dict[str, Any]:
        """The JSON object in the small file `name`. Raises InputError, UnknownAnswer."""
        ...

    def source(self, name: str) -> Source:
        """Parts of the large file `name`. Raises InputError, UnknownAnswer."""
        ...


class Directory:
    """A directory of this machine. Raises InputError where it cannot be listed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: frozenset[str] = _names(path)

    def where(self, name: str) -> str:
        return str(self.path / name)

    def has(self, name: str) -> bool:
        return name in self.names

    def json(self, name: str, notes: list[str] | None = None, most: int = MOST_BYTES) -> dict[str, Any]:
        return read_object(self.path / name, notes, most)

    def source(self, name: str) -> Source:
        return FileSource(self.path / name)


def _names(directory: Path) -> frozenset[str]:
    names: list[str] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) >= MOST_FILES:
                    break
    except OSError as error:
        raise InputError(f"{directory}: {why(error)}") from None
    if len(names) >= MOST_FILES and (directory / "config.json").exists():
        names.append("config.json")
    return frozenset(names)
