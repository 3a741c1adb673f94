"""Defaults from files: ./attnfit.toml, then the user's own. Flags and ATTNFIT_* variables go before both."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from attnfit.errors import UsageError


def user_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "attnfit" / "attnfit.toml"


def defaults() -> dict[str, Any]:
    """click's default_map: one table per command, for example `[check]` with `gpu = "h200x8"`."""
    merged: dict[str, Any] = {}
    for path in (user_file(), Path("attnfit.toml")):
        for command, table in _read(path).items():
            if not isinstance(table, dict):
                raise UsageError(f"{path}: {command!r} stands outside a table; write it under [check]")
            merged.setdefault(command, {}).update(table)
    return merged


def _read(path: Path) -> dict[str, Any]:
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is no regular file; move it away or write TOML into it")
    try:
        text = path.read_text("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read ({error}); correct it or move it away") from error
    import tomllib  # only for those who have a file

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} cannot be read as TOML ({error}); correct it or move it away") from error
