"""Small files, read and written so that a reader finds the old one or the new one, and never half of one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

MOST = 16 << 20  # bytes of a file that is read whole
_ACL = "system.posix_acl_access"


class Rights(NamedTuple):
    """Whose a file is, and who may do what with it. -1: whoever writes it."""

    mode: int
    uid: int = -1
    gid: int = -1
    acl: str = ""  # in hexadecimal, as the kernel hands it out

    @property
    def of_owner(self) -> Rights:
        """The same for the owner, and nothing for anybody else."""
        return Rights(self.mode & 0o700, self.uid, self.gid)


PRIVATE = Rights(0o600)


def rights_of(path: Path) -> Rights:
    """Raises OSError."""
    there = path.stat()
    acl = b""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # it has none, or its file system knows none
            acl = os.getxattr(path, _ACL)
    return Rights(stat.S_IMODE(there.st_mode), there.st_uid, there.st_gid, acl.hex())


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


def write_whole(path: Path, data: bytes, rights: Rights = PRIVATE) -> None:
    """The file with those bytes and rights. Raises OSError, also where it cannot be given them; then all is as it was,
    and nothing half-written is left behind."""
    number, name = tempfile.mkstemp(prefix=".attnfit.", suffix=".new", dir=path.parent)  # 0600
    try:
        with os.fdopen(number, "wb") as file:
            _give(number, rights)
            file.write(data)
            file.flush()
            os.fsync(number)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    with contextlib.suppress(OSError):  # it is there; whether it outlives a loss of power is all that is open
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _give(number: int, rights: Rights) -> None:
    try:
        there = os.fstat(number)
        if rights.uid not in (-1, there.st_uid) or rights.gid not in (-1, there.st_gid):
            os.fchown(number, rights.uid, rights.gid)
    except OSError:
        raise PermissionError(
            errno.EPERM, f"it belongs to {rights.uid}:{rights.gid}, which this user cannot keep so"
        ) from None
    os.fchmod(number, rights.mode)
    if rights.acl and sys.platform == "linux":
        os.setxattr(number, _ACL, bytes.fromhex(rights.acl))


def write_private(path: str | Path, what: Any) -> None:
    """`what` as JSON, for its owner alone. Raises OSError, and leaves nothing half-written behind."""
    write_whole(Path(path), (json.dumps(what, indent=1) + "\n").encode())
