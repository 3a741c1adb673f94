"""SGLang's distribution: pure Python, from the index (wheels; sdists up to 0.5.10.post1) or its repository."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from attnfit.engines.sglang import needs
from attnfit.witness.distribution import Distribution

_REQUIRES = re.compile(r"^Requires-Dist: *([A-Za-z0-9._-]+)[^\n;]*(;[^\n]*)?$", re.MULTILINE)


def _brought(version: str, metadata: str, names: Iterable[str], whole: bool) -> dict[str, bool]:
    """The packages that its METADATA requires, without extras."""
    required = [name for name, marker in _REQUIRES.findall(metadata) if "extra" not in marker]
    return needs.found([re.sub(r"[-_.]+", "-", name).lower() for name in required])


def _beside(env: dict[str, bool], found: Mapping[str, Path]) -> dict[str, bool]:
    """In an environment what is there counts, not what was required."""
    return needs.found(found)


DISTRIBUTION = Distribution(
    name="sglang",
    package="sglang",
    holds="sglang/srt",
    env=_brought,
    beside=_beside,
    folders=("", "python"),  # its repository has the package under python/
)
