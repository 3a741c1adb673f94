"""`attnfit run` and `attnfit runs`: start an engine, watch it until it serves, and find it again."""

from __future__ import annotations

from typing import Any

COMMANDS: dict[str, Any] = {}
