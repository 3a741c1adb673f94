"""Read one JSON object from a file somebody else wrote: whatever the file is, one clear error or a dictionary.

The engine reads these files with Python's `json`, so that is what decides: NaN and Infinity (real configs have them)
and duplicate keys (the last counts, and is noted) are accepted. Size and depth are bounded, which the engine does not.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from attnfit.errors import InputError

MOST_BYTES = 8 * 2**20  # the largest real config known is well under 1 MiB
MOST_DEPTH = 64
MOST_KEYS = 5_000  # at the top level; real configs have at most a few hundred

_KINDS = {
    stat.S_ISFIFO: "a named pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
    stat.S_ISDIR: "a directory",
}


def read_object(path: Path, notes: list[str] | None = None, most: int = MOST_BYTES) -> dict[str, Any]:
    """The JSON object in `path`. Raises InputError naming the file, what is wrong, and what to do.

    notes: receives a sentence for each oddity the engine accepts as well (duplicate keys, broken escapes).
    most: bytes; a larger file is refused unread.
    """
    data = read_bytes(path, most)
    _refuse_other_files(path, data)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text (byte 0x{data[error.start]:02x} at offset {error.start}); save it as UTF-8"
        ) from None
    if text.startswith("\ufeff"):
        raise InputError(f"{path} starts with a byte order mark, which the engine's reader refuses; save it without")
    value = _parse(path, text, notes if notes is not None else [])
    if not isinstance(value, dict):
        raise InputError(f"{path} holds {_named(value)}, not a JSON object; is it the file you mean?")
    return value


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The whole of a regular file of at most `most` bytes; never blocks on a pipe or device."""
    try:
        status = os.stat(path)
        for test, kind in _KINDS.items():
            if test(status.st_mode):
                raise InputError(f"{path} is {kind}, not a file; give the directory of a model or its config.json")
        if status.st_size > most:
            raise InputError(
                f"{path} has {status.st_size / 2**20:,.0f} MiB; a config.json has at most a few, and more than "
                f"{most >> 20} are not read. Is it the file you mean?"
            )
        # Non-blocking: some files of /proc look regular and would wait for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            data = file.read(most + 1) or b""
    except FileNotFoundError:
        if os.path.islink(path):
            raise InputError(f"{path} is a link to a file that is not there; copy the file itself") from None
        raise InputError(f"{path}: no such file; check the spelling") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {why(error)}") from None
    if len(data) > most:
        raise InputError(f"{path} has more than {most >> 20} MiB; is it the file you mean?")
    return data


def starts_as_gguf(path: str) -> bool:
    """Whether a regular file starts with the magic number of GGUF, whatever its name."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            return file.read(4) == b"GGUF"
    except (OSError, ValueError):
        return False


def why(error: OSError | ValueError) -> str:
    """An operating system error in words, with what to do."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "no such file or directory; check the spelling, or give an absolute path"
    if isinstance(error, PermissionError):
        return "may not be read by this user; check its permissions"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror}); check the path"
    return "cannot be a path; check the spelling"


def _refuse_other_files(path: Path, data: bytes) -> None:
    start = data[:512].lstrip().lower()
    if not start:
        raise InputError(f"{path} is empty; download it again")
    if start.startswith(b"version https://git-lfs.github.com/spec"):
        raise InputError(f"{path} is a Git LFS pointer, not the file itself; run `git lfs pull` in its repository")
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        raise InputError(
            f"{path} is a web page (a login or error page?), not JSON; download the file itself, for a gated "
            "repository with a token"
        )
    if start.startswith(b"gguf"):
        raise InputError(f"{path} is a GGUF file, not JSON; give its own name to have it recognised")
    if b"\0" in data[:4096] and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path} is a binary file, not JSON; give the directory of the model")


def _parse(path: Path, text: str, notes: list[str]) -> Any:
    seen_twice: dict[str, None] = {}

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            once: set[str] = set()
            for key, _ in pairs:
                if key in once:
                    seen_twice[key] = None
                once.add(key)
        return found

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        cut = " (the file seems to be cut off)" if error.pos >= len(text.rstrip()) else ""
        raise InputError(
            f"{path} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}{cut}; "
            "download it again or correct that place"
        ) from None
    except RecursionError:
        raise InputError(f"{path} is nested deeper than {MOST_DEPTH} levels; no model's config is") from None
    except ValueError:  # an integer of thousands of digits: Python refuses, and so does the engine
        raise InputError(f"{path} holds a number of thousands of digits; no model's config does") from None
    if _deeper_than(value, MOST_DEPTH):
        raise InputError(f"{path} is nested deeper than {MOST_DEPTH} levels; no model's config is")
    if isinstance(value, dict) and len(value) > MOST_KEYS:
        raise InputError(f"{path} has {len(value):,} keys; no model's config has more than {MOST_KEYS:,}")
    if seen_twice:
        notes.append(f"{path}: {_list(seen_twice)} given twice; the last one counts, as in the engine")
    if "\\u" in text and _scrub(value):
        notes.append(f"{path} holds half a character (a lone surrogate); it is shown as U+FFFD")
    return value


def _list(names: dict[str, None]) -> str:
    shown = [repr(name[:40].encode("utf-8", "replace").decode()) for name in list(names)[:5]]
    return ", ".join(shown) + (" and more" if len(names) > 5 else "")


def _deeper_than(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most + 1):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _scrub(root: Any) -> bool:
    """Replace lone surrogates, which cannot be printed. Says whether there were any."""
    found = False
    nodes: list[Any] = [root] if isinstance(root, dict | list) else []
    while nodes:
        node = nodes.pop()
        items = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
        for key, child in items:
            if isinstance(child, dict | list):
                nodes.append(child)
            elif isinstance(child, str) and not _printable(child):
                node[key], found = _clean(child), True
            if isinstance(key, str) and not _printable(key):
                node[_clean(key)], found = node.pop(key), True
    return found


def _printable(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= ch <= "\udfff" for ch in text)


def _clean(text: str) -> str:
    return "".join("\ufffd" if "\ud800" <= ch <= "\udfff" else ch for ch in text)


def _named(value: Any) -> str:
    names = {list: "an array", str: "a string", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
