"""Results that are kept in a folder, a file for each key. What is not a whole result is no result: compiled again."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from attnfit.kernels.fit.records import FITS, REFUSED, TOO_LARGE, UNKNOWN

_WORDS = ("exception", "message")
_COUNTS = (
    "num_warps",
    "num_stages",
    "num_ctas",
    "threads",
    "shared",
    "tensor_memory",
    "registers",
    "stack",
    "spill_stores",
    "spill_loads",
)
_ALWAYS = ("num_warps", "num_stages", "num_ctas", "threads", "shared", "registers", "stack")  # of what was compiled
_MIX = ("tensor", "global_loads", "local")
_ROOM = ("blocks", "warps", "most")
_KNOWN = {"verdict", "seconds", "instructions", "occupancy", *_WORDS, *_COUNTS}


def kept(folder: Path | None, key: str) -> dict[str, Any] | None:
    """What was kept under that key; None where nothing was, or nothing that can be understood."""
    if folder is None or not key:
        return None
    try:
        found = json.loads((folder / f"{key}.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if sound(found) else None


def keep(folder: Path | None, key: str, result: dict[str, Any]) -> None:
    """All or nothing; what is unknown is asked again, and a folder that cannot be written is no failure."""
    if folder is None or result["verdict"] == UNKNOWN:
        return
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        fd, part = tempfile.mkstemp(dir=folder, suffix=".part")
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                json.dump(result, file)
            os.replace(part, folder / f"{key}.json")
        except BaseException:
            os.unlink(part)
            raise


def sound(found: Any) -> bool:
    """Whether that is a result as `compiling.outcome` makes them, of something that is known."""
    if not isinstance(found, dict) or not found.keys() <= _KNOWN:
        return False
    verdict = found.get("verdict")
    if verdict not in (FITS, TOO_LARGE, REFUSED):
        return False
    if not all(isinstance(found.get(name, ""), str) for name in _WORDS):
        return False
    if not all(found.get(name) is None or _count(found[name]) for name in _COUNTS):
        return False
    if not isinstance(found.get("seconds", 0.0), (int, float)) or isinstance(found.get("seconds"), bool):
        return False
    if verdict == REFUSED:
        return bool(found.get("exception"))
    if not all(_count(found.get(name)) for name in _ALWAYS) or (verdict == TOO_LARGE and not found.get("message")):
        return False
    return _mix(found.get("instructions")) and _room(found.get("occupancy"))


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _mix(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, dict) or value.keys() != {"total", *_MIX} or not _count(value["total"]):
        return False
    return all(isinstance(value[name], dict) and all(map(_count, value[name].values())) for name in _MIX)


def _room(value: Any) -> bool:
    if value is None:
        return True
    if (
        not isinstance(value, dict)
        or value.keys() != {*_ROOM, "limited_by"}
        or not all(_count(value[n]) for n in _ROOM)
    ):
        return False
    return isinstance(value["limited_by"], list) and all(isinstance(name, str) for name in value["limited_by"])
