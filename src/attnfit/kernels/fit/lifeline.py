"""No process outlives the one that asked: the child, what it forks, and the compilers that those start.

The child holds the reading end of a pipe whose writing end only the asker has: when the asker dies, of whatever, the
pipe ends. Then everything in the child's process group is killed and its scratch folder removed. What the child forks
is killed by the kernel when the child dies (Linux).
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import stat
import sys
import time
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Lifeline:
    """What ties this process to the asker. `job`: lifeline (a descriptor that was inherited), scratch (a folder of the
    asker's that nobody else uses); a job without them has nobody to follow."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.fd = _pipe(job.get("lifeline"))
        self._scratch = str(job.get("scratch") or "")
        if self.fd is None:
            return
        signal.signal(signal.SIGTERM, lambda number, frame: self.end())
        _signal_when_parent_dies(signal.SIGTERM)  # while torch is imported nobody waits for the pipe
        if self.cut():
            self.end()

    def cut(self) -> bool:
        """Whether the asker is gone."""
        return self.fd is not None and bool(select.select([self.fd], [], [], 0)[0])

    def end(self) -> None:
        """Kills this process and its group, and removes the folder: by a process that has left the group."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        group = os.getpgrp()
        if os.getsid(0) != group:
            os._exit(1)  # not the session that the asker began: others may be in this group
        if os.fork() == 0:
            try:
                os.setsid()
                os.killpg(group, signal.SIGKILL)
                _remove(self._scratch)
            finally:
                os._exit(0)
        time.sleep(10)
        os._exit(1)


def _pipe(fd: Any) -> int | None:
    """That descriptor, if it is a pipe: a program in between may have closed it."""
    if not isinstance(fd, int) or fd < 3:
        return None
    try:
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            return None
        os.set_inheritable(fd, False)
    except OSError:
        return None
    return fd


def _remove(folder: str) -> None:
    if not os.path.basename(folder).startswith("attnfit-kernels-"):
        return
    for _ in range(40):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        time.sleep(0.05)


def follow(parent: int) -> None:
    """For a process that was just forked by `parent`: it dies with it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _signal_when_parent_dies(signal.SIGKILL)
    if os.getppid() != parent:  # it died before we said so
        os._exit(1)


def _signal_when_parent_dies(number: int) -> None:
    """Linux only; elsewhere the group is killed, which is enough unless the child itself is killed first."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
