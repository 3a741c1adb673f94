"""Text for a terminal: what a file or a flag says must not move the cursor, ring, recolour or turn the line around."""

from __future__ import annotations

import re
import textwrap

WIDTH = 80
_C0 = r"\x00-\x08\x0b-\x1f"  # without tab and newline
_REST = r"\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069"  # C1, marks and overrides of direction
_CONTROL = re.compile(f"[{_C0}{_REST}]")
_STYLED = re.compile(f"(\x1b\\[[0-9;]*m)|[{_C0}{_REST}]")


def printable(text: str) -> str:
    r"""`text` with every control character as `\u001b`."""
    return _CONTROL.sub(lambda found: _escaped(found[0]), text)


def styled(text: str) -> str:
    """The same for a text that carries our own colours: only those are let through."""
    return _STYLED.sub(lambda found: found[1] or _escaped(found[0]), text)


def wrap(text: str, first: str, rest: str | None = None) -> list[str]:
    """Lines of at most 80 columns, words whole: `first` in front of the first, `rest` (default: as wide) of others."""
    rest = " " * len(first) if rest is None else rest
    return textwrap.wrap(printable(text), WIDTH, initial_indent=first, subsequent_indent=rest,
                         break_long_words=False, break_on_hyphens=False) or [first.rstrip()]  # fmt: skip


def _escaped(character: str) -> str:
    return f"\\u{ord(character):04x}"
