"""What the witness answers to one question. Standard library only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class WitnessAnswer:
    """The release's answer to one question; lists and dicts keep the engine's own order."""

    chosen: str | None = None
    valid: list[str] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)  # candidates of the priority list only
    every: dict[str, list[str]] = field(default_factory=dict)  # every CUDA backend of the release
    error: str | None = None  # what the engine raises, exception name first
    unknown: str = ""  # a value that is not in the source files decided something: no answer
    unknown_backends: dict[str, str] = field(default_factory=dict)
    read: list[str] = field(default_factory=list)  # circumstances that were looked at, e.g. "env.fa3"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
