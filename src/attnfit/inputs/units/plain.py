"""The bytes of a file that ends: no pipe is waited for, and no more is read than such a file may hold."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read(path: str | Path, most: int) -> bytes:
    """At most `most` + 1 bytes. Raises OSError, also for pipes and other files that would never end."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        kind = os.fstat(file.fileno()).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISCHR(kind)):  # /dev/null is a usual one
            raise OSError(errno.EINVAL, "it is no plain file")
        return file.read(most + 1) or b""  # None: a terminal on which nothing was typed


def is_utf8(text: str) -> bool:
    """Whether no byte of it, as a surrogate, is anything else."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
