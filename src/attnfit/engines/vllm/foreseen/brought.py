"""What a release's wheel asks for in exactly one version; `proofs/vllm_surroundings.py` writes the table."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

TABLE = Path(__file__).with_name("brings.json")


@functools.cache
def brings() -> dict[str, dict[str, str]]:
    """Release -> package -> version."""
    table: dict[str, dict[str, str]] = msgspec.json.decode(TABLE.read_bytes())["releases"]
    return table
