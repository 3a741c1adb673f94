"""Small private files, written so that a reader finds the old one or the new one, and never half of one."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

MOST = 16 << 20  # bytes of a file that is read whole


def private_folder(path: Path) -> Path:
    """The folder, made if it is not there; nobody else may look into it. Raises OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def read_plain(path: Path) -> bytes:
    """A small file's bytes. Raises OSError for what is no plain file (a pipe would never end), and for a large one."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
        there = os.fstat(file.fileno())
        if not stat.S_ISREG(there.st_mode) or there.st_size > MOST:
            raise OSError(f"{path} is no small file")
        return file.read(MOST)


def write_private(path: str | Path, what: Any) -> None:
    """`what` as JSON. Raises OSError, and leaves nothing half-written behind."""
    path = Path(path)
    number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            json.dump(what, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
