"""Every process below this one: who they are, and their end. TERM before KILL, and no end before all are gone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SETTLE_S = 1.0  # what a parent leaves often ends by itself when a pipe breaks
TERM_S = 5.0  # from SIGTERM to SIGKILL
KILL_S = 10.0  # after SIGKILL: what is then still there sits in a driver and cannot be ended
TICK_S = 0.05


def prctl(option: int, value: int) -> None:
    """Linux only; elsewhere nothing."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def adopt() -> None:
    """What a child of ours leaves behind becomes our child, and is not lost to the machine's first process."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def below(root: psutil.Process | None = None, *, but: frozenset[int] = frozenset()) -> list[psutil.Process]:
    """Living descendants of `root` (default: of us) without those named; zombies are none."""
    found = []
    with contextlib.suppress(psutil.Error):
        for each in (root or psutil.Process()).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if each.pid not in but and each.status() != psutil.STATUS_ZOMBIE:
                    found.append(each)
    return found


def end(
    living: Callable[[], list[psutil.Process]],
    *,
    hard: bool = False,
    grace: float = TERM_S,
    meanwhile: Callable[[], object] = lambda: None,
) -> list[dict[str, Any]]:
    """Ends what `living` lists, until it lists nothing. Who they were, and whether they are gone.

    hard: KILL at once. grace: seconds from SIGTERM to SIGKILL. meanwhile: called while waiting.
    """
    left = living()
    if not hard and left:
        left = _waited(living, SETTLE_S, meanwhile)
    seen = {each.pid: name_of(each) for each in left}
    if not hard and left:
        for each in left:
            send(each.pid, signal.SIGTERM)
        left = _waited(living, grace, meanwhile)
    begun = time.monotonic()
    while left and (so_far := time.monotonic() - begun) < KILL_S:  # again: one may start another while it dies
        for each in first_to_kill(left) if so_far < SETTLE_S else left:
            seen.setdefault(each.pid, name_of(each))
            send(each.pid, signal.SIGKILL)
        meanwhile()
        time.sleep(TICK_S)
        left = living()
    still = {each.pid for each in left}
    return [{"pid": pid, "what": what, "ended": pid not in still} for pid, what in seen.items()]


def first_to_kill(those: list[psutil.Process]) -> list[psutil.Process]:
    """All but Python's resource trackers: these end by themselves when the others have, and remove what those left."""
    return [each for each in those if not _tracks(each)]


def _tracks(process: psutil.Process) -> bool:
    try:
        return any("multiprocessing.resource_tracker" in word for word in process.cmdline()[1:4])
    except psutil.Error:
        return False


def session(leader: int, since: float) -> list[psutil.Process]:
    """Living processes of the session that `leader` opened, also where that one is gone."""
    if psutil.pid_exists(leader) and same(leader, since) is None and created(leader):
        return []  # the number is another's by now; a system gives none away of which there is a session
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            its = os.getsid(each.pid) == leader and each.create_time() > since - 0.05
            if its and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
    return found


def _waited(
    living: Callable[[], list[psutil.Process]], seconds: float, meanwhile: Callable[[], object]
) -> list[psutil.Process]:
    until = time.monotonic() + seconds
    while (left := living()) and time.monotonic() < until:
        meanwhile()
        time.sleep(TICK_S)
    return left


def name_of(process: psutil.Process) -> str:
    """A name, never a command line: that may hold a key."""
    try:
        return process.name()
    except psutil.Error:
        return "?"


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def created(pid: int) -> float:
    """When a process began, in seconds since 1970; 0 where there is none. With its number it is that process alone."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return 0.0


def same(pid: int, since: float) -> psutil.Process | None:
    """The process of that number, if it is the one that began then."""
    try:
        found = psutil.Process(pid)
        return found if abs(found.create_time() - since) < 0.05 and found.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None
