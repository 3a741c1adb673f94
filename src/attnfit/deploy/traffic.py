"""A sign of progress that no log shows: the engine reads or writes a lot, as it does while it downloads or compiles."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

LEAST = 1 << 20  # bytes since the last look


class Traffic:
    def __init__(self) -> None:
        self._before: dict[tuple[int, float], int] = {}

    def goes_on(self, members: Iterable[psutil.Process]) -> bool:
        """Whether a process has come, or all of them have moved more than a little since the last look.

        The first look says nothing. What is not known of a process counts as nothing.
        """
        now: dict[tuple[int, float], int] = {}
        for each in members:
            try:
                now[each.pid, each.create_time()] = _moved(each)
            except (psutil.Error, AttributeError, NotImplementedError):  # a system that does not count it
                continue
        before, self._before = self._before, now
        if not before:
            return False
        return any(key not in before for key in now) or sum(n - before[key] for key, n in now.items()) >= LEAST


def _moved(process: psutil.Process) -> int:
    counted = process.io_counters()
    return int(counted.read_bytes + counted.write_bytes + getattr(counted, "write_chars", 0))
