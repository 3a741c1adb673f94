"""What engines leave in the file system when they are killed: Unix sockets and shared memory that nobody holds.

Only what the engine's own processes were seen to have counts, only where its name and its inode are both new since
before the start, only where it is still the same file, and only where no process holds it any more. Nothing is told by
its time: every write makes a file young.

Shared memory is a file right in /dev/shm that such a process has mapped to be shared and written. People put files of
their own there, too: a log that an engine merely has open, weights that it maps to read, whatever its command or its
environment names, and folders and all in them are theirs. Names tell nothing: every library and release has others,
and another engine's are like ours. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

PROC = Path("/proc")
SHM = "/dev/shm/"

Id = tuple[int, int]  # device and inode: which file a name stood for


class Residue:
    def __init__(self, named: Iterable[str] = (), proc: Path = PROC) -> None:
        """To be made before the engine is started: what is there by now is somebody's, and stays.

        named: the words and the environment that it is started with; what they name is the user's.
        """
        self._proc, self._named = proc, tuple(named)
        there = _in_shared_memory()
        self._files = frozenset(there.values())
        self._names = frozenset(there) | frozenset(self._bound().values())
        self._seen: dict[str, Id] = {}
        self._known = set(self._names)  # names of anybody when it was last asked

    def stirred(self) -> bool:
        """Whether there is a name of a socket or of shared memory that was not there the last time: two places are
        read, no process."""
        now = set(self._bound().values())
        with contextlib.suppress(OSError):
            now |= {SHM + name for name in os.listdir(SHM)}
        new, self._known = now - self._known, now
        return bool(new)

    def look(self, pids: Iterable[int]) -> dict[str, Id]:
        """Remembers what these processes have made and hold now; what of it is new."""
        bound, new = self._bound(), {}
        for pid in pids:
            for path, made in self._held(pid, bound).items():
                file = _file(path) if made and path not in self._names and not self._is_named(path) else None
                if file is not None and file not in self._files and self._seen.get(path) != file:
                    new[path] = file
        self._seen |= new
        return new

    def told(self, seen: Mapping[str, Iterable[int]]) -> None:
        """Remembers what another has seen them hold."""
        for path, (device, inode) in seen.items():
            self._seen[path] = (device, inode)

    def clear(self) -> list[str]:
        """Removes what of it is still there and belongs to nobody; what was removed."""
        there = {path for path, file in self._seen.items() if _file(path) == file}
        if not there:
            return []
        bound = self._bound()
        there -= set(bound.values())
        with contextlib.suppress(OSError):
            for name in os.listdir(self._proc):
                if name.isdecimal() and there:
                    there -= self._held(int(name), bound).keys()
        removed = []
        for path in sorted(there):
            with contextlib.suppress(OSError):
                found = os.lstat(path)
                kind = stat.S_ISSOCK(found.st_mode) or (stat.S_ISREG(found.st_mode) and _is_shared(path))
                if kind and _id(found) == self._seen[path] and found.st_uid == os.getuid():
                    os.unlink(path)
                    removed.append(path)
        return removed

    def _is_named(self, path: str) -> bool:
        """Of sockets nothing is left where its maker has ended, whoever named it."""
        return _is_shared(path) and any(path.removeprefix(SHM) in word for word in self._named)

    def _bound(self) -> dict[str, str]:
        """Inode -> path of every Unix socket that is bound to one."""
        found = {}
        with contextlib.suppress(OSError):
            for line in (self._proc / "net" / "unix").read_text("utf-8", "replace").splitlines()[1:]:
                words = line.split(None, 7)
                if len(words) == 8 and words[7].startswith("/"):
                    found[words[6]] = words[7]
        return found

    def _held(self, pid: int, bound: Mapping[str, str]) -> dict[str, bool]:
        """Paths of Unix sockets and of shared memory that a process holds open or has mapped -> whether as a maker
        does: a socket, or a mapping that is shared and written."""
        found: dict[str, bool] = {}
        place = self._proc / str(pid)
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(place / "fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(place / "fd" / descriptor)
                    if target.startswith("socket:["):
                        if (inode := target[8:-1]) in bound:
                            found[bound[inode]] = True
                    elif _is_shared(target):
                        found.setdefault(target, False)
        with contextlib.suppress(OSError), (place / "maps").open("rb") as maps:
            for line in maps:
                at = line.find(SHM.encode())
                if at >= 0 and _is_shared(path := line[at:-1].decode("utf-8", "replace")):
                    allowed = line.split(None, 2)[1]  # b"rw-s"
                    found[path] = found.get(path, False) or (allowed[1:2] == b"w" and allowed[3:4] == b"s")
        return found


def _in_shared_memory() -> dict[str, Id]:
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(SHM):
            if (file := _file(SHM + name)) is not None:
                found[SHM + name] = file
    return found


def _id(status: os.stat_result) -> Id:
    return status.st_dev, status.st_ino


def _file(path: str) -> Id | None:
    try:
        return _id(os.lstat(path))
    except OSError:
        return None


def _is_shared(path: str) -> bool:
    name = path.removeprefix(SHM)
    return name != path and "/" not in name and not name.endswith(" (deleted)")
