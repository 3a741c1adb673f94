"""Logs kept as one JSON object a line: `journalctl -o json`, Docker's json-file, and loggers that write JSON."""

from __future__ import annotations

from typing import Any

import msgspec

_KEYS = ("MESSAGE", "log", "message", "msg", "textPayload", "line")  # where the text is
_LEVELS = ("levelname", "level", "severity", "log_level")
_NAMES = {
    "DEBUG": "DEBUG", "INFO": "INFO", "NOTICE": "INFO", "WARN": "WARNING", "WARNING": "WARNING", "ERROR": "ERROR",
    "CRITICAL": "CRITICAL", "FATAL": "CRITICAL",
}  # fmt: skip
_TRACEBACKS = ("exc_info", "exception", "exc_text", "traceback", "stack_trace", "stacktrace")  # beside the text


def wrapped(block: bytes) -> str:
    """The key that holds the text, if the log begins with such an object; else ""."""
    for line in block.split(b"\n", 20)[:20]:
        if line.strip():
            found = _object(line)
            key = next((key for key in _KEYS if isinstance(found.get(key), (str, list))), "")
            if key:
                return key
    return ""


def unwrap(line: bytes, key: str) -> tuple[list[bytes], str]:
    """The text of an object, a line each, and its level; a line that is none as it stands (a collector's own words)."""
    found = _object(line)
    text = found.get(key)
    if isinstance(text, list):  # journald keeps what is not plain text as numbers
        text = bytes(n for n in text if isinstance(n, int) and 0 <= n < 256)
    elif isinstance(text, str):
        text = text.encode("utf-8", "replace")
    else:
        text = line if not found else b""
    lines = text.rstrip(b"\n").split(b"\n")
    for name in _TRACEBACKS:
        if isinstance(more := found.get(name), str) and more:
            lines += more.encode("utf-8", "replace").rstrip(b"\n").split(b"\n")
    level = next((found[name] for name in _LEVELS if isinstance(found.get(name), str)), "")
    return lines, _NAMES.get(level.upper(), "")


def _object(line: bytes) -> dict[str, Any]:
    if not line.lstrip().startswith(b"{"):
        return {}
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
