"""SIGINT, SIGTERM and SIGHUP, heard while an engine is there: the loop is woken, and asks how often and by which.

A hang-up or an interrupt that was ignored when attnfit was started stays so, for the engine too: `nohup` asks for that,
and a shell for what it puts into the background. SIGTERM is always heard: by it `attnfit runs stop` ends a run.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from types import FrameType, TracebackType
from typing import Any

_HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_S = 0.2  # one sent to us and to our group (`timeout` does that) comes twice, and is one


def heard(number: int) -> bool:
    """Whether a signal is to be heard, as things are."""
    return number not in (signal.SIGINT, signal.SIGHUP) or signal.getsignal(number) is not signal.SIG_IGN


class Signals:
    def __init__(self) -> None:
        self.first = 0  # number of the first; 0: none came
        self.count = 0
        self._last = (0, 0.0)

    def __enter__(self) -> Signals:
        self.woken, self._wake = os.pipe()
        for pipe in (self.woken, self._wake):
            os.set_blocking(pipe, False)
        self._wakeup = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        self._before: dict[int, Any] = {}
        for number in filter(heard, _HEARD):
            self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.woken)
        os.close(self._wake)

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        last, self._last = self._last, (number, time.monotonic())
        if last[0] == number and self._last[1] - last[1] < SAME_S:
            return
        self.first = self.first or number
        self.count += 1

    def drain(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self.woken, 1 << 10)

    def wait(self, seconds: float) -> bool:
        """Sleeps; True as soon as a signal has come."""
        if not self.count:
            select.select([self.woken], [], [], seconds)
            self.drain()
        return bool(self.count)

    @property
    def name(self) -> str:
        return signal.Signals(self.first).name if self.first else ""
