"""Facts read from the release's source, as JSON with file and line, and the one way to load them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import msgspec


@cache
def load(name: str) -> dict[str, Any]:
    """The fact table `name` ("blocks", "mamba_state", ...). Raises FileNotFoundError for a name that does not exist."""
    data: dict[str, Any] = msgspec.json.decode(files(__package__).joinpath(f"{name}.json").read_bytes())
    return data
