"""Facts read from the release's source, as JSON with file and line, and the one way to load them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec


@cache
def load(name: str) -> dict[str, Any]:
    """The fact table `name` ("blocks", "mamba_state", ...). Raises FileNotFoundError for a name that does not exist."""
    data: dict[str, Any] = msgspec.json.decode(Path(__file__).with_name(f"{name}.json").read_bytes())
    return data
