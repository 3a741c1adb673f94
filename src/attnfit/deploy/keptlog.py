"""The output of a detached engine, in a private file of bounded size, without the keys that its command holds.

A disk that is full loses lines; it never stops the engine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

MOST = 32 << 20  # bytes; then the file becomes NAME.1, and the one of that name is gone
LONGEST = 1 << 16  # of a line that has no end yet


class KeptLog:
    def __init__(self, path: str, secrets: Mapping[str, str], most: int = MOST) -> None:
        """secrets: value -> what stands for it."""
        self._path, self._most = path, most
        self._secrets = {value.encode("utf-8", "surrogateescape"): name.encode() for value, name in secrets.items()}
        self._overlap = max(map(len, self._secrets), default=0)
        self._rest = b""
        self._size = 0
        self._file = -1
        self._open()

    def _open(self) -> None:
        with contextlib.suppress(OSError):
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, data: bytes) -> None:
        """Whole lines are written at once; of a line without an end what can hold no part of a key."""
        data = self._hidden(self._rest + data)
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not end and len(data) > LONGEST:
            end = len(data) - self._overlap
        self._rest = data[end:]
        self._put(data[:end])

    def _hidden(self, data: bytes) -> bytes:
        for value, name in self._secrets.items():
            data = data.replace(value, name)
        return data

    def _put(self, data: bytes) -> None:
        if not data:
            return
        with contextlib.suppress(OSError):
            if self._size + len(data) > self._most:
                os.close(self._file)
                os.replace(self._path, self._path + ".1")
                self._size = 0
                self._open()
            self._size += os.write(self._file, data)

    def close(self) -> None:
        self._put(self._rest)
        self._rest = b""
        with contextlib.suppress(OSError):
            os.close(self._file)
