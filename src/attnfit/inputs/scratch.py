"""A folder for a child process and all that it starts, which goes with us, however we end.

SIGTERM and SIGHUP unwind as Ctrl-C does. After SIGKILL the child removes the folder (kernels/fit/lifeline.py); what was
left even so (a machine that lost power) goes when somebody asks next: its owner's lock is gone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

PREFIX = "attnfit-kernels-"
_NEW = 60.0  # seconds; between being made and being locked a folder is nobody's
_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class _Ended(BaseException):
    """A signal that ends this process, on its way up."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """SIGTERM and SIGHUP run what `finally` promises, then end this process as they would have. What somebody else
    handles or ignores (nohup) stays as it is; only the main thread can hear signals."""
    heard = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        heard = []

    def raise_once(number: int, frame: FrameType | None) -> NoReturn:
        for each in heard:
            signal.signal(each, signal.SIG_IGN)
        raise _Ended(number)

    ended = 0
    try:
        for number in heard:
            signal.signal(number, raise_once)
        yield
    except _Ended as end:
        ended = end.number
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)
    if ended:
        os.kill(os.getpid(), ended)
        raise SystemExit(128 + ended)  # process 1 of a container does not die of it


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """A folder that is locked while this process lives, and removed in the end."""
    _sweep()
    folder = tempfile.mkdtemp(prefix=PREFIX)
    lock = None
    try:
        lock = _locked(folder)
        yield folder
    finally:
        removed(folder)
        if lock is not None:
            os.close(lock)


def removed(folder: str) -> None:
    """Without complaint; again where a process that is just being killed still wrote there."""
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        time.sleep(0.05)


def _locked(folder: str) -> int | None:
    """A descriptor that holds the folder's lock; None where somebody else does, or nobody can."""
    fd = None
    try:
        import fcntl

        fd = os.open(folder, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        if fd is not None:
            os.close(fd)
        return None
    return fd


def _sweep() -> None:
    """Removes folders of this user whose owners are gone."""
    with contextlib.suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                about = folder.lstat()
                ours = hasattr(os, "getuid") and about.st_uid == os.getuid()
                if folder.is_symlink() or not ours or time.time() - about.st_mtime < _NEW:
                    continue
                if (lock := _locked(str(folder))) is not None:
                    shutil.rmtree(folder, ignore_errors=True)
                    os.close(lock)
