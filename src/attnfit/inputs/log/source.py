"""A log as blocks of whole lines in UTF-8, however it was kept: a file, stdin, gzip, UTF-16, one byte or gigabytes."""

from __future__ import annotations

import codecs
import errno
import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from attnfit.errors import InputError

BLOCK = 1 << 20  # bytes read at once
LONGEST = 1 << 20  # of one line, in bytes: what is longer is cut in pieces
_PACKED = {  # forms that are not unpacked here, by how they begin -> what unpacks them
    b"BZh91AY": "bzcat", b"\xfd7zXZ\x00": "xzcat", b"\x28\xb5\x2f\xfd": "zstdcat", b"PK\x03\x04": "unzip -p",
}  # fmt: skip
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class Count:
    """How much was read, and what those who read and who follow tell each other."""

    lines = 0
    bytes = 0
    cut = ""  # why the end of an archive could not be read
    full = 0  # not 0: no more of what goes wrong is kept; another number when that begins again


@contextmanager
def open_log(name: str) -> Iterator[BinaryIO]:
    """The bytes of a log; "-" is stdin. Raises InputError, saying what to do."""
    if name == "-":
        if sys.stdin is None or sys.stdin.closed:
            raise InputError("stdin is closed; give the log's file instead of -")
        yield _inflated(sys.stdin.buffer)
        return
    if not name:
        raise InputError("LOG is empty; give a file, or - for what is piped in")
    path = Path(name)
    if path.is_dir():
        raise InputError(f"{name} is a directory; give one log file of it")
    try:
        with path.open("rb") as file:
            yield _inflated(file)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"no log {name!r}; give a file, or - for what is piped in") from None
    except PermissionError:
        raise InputError(f"{name} may not be read by this user; copy it, or pipe it in with sudo cat") from None
    except OSError as error:
        if error.errno not in (errno.EIO, errno.EINVAL, errno.ENXIO, errno.ENAMETOOLONG, errno.ELOOP):
            raise
        raise InputError(f"{name} cannot be read: {error.strerror}") from None


def _inflated(file: BinaryIO) -> BinaryIO:
    """What a gzip file holds; any other file as it is."""
    buffered: Any = file if hasattr(file, "peek") else io.BufferedReader(cast(io.RawIOBase, file), 1 << 16)
    start = buffered.peek(7)[:7]
    for mark, program in _PACKED.items():
        if start.startswith(mark):
            raise InputError(f"the log is packed; unpack it first: {program} LOG | attnfit explain -")
    found: Any = gzip.GzipFile(fileobj=buffered) if start[:2] == b"\x1f\x8b" else buffered
    return cast(BinaryIO, found)


def blocks(file: BinaryIO, count: Count | None = None) -> Iterator[bytes]:
    """Blocks that end at the end of a line, but for the last, and for lines longer than LONGEST."""
    rest, decoder = b"", None
    first = True
    for piece in _pieces(file, count or Count()):
        if first and (name := _UTF16.get(piece[:2])):
            decoder, piece = codecs.getincrementaldecoder(name)("replace"), piece[2:]
        first = False
        if decoder is not None:
            piece = decoder.decode(piece).encode("utf-8", "replace")
        end = piece.rfind(b"\n") + 1
        if not end and len(rest) + len(piece) > LONGEST:
            end = piece.rfind(b"\r") + 1 or len(piece)  # between two states of a progress bar
        if not end:
            rest += piece
            continue
        yield rest + piece[:end]
        rest = piece[end:]
    if rest:
        yield rest


def _pieces(file: BinaryIO, count: Count) -> Iterator[bytes]:
    """What can be read. A gzip file that is cut off, or broken further on, ends there; `count` says so.

    Raises InputError for one of which nothing can be read.
    """
    read = getattr(file, "read1", file.read)
    some = False
    while True:
        try:
            piece = read(BLOCK)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            why = "is cut off" if isinstance(error, EOFError) else "is broken"
            if not some:
                raise InputError(f"the gzip file {why}, nothing of it can be unpacked; give the log again") from None
            count.cut = f"the gzip file {why}: what comes after line {{}} was not read"
            return
        if not piece:
            return
        some = True
        yield piece
