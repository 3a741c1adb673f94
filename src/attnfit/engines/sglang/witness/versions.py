"""packaging.version as far as releases are compared (PEP 440). Standard library only: the witness has no packages."""

from __future__ import annotations

import functools
import re
import types
from typing import Any

from attnfit.witness.fakes import StubModule
from attnfit.witness.stubs import as_real

_PATTERN = re.compile(
    r"v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>a|b|rc|alpha|beta|c|preview|pre)[-_.]?(?P<pre_number>\d*))?"
    r"(?:-(?P<implicit>\d+)|[-_.]?(?P<post>post|rev|r)[-_.]?(?P<post_number>\d*))?"
    r"(?:[-_.]?(?P<dev>dev)[-_.]?(?P<dev_number>\d*))?(?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?",
    re.IGNORECASE,
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
        self._text = str(version)
        self.release = tuple(int(number) for number in part["release"].split("."))
        letter = (part["pre"] or "").lower()
        self.pre = (_LETTERS.get(letter, letter), int(part["pre_number"] or 0)) if letter else None
        posted = part["post"] is not None or part["implicit"] is not None
        self.post = int(part["implicit"] or part["post_number"] or 0) if posted else None
        self.dev = int(part["dev_number"] or 0) if part["dev"] else None
        self.local, self.epoch = part["local"], int(part["epoch"] or 0)
        self._key = self._order()

    def _order(self) -> tuple[Any, ...]:
        release = self.release
        while release and release[-1] == 0:
            release = release[:-1]
        only_dev = self.dev is not None and self.pre is None and self.post is None
        pre = (0,) if only_dev else (2,) if self.pre is None else (1, *self.pre)
        post = -1 if self.post is None else self.post
        return (self.epoch, release, pre, post, (1,) if self.dev is None else (0, self.dev), self.local or "")

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
    def base_version(self) -> str:
        return ".".join(str(number) for number in self.release)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key == other._key

    def __lt__(self, other: Version) -> bool:
        return bool(self._key < other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        return self._text


def modules() -> dict[str, types.ModuleType]:
    """packaging and packaging.version, by name."""
    version = StubModule("packaging.version", parse=Version, Version=Version, InvalidVersion=InvalidVersion)
    return {"packaging": StubModule("packaging", version=version), "packaging.version": version}
