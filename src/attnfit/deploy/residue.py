"""What engines leave in the file system when they are killed: Unix sockets and shared memory that nobody holds.

Only what the engine's own processes were seen to hold open counts, only where it is younger than the engine, and only
where no process holds it any more. Shared memory is a file right in /dev/shm: what lies in folders there (somebody's
weights, a cache) is none. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
SHM = "/dev/shm/"


class Residue:
    def __init__(self, proc: Path = PROC) -> None:
        self._proc, self._since = proc, time.time() - 1.0  # file systems may count more coarsely
        self._seen: set[str] = set()
        self._known: set[str] = set()  # paths that sockets of anybody were bound to when it was last asked

    def stirred(self) -> bool:
        """Whether some socket is bound to a path that none was at the last time: one file is read, no process."""
        now = set(self._bound().values())
        new, self._known = now - self._known, now
        return bool(new)

    def look(self, pids: Iterable[int]) -> list[str]:
        """Remembers what these processes hold now; what of it is new."""
        bound, before = self._bound(), set(self._seen)
        for pid in pids:
            self._seen |= self._held(pid, bound)
        return sorted(self._seen - before)

    def told(self, paths: Iterable[str]) -> None:
        """Remembers what another has seen them hold."""
        self._seen |= set(paths)

    def clear(self) -> list[str]:
        """Removes what of it is still there and belongs to nobody; what was removed."""
        there = {path for path in self._seen if os.path.lexists(path)}
        if not there:
            return []
        bound = self._bound()
        there -= set(bound.values())
        with contextlib.suppress(OSError):
            for name in os.listdir(self._proc):
                if name.isdecimal() and there:
                    there -= self._held(int(name), bound)
        removed = []
        for path in sorted(there):
            with contextlib.suppress(OSError):
                found = os.lstat(path)
                young = found.st_ctime >= self._since and found.st_uid == os.getuid()
                if young and (stat.S_ISSOCK(found.st_mode) or _is_shared(path)):
                    os.unlink(path)
                    removed.append(path)
        return removed

    def _bound(self) -> dict[str, str]:
        """Inode -> path of every Unix socket that is bound to one."""
        found = {}
        with contextlib.suppress(OSError):
            for line in (self._proc / "net" / "unix").read_text("utf-8", "replace").splitlines()[1:]:
                words = line.split(None, 7)
                if len(words) == 8 and words[7].startswith("/"):
                    found[words[6]] = words[7]
        return found

    def _held(self, pid: int, bound: dict[str, str]) -> set[str]:
        """Paths of Unix sockets and of shared memory that a process holds open or has mapped."""
        found: set[str] = set()
        place = self._proc / str(pid)
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(place / "fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(place / "fd" / descriptor)
                    if target.startswith("socket:["):
                        found |= {bound[inode]} if (inode := target[8:-1]) in bound else set()
                    elif _is_shared(target):
                        found.add(target)
        with contextlib.suppress(OSError), (place / "maps").open("rb") as maps:
            for line in maps:
                at = line.find(SHM.encode())
                if at >= 0 and _is_shared(path := line[at:-1].decode("utf-8", "replace")):
                    found.add(path)
        return found


def _is_shared(path: str) -> bool:
    name = path.removeprefix(SHM)
    return name != path and "/" not in name and not name.endswith(" (deleted)")
