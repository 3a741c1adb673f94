"""Cuts a source file into its top-level statements without parsing it.

Parsing is most of a cold start, and of a 3,000-line file a question needs a few classes. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(  # plain text, then one token: so that the scan is a few long steps
    r"""[^\#'"\[({\])}\n]*+(?:
        (?P<open>[\[({]) | (?P<close>[\])}])
      | (?P<line>(?<!\\)\n(?=[^\s\#\])}]))
      | \n[ \t]*+ | \#[^\n]*+
      | '{3}[^'\\]*+(?:(?:\\.|'(?!''))[^'\\]*+)*+'{3} | "{3}[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*+"{3}
      | '[^'\\\n]*+(?:\\.[^'\\\n]*+)*+' | "[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"
      | ['"])""",
    re.VERBOSE | re.DOTALL,
)
_CONTINUES = re.compile(r"(?:else|elif|except|finally)\b")
_DEFINITION = re.compile(r"(?:async[ ]+)?(?:def|class)[ ]+(\w+)")


class Chunk:
    """Consecutive lines holding one top-level statement (or several on one line)."""

    __slots__ = ("line", "name", "text")

    def __init__(self, text: str, line: int) -> None:
        self.text, self.line = text, line  # line: 1-based number of the first line
        self.name = ""  # of a function or class
        for piece in text.split("\n"):
            match = _DEFINITION.match(piece)
            if match:
                self.name = match[1]
                break
            if not piece.startswith(("@", " ", ")", "]", "}", "#")) and piece:
                break


def split(source: str) -> Iterator[Chunk]:
    """The chunks of a file in order. Concatenated they are the file (except its leading comments)."""
    starts = [0]
    depth = 0
    for token in _TOKEN.finditer(source):
        kind = token.lastgroup
        if kind == "open":
            depth += 1
        elif kind == "close":
            depth -= 1
        elif kind == "line" and depth == 0:
            starts.append(token.end())
    line, decorated = 1, False
    begin, first = 0, 1
    for index, start in enumerate(starts):
        end = starts[index + 1] if index + 1 < len(starts) else len(source)
        continues = decorated or _CONTINUES.match(source, start) is not None
        if not continues and start > begin:
            yield Chunk(source[begin:start], first)
            begin, first = start, line
        decorated = source.startswith("@", start)
        line += source.count("\n", start, end)
    yield Chunk(source[begin:], first)
