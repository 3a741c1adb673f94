"""Reading parts of something large: a file here, or one served over HTTP.

Header readers (safetensors, GGUF) take a `Source`, so they never know where the bytes lie.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from attnfit.errors import InputError


class Source(Protocol):
    """Bytes at an offset. `name` is what errors call it; `size` is in bytes, None where the far end does not say."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int | None: ...

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only where the end is nearer. Raises AttnfitError."""
        ...


class FileSource:
    """A local file. It is opened at the first read and stays open until `close`. Raises InputError."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)
        self._fd: int | None = None
        self.size: int | None = os.fstat(self._open()).st_size

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; a length past the end costs no memory."""
        if offset < 0 or length <= 0 or offset >= (self.size or 0):
            return b""
        want = min(length, (self.size or 0) - offset)
        parts: list[bytes] = []
        try:
            while want > 0 and (part := os.pread(self._open(), want, offset)):
                parts.append(part)
                offset, want = offset + len(part), want - len(part)
        except OSError as e:
            raise InputError(f"{self.name} cannot be read: {e.strerror or e}") from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> FileSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> int:
        if self._fd is None:
            try:
                self._fd = os.open(self.name, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO without a writer must not hang
                if not _regular(self._fd):
                    self.close()
                    raise InputError(f"{self.name} is not a regular file; name the model's file itself")
            except OSError as e:
                raise InputError(f"{self.name} cannot be read: {e.strerror or e}; check the path") from None
            except ValueError:
                raise InputError(f"{self.name!r} is not a path; check the spelling") from None
        return self._fd


def _regular(fd: int) -> bool:
    import stat

    return stat.S_ISREG(os.fstat(fd).st_mode)


class ReadAhead:
    """Makes few large reads of many small ones. `fetch(offset, length)` asks the far end once.

    A request far from the last window starts a new one; a second request right behind the window doubles the next
    one up to `most`, so walking a long header costs few round trips and a short one few bytes.
    """

    def __init__(
        self, name: str, size: int | None, fetch: Callable[[int, int], bytes], first: int = 1 << 18, most: int = 1 << 23
    ) -> None:
        self.name = name
        self.size = size
        self.fetched = 0  # bytes asked of the far end so far
        self._fetch = fetch
        self._window = first
        self._most = most
        self._start = 0
        self._held = b""

    def read(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`."""
        if offset < 0 or length <= 0:
            return b""
        if self.size is not None:
            length = min(length, self.size - offset)
            if length <= 0:
                return b""
        end = self._start + len(self._held)
        if self._start <= offset and offset + length <= end:
            return self._held[offset - self._start : offset - self._start + length]
        kept = self._held[offset - self._start :] if self._start <= offset < end else b""
        missing = length - len(kept)
        want = max(missing, self._window)
        if self.size is not None:
            want = min(want, self.size - offset - len(kept))
        got = self._fetch(offset + len(kept), want)
        self.fetched += len(got)
        self._window = min(self._window * 2, self._most)
        self._start, self._held = offset, kept + got
        return self._held[:length]
