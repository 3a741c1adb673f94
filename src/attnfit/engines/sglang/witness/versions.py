"""packaging.version as far as releases are compared (PEP 440). Standard library only: the witness has no packages."""

from __future__ import annotations

import functools
import re
import types
from typing import Any

from attnfit.witness.fakes import StubModule
from attnfit.witness.stubs import as_real

_PATTERN = re.compile(
    r"v?(?:(?P<epoch>[0-9]+)!)?(?P<release>[0-9]+(?:\.[0-9]+)*)"
    r"(?:[-_.]?(?P<pre>alpha|beta|preview|pre|a|b|c|rc)[-_.]?(?P<pre_number>[0-9]*))?"
    r"(?:-(?P<implicit>[0-9]+)|[-_.]?(?P<post>post|rev|r)[-_.]?(?P<post_number>[0-9]*))?"
    r"(?:[-_.]?(?P<dev>dev)[-_.]?(?P<dev_number>[0-9]*))?(?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?",
    re.IGNORECASE | re.ASCII,
)
_LETTERS = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc"}


class InvalidVersion(ValueError):
    """packaging.version.InvalidVersion"""


@functools.total_ordering
class Version:
    """packaging.version.Version"""

    def __init__(self, version: str) -> None:
        match = _PATTERN.fullmatch(str(version).strip())
        if match is None:
            raise as_real(InvalidVersion(f"Invalid version: {version!r}"))
        part = match.groupdict()
        self.release = tuple(int(number) for number in part["release"].split("."))
        letter = (part["pre"] or "").lower()
        self.pre = (_LETTERS.get(letter, letter), int(part["pre_number"] or 0)) if letter else None
        posted = part["post"] is not None or part["implicit"] is not None
        self.post = int(part["implicit"] or part["post_number"] or 0) if posted else None
        self.dev = int(part["dev_number"] or 0) if part["dev"] else None
        local = [int(word) if word.isdigit() else word for word in re.split(r"[-_.]", (part["local"] or "").lower())]
        self.local = ".".join(str(word) for word in local) or None
        self.epoch = int(part["epoch"] or 0)
        self._key = self._order(local if self.local else [])

    def _order(self, local: list[int | str]) -> tuple[Any, ...]:
        release = self.release
        while release and release[-1] == 0:
            release = release[:-1]
        only_dev = self.dev is not None and self.pre is None and self.post is None
        pre = (0,) if only_dev else (2,) if self.pre is None else (1, *self.pre)
        post = -1 if self.post is None else self.post
        words = tuple((0, word, 0) if isinstance(word, str) else (1, "", word) for word in local)  # numbers are later
        return (self.epoch, release, pre, post, (1,) if self.dev is None else (0, self.dev), words)

    @property
    def major(self) -> int:
        return self.release[0]

    @property
    def minor(self) -> int:
        return (*self.release, 0)[1]

    @property
    def micro(self) -> int:
        return (*self.release, 0, 0)[2]

    @property
    def is_prerelease(self) -> bool:
        return self.pre is not None or self.dev is not None

    @property
    def is_postrelease(self) -> bool:
        return self.post is not None

    @property
    def is_devrelease(self) -> bool:
        return self.dev is not None

    @property
    def base_version(self) -> str:
        epoch = f"{self.epoch}!" if self.epoch else ""
        return epoch + ".".join(str(number) for number in self.release)

    @property
    def public(self) -> str:
        pre = "".join(str(part) for part in self.pre or ())
        post = "" if self.post is None else f".post{self.post}"
        dev = "" if self.dev is None else f".dev{self.dev}"
        return self.base_version + pre + post + dev

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Version) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return bool(self._key < other._key) if isinstance(other, Version) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        return self.public + (f"+{self.local}" if self.local else "")

    def __repr__(self) -> str:
        return f"<Version('{self}')>"


def modules() -> dict[str, types.ModuleType]:
    """packaging and packaging.version, by name."""
    version = StubModule("packaging.version", parse=Version, Version=Version, InvalidVersion=InvalidVersion)
    return {"packaging": StubModule("packaging", version=version), "packaging.version": version}
