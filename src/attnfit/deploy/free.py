"""Ending processes that were left behind: each one by number and beginning, asked before it is killed."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from attnfit.inputs.processes import PROC, Process, read_process

GRACE_S = 15.0  # from TERM to KILL
KILL_S = 10.0  # after KILL: what is then still there sits in a driver


class Ended(msgspec.Struct, frozen=True):
    """What became of one. how: "gone" before anything was sent, "term", "kill", "refused", "stuck"."""

    process: Process
    how: str

    @property
    def over(self) -> bool:
        return self.how in ("gone", "term", "kill")


class _Held:
    """A process held by a descriptor: what is sent through it never reaches another that got the same number."""

    def __init__(self, process: Process, proc: Path) -> None:
        self.process, self.how, self.fd = process, "", -1
        try:
            self.fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self.how = "gone"
        else:
            now = read_process(process.pid, proc)  # looked at behind the opening: this is whom the descriptor holds
            if now is None or now.ticks != process.ticks or now.zombie:
                self.how = "gone"

    def send(self, number: int, how: str) -> None:
        """how: what it was ended by, should it end now."""
        if self.how in ("gone", "refused"):
            return
        try:
            signal.pidfd_send_signal(self.fd, number)
        except ProcessLookupError:
            self.how = self.how or "gone"
        except PermissionError:
            self.how = "refused"
        else:
            self.how = how

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def end(
    processes: Sequence[Process],
    *,
    grace: float = GRACE_S,
    killing: float = KILL_S,
    again: Callable[[], Sequence[Process]] = lambda: (),
    proc: Path = PROC,
) -> list[Ended]:
    """TERM to all, KILL to those that are still there after `grace` seconds.

    again: who is there by then; one that was started meanwhile is killed, too.
    """
    held = {process.pid: _Held(process, proc) for process in processes}
    try:
        for each in held.values():
            each.send(signal.SIGTERM, "term")
        left = _waited(list(held.values()), grace)
        for process in again():
            if process.pid not in held or held[process.pid].process.ticks != process.ticks:
                held[process.pid] = _Held(process, proc)
                left.append(held[process.pid])
        for each in left:
            each.send(signal.SIGKILL, "kill")
        for each in _waited(left, killing):
            each.how = "refused" if each.how == "refused" else "stuck"
        return [Ended(each.process, each.how) for each in held.values()]
    finally:
        for each in held.values():
            with contextlib.suppress(OSError):
                each.close()


def _waited(held: Sequence[_Held], seconds: float) -> list[_Held]:
    """Those that are still there. A descriptor of a process can be read once it has ended."""
    until = time.monotonic() + seconds
    left = {each.fd: each for each in held if each.how not in ("gone", "refused") and each.fd >= 0}
    poll = select.poll()
    for fd in left:
        poll.register(fd, select.POLLIN)
    while left and (remains := until - time.monotonic()) > 0:
        for fd, _ in poll.poll(remains * 1000):
            poll.unregister(fd)
            del left[fd]
    return list(left.values())
