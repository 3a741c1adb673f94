"""Words of a systemd setting: quotes and C escapes (systemd.syntax(7)), and back again.

Text is handled as str with undecodable bytes as surrogates, as Python hands it to a process.
"""

from __future__ import annotations

import re
from typing import NamedTuple

SPACE = " \t\n\r"
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " "} | {
    c: c for c in "\\\"'"
}
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})")


class Raw(NamedTuple):
    """A word as written, what it means before specifiers and variables, and where the next may begin."""

    raw: str
    value: str
    end: int


class Unbalanced(ValueError):
    """A quote that is never closed, or a backslash with nothing behind it."""


def word_at(text: str, start: int) -> Raw | None:
    """The word at or after `start`; None where only space is left. Raises Unbalanced.

    An escape that systemd does not know stays as it stands, as there.
    """
    at, end = start, len(text)
    while at < end and text[at] in SPACE:
        at += 1
    if at == end:
        return None
    begin, out, quote = at, [], ""
    while at < end:
        c = text[at]
        if c == "\\":
            value, at = _escape(text, at + 1)
            out.append(value)
            continue
        at += 1
        if quote:
            quote = "" if c == quote else quote
            if not quote:
                continue
            out.append(c)
        elif c in "\"'":
            quote = c
        elif c in SPACE:
            at -= 1
            break
        else:
            out.append(c)
    if quote:
        raise Unbalanced(f"a {quote} is never closed")
    raw = text[begin:at]
    while at < end and text[at] in SPACE:
        at += 1
    return Raw(raw, _joined(out), at)


def _escape(text: str, at: int) -> tuple[str, int]:
    if at >= len(text):
        raise Unbalanced("it ends in a lone backslash")
    if text[at] in _SIMPLE:
        return _SIMPLE[text[at]], at + 1
    match = _HEX.match(text, at)
    if match:
        if byte := match[1] or match[4]:
            number = int(byte, 16 if match[1] else 8)
            if 0 < number < 256:
                return chr(number) if number < 128 else chr(0xDC00 + number), match.end()
        else:
            number = int(match[2] or match[3], 16)
            if 0 < number < 0x110000 and not 0xD800 <= number < 0xE000:
                return chr(number), match.end()
    return "\\" + text[at], at + 1


def _joined(parts: list[str]) -> str:
    """Bytes written one by one (`\\xc3\\xa4`) may make a character together."""
    text = "".join(parts)
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def split(text: str) -> list[Raw]:
    """All words of a setting such as Environment=. Raises Unbalanced."""
    found: list[Raw] = []
    at = 0
    while (word := word_at(text, at)) is not None:
        found.append(word)
        at = word.end
    return found


def split_relaxed(text: str) -> list[str]:
    """The words of a variable's value where `$NAME` stands as a word of its own: quotes count, escapes do not."""
    found: list[str] = []
    at, end = 0, len(text)
    while True:
        while at < end and text[at] in SPACE:
            at += 1
        if at == end:
            return found
        out, quote = [], ""
        while at < end and (quote or text[at] not in SPACE):
            c = text[at]
            at += 1
            if c == "\\":  # the next character stands for itself
                out.append(text[at : at + 1])
                at += 1
            elif quote:
                if c == quote:
                    quote = ""
                else:
                    out.append(c)
            elif c in "\"'":
                quote = c
            else:
                out.append(c)
        found.append("".join(out))


_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./~^\[\]{}()<>!?*&#|$-]+")
_ESCAPES = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"} | {
    "\\": "\\\\",
    '"': '\\"',
}


def spell(value: str, *, variables: bool = True, specifiers: bool = True) -> str:
    """One argument as a setting must write it so that systemd hands on exactly `value`.

    variables: a `$` would be read as one (not so behind the prefix `:` and in Environment=).
    specifiers: a `%` would be read as one.
    """
    if specifiers:
        value = value.replace("%", "%%")
    if variables:
        value = value.replace("$", "$$")
    if value != ";" and _PLAIN.fullmatch(value):
        return value
    return '"' + "".join(_spelled(c) for c in value) + '"'


def _spelled(c: str) -> str:
    if c in _ESCAPES:
        return _ESCAPES[c]
    if 0xDC80 <= ord(c) <= 0xDCFF:  # a byte that is no UTF-8
        return f"\\x{ord(c) - 0xDC00:02x}"
    return f"\\x{ord(c):02x}" if ord(c) < 32 or ord(c) == 127 else c
