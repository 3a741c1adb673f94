"""Text of a request, a prompt or an answer: whatever it says, it is no evidence of what the server did.

A logged request may go on over many lines. Those have no logger's prefix and stand inside a quote that the first line
opens, or behind a prompt that is printed without quotes, up to the next line that a logger wrote.
"""

from __future__ import annotations

import re

from attnfit.inputs.log import Line

# What is logged of a request: its own line quotes, whatever is said there.
_REQUEST = re.compile(r"Received request|Receive: obj=|Finish: obj=|GenerateReqInput|Generated response")
# Names that what a user sent, or was sent, stands behind.
_NAMES = (
    r"(?:user|system|assistant|chat|input|full|raw|last|the)?[ _]?(?:prompts?|messages|questions?|request (?:text|body)"
    r"|user (?:message|input|text|said|asked)|user_(?:message|input|text)|query|asked|generated[ _]text|outputs?"
    r"|content|replied|(?:assistant|model)[ _](?:reply|answer|response))"
)
_QUOTED = re.compile(
    rf"(?i)(?<![\w.]){_NAMES}['\"]?\s*[:=]\s*(?:\w+\(.{{0,200}}?)?[\[{{(]*\s*(?P<quote>\"\"\"|'''|['\"`])"
)
_FIELD = re.compile(r"\b(?:text|prompt|output|content|input_text)['\"]?\s*[:=]\s*[\[({]*(?P<quote>['\"])")
_BARE = re.compile(
    r"(?i)(?<![\w.])(?:(?:user|chat|raw|full|last)[ _](?:prompt|message|input|question|query)|prompt"
    r"|request (?:text|body)|(?:user|request|client) (?:asked|said|wrote)|asked)\s*[:=]\s*(?!['\"`\[{(]|None|\d)"
)
_OPENED = re.compile(r"(?:^|[\s:=(\[{,])'(?!(?:[^']|\w'\w)*'(?:\W|$))")  # an apostrophe in a word opens nothing
_NEXT = re.compile(r"(?:[:=\[({,]\s*)(?P<quote>['\"])")
_HINTS = (  # one of them stands in every line that opens a quote
    "prompt", "message", "question", "request", "query", "asked", "generated", "output", "content", "repl", "answer",
    "response", "said", "wrote", "receive", "finish", "input",
)  # fmt: skip
_MOST = 400  # lines of a prompt that no logger's line ends


def may_quote(text: str) -> bool:
    lower = text.lower()
    return any(hint in lower for hint in _HINTS)


class Quoted:
    """Follows a log, line by line."""

    def __init__(self) -> None:
        self._open: str | None = None  # the quote that closes it; "": none was opened
        self._worker = ""
        self._left = 0
        self._number, self._head = 0, ""
        self._within = False  # one record that holds several lines: its end is the end of what was logged

    @property
    def open(self) -> bool:
        return self._open is not None

    def read(self, line: Line) -> str | None:
        """What of a line is the program's own words; None: nothing of it, it goes on with what somebody sent."""
        if self._within and line.number != self._number:
            self._open, self._within = None, False
        if self._open is not None and line.worker in ("", self._worker):
            # A line that another process wrote ends nothing; nor does one that was pasted from a log without the name
            # that this process puts in front of its lines.
            pasted = bool(self._open and self._worker) and not line.worker
            self._within = line.number == self._number
            # A logger that puts its prefix in front of each line of a message: the same, to the second and the place.
            same = line.own and line.head == self._head
            if self._left and (not line.level or pasted or same or self._within):
                self._left -= 1
                if self._open and line.text.count(self._open) % 2 and _closes(line.text, 0, self._open) >= 0:
                    self._open = None  # two of them in a line are a quote within the quote
                return None
            self._open = None
        return self._own(line)

    def _own(self, line: Line) -> str:
        text = line.text
        if _REQUEST.search(text):
            found = _FIELD.search(text) or _QUOTED.search(text)
            if found is not None:
                self._opens(line, found["quote"], found.end())
            elif _BARE.search(text):
                self._begin(line, "")
            return ""
        if (found := _QUOTED.search(text)) is not None:
            end = self._opens(line, found["quote"], found.end())
            return text[: found.end()] + (text[end:] if end >= 0 else "")
        if (bare := _BARE.search(text)) is not None:
            self._begin(line, "")
            return text[: bare.end()]
        return text

    def _opens(self, line: Line, quote: str, at: int) -> int:
        """Where the quote, and those behind it, are closed in their own line; -1: not there."""
        end = _closes(line.text, at, quote)
        while end >= 0 and (more := _NEXT.search(line.text, end + len(quote))) is not None:
            quote = more["quote"]
            end = _closes(line.text, more.end(), quote)
        if end < 0:
            self._begin(line, quote)
        return end

    def _begin(self, line: Line, quote: str) -> None:
        self._open, self._worker, self._left = quote, line.worker, _MOST if line.level else _MOST // 10
        self._number, self._head = line.number, line.head


def _closes(text: str, at: int, quote: str) -> int:
    """Where a quote ends: an apostrophe in a word does not end one."""
    place = text.find(quote, at)
    while place >= 0:
        after = text[place + len(quote) : place + len(quote) + 1]
        before = place
        while before and text[before - 1] == "\\":
            before -= 1
        escaped = (place - before) % 2
        if not escaped and (after in ("", *",)]}>;") or (after in " \"'" and quote != "'")):
            return place
        place = text.find(quote, place + 1)
    return -1


def quotes_before(text: str, at: int) -> bool:
    """Whether a quote is open at a place of a line."""
    before = text[:at]
    if before.count('"') % 2 or before.count("`") % 2:
        return True
    return bool(_OPENED.search(before))
