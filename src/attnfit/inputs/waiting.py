"""What takes long: said on a terminal after a second, given up after a deadline.

The HTTP library's timeouts count from byte to byte, so that a server which sends one now and then would hold us for
ever. The work runs in a thread of its own, which is left behind when its time is over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread, Timer
from typing import TypeVar

PATIENCE = 1.0  # seconds before anything is said
_T = TypeVar("_T")


class TooSlow(TimeoutError):
    """The deadline is over. A `Timeout` by name, as the errors of the HTTP libraries are."""


def within(seconds: float, work: Callable[[], _T]) -> _T:
    """What `work` returns or raises; TooSlow after `seconds`."""
    ended: list[tuple[_T | None, BaseException | None]] = []

    def run() -> None:
        try:
            ended.append((work(), None))
        except BaseException as error:
            ended.append((None, error))

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    if not ended:
        raise TooSlow
    value, error = ended[0]
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


@contextmanager
def told(doing: str) -> Iterator[None]:
    """Says on a terminal's stderr what takes more than a second."""
    timer = Timer(PATIENCE, lambda: print(f"{doing} ...", file=sys.stderr))
    timer.daemon = True
    if sys.stderr is not None and sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
