"""The engine's output: passed through unchanged, byte for byte, and kept in part for the reader of crashes.

What is kept is bounded: the head of the log, where a start says what it is, and its tail.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attnfit.explain import Answer, explain, follow, marks
from attnfit.inputs.log import read_lines

HEAD, TAIL = 2 << 20, 4 << 20  # bytes
BLOCK = 1 << 16
CHUNK = 4096  # bytes that a pipe which can be written to takes without blocking (PIPE_BUF on Linux)
STUCK_S = 1.0  # a reader of ours that takes nothing for so long is not waited for when we are to end


class Through:
    """Writes to a descriptor. A reader that is gone is no reason to end the engine; one that is slow slows it."""

    def __init__(self, descriptor: int, ending: Callable[[], bool]) -> None:
        self._descriptor, self._ending = descriptor, ending
        self.open = descriptor >= 0
        self._patience = STUCK_S  # once one is stuck when we are to end, it is not waited for again

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while self.open and view:
            try:
                if not select.select([], [self._descriptor], [], self._patience)[1]:
                    if self._ending():
                        self._patience = 0.0
                        return
                    continue
                view = view[os.write(self._descriptor, view[:CHUNK]) :]
            except BlockingIOError:
                continue
            except OSError:
                self.open = False


class Lines:
    """Whole lines out of pieces; a progress bar's carriage return ends one as well."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[str]:
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        if len(self._rest) > BLOCK:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            if line.strip():
                yield line.decode("utf-8", "replace")


class Kept:
    """What is kept of one start's log, in the order in which it came."""

    def __init__(self) -> None:
        self._head: list[bytes] = []
        self._tail: deque[bytes] = deque()
        self._head_size = self._tail_size = 0
        self._open: dict[int, bytes] = {}  # stream -> the line that has no end yet: two must not run into each other
        self.size = 0

    def add(self, data: bytes, stream: int = 0) -> None:
        self.size += len(data)
        data = self._open.pop(stream, b"") + data
        end = data.rfind(b"\n") + 1
        if not end and len(data) > BLOCK:
            data, end = data + b"\n", len(data) + 1
        if data[end:]:
            self._open[stream] = data[end:]
        if not end:
            return
        whole = data[:end]
        if self._head_size < HEAD:
            self._head.append(whole)
            self._head_size += len(whole)
            return
        self._tail.append(whole)
        self._tail_size += len(whole)
        while self._tail_size > TAIL and len(self._tail) > 1:
            self._tail_size -= len(self._tail.popleft())

    def bytes(self) -> bytes:
        return b"".join([*self._head, *self._tail, *(rest + b"\n" for rest in self._open.values())])

    def _told(self) -> Any:
        return follow(read_lines(io.BytesIO(self.bytes()), marks()))

    @property
    def died(self) -> bool:
        """Whether the engine says that it does not serve, and will not."""
        told = self._told()
        return any(story.starts[-1].died for story in (told if isinstance(told, list) else [told]))

    def explained(self, command: Sequence[str]) -> Answer:
        """What the reader of crashes says of it; command: the user's own, keys shown as $NAME."""
        return explain(self._told(), tuple(command))


class Tail:
    """A file that grows, read as it grows."""

    def __init__(self, path: Path) -> None:
        self._path, self._file, self._skip = path, -1, 0

    def skip(self, size: int) -> None:
        """Begins behind what stood there before."""
        self._skip = size

    def read(self) -> bytes:
        if self._file < 0:
            try:
                self._file = os.open(self._path, os.O_RDONLY)
                os.lseek(self._file, self._skip, os.SEEK_SET)
            except OSError:
                return b""
        with contextlib.suppress(OSError):
            return os.read(self._file, BLOCK)
        return b""

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
