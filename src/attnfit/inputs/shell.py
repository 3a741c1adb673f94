"""Reading a shell command line without a shell: words, quotes, operators; nothing is ever run.

What a shell would have to execute to know (`$(...)`, backticks) is refused; `$NAME` is kept as it stands unless the
caller knows its value.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple

from attnfit.errors import UsageError

_NAME = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?::?-([^${}`]*))?\})")
_OPERATORS = ("&&", "||", ";;", "&>>", "&>", "|&", ";", "|", "&", "(", ")", "\n")
_REDIRECT = re.compile(r"\d*(?:>>|>\||>&|<&|<<<|<<|>|<)(?:&?\d+-?|&-)?")


class Word(NamedTuple):
    """One word or operator: the text as written, its value, and where it stands."""

    raw: str
    value: str
    start: int
    end: int
    operator: bool = False
    unset: tuple[str, ...] = ()  # variables it names that nobody gave a value
    assignment: bool = False  # NAME=... with the name and "=" unquoted


def words(text: str, variables: Mapping[str, str]) -> list[Word]:
    """Split `text` as a POSIX shell does. Raises UsageError for unbalanced quotes and what must be executed."""
    out: list[Word] = []
    at, end = 0, len(text)
    while at < end:
        c = text[at]
        if c in " \t\r":
            at += 1
        elif text.startswith("\\\n", at) or text.startswith("\\\r\n", at):
            at += 2 if text[at + 1] == "\n" else 3
        elif c == "#":
            newline = text.find("\n", at)
            at = newline if newline >= 0 else end
        elif operator := next((o for o in _OPERATORS if text.startswith(o, at)), None):
            out.append(Word(operator, operator, at, at + len(operator), operator=True))
            at += len(operator)
        elif redirect := _REDIRECT.match(text, at):
            out.append(Word(redirect[0], redirect[0], at, redirect.end(), operator=True))
            at = redirect.end()
        else:
            word = _word(text, at, variables)
            out.append(word)
            at = word.end
    return out


def _word(text: str, start: int, variables: Mapping[str, str]) -> Word:
    value: list[str] = []
    unset: list[str] = []
    at, end = start, len(text)
    quoted_from = end
    while at < end:
        c = text[at]
        if c in " \t\r\n;|&()<>":
            break
        if c == "\\":
            quoted_from = min(quoted_from, at)
            if text.startswith("\\\n", at):
                at += 2
                continue
            if at + 1 >= end:
                raise UsageError("the command ends in a lone backslash; finish the line or drop it")
            value.append(text[at + 1])
            at += 2
        elif c == "'":
            quoted_from = min(quoted_from, at)
            close = text.find("'", at + 1)
            if close < 0:
                raise _unbalanced("'")
            value.append(text[at + 1 : close])
            at = close + 1
        elif c == '"':
            quoted_from = min(quoted_from, at)
            at = _double(text, at + 1, value, unset, variables)
        elif c in "$`":
            at = _dollar(text, at, value, unset, variables)
        else:
            value.append(c)
            at += 1
    raw = text[start:at]
    named = re.match(r"[A-Za-z_]\w*\+?=", raw)
    assignment = bool(named) and start + named.end() <= quoted_from if named else False
    return Word(raw, "".join(value), start, at, unset=tuple(unset), assignment=assignment)


def _double(text: str, at: int, value: list[str], unset: list[str], variables: Mapping[str, str]) -> int:
    while at < len(text):
        c = text[at]
        if c == '"':
            return at + 1
        if c == "\\" and at + 1 < len(text):
            following = text[at + 1]
            value.append("" if following == "\n" else following if following in '$`"\\' else "\\" + following)
            at += 2
        elif c in "$`":
            at = _dollar(text, at, value, unset, variables)
        else:
            value.append(c)
            at += 1
    raise _unbalanced('"')


def _dollar(text: str, at: int, value: list[str], unset: list[str], variables: Mapping[str, str]) -> int:
    if text[at] == "`" or text.startswith("$(", at):
        shown = text[at : at + 30].splitlines()[0]
        raise UsageError(f"{shown!r} must be run by a shell to be known; put its result into the command instead")
    match = _NAME.match(text, at)
    if match is None:
        if text.startswith("${", at):
            raise UsageError(f"{text[at : at + 20]!r} is more than a plain variable; put its value into the command")
        value.append("$")
        return at + 1
    name = match[1] or match[2]
    if name in variables:
        value.append(variables[name])
    elif match[3] is not None:
        value.append(match[3])
    else:
        value.append(match[0])
        unset.append(name)
    return match.end()


def variable(text: str) -> str | None:
    """The first variable that stands in `text` unexpanded, as `$NAME`, or None."""
    found = _NAME.search(text) if "$" in text else None
    return f"${found[1] or found[2]}" if found else None


def _unbalanced(quote: str) -> UsageError:
    return UsageError(f"the command has an unbalanced {quote}; close the quote")


def segments(found: list[Word]) -> list[tuple[list[Word], str]]:
    """Simple commands and the operator after each. Redirections stay out of a command's words."""
    out: list[tuple[list[Word], str]] = []
    current: list[Word] = []
    skip = False
    for word in found:
        if word.operator and not (redirection := bool(_REDIRECT.fullmatch(word.raw)) or word.raw in ("&>", "&>>")):
            out.append((current, word.raw))
            current = []
        elif word.operator:
            skip = redirection and word.raw[-1] in "<>|"
        elif skip:
            skip = False
        else:
            current.append(word)
    out.append((current, ""))
    return [(s, o) for s, o in out if s]


def redirections(found: list[Word], text: str, start: int, end: int) -> str:
    """The redirections written between two places of a command, to be kept when its words are replaced."""
    pieces = []
    for i, word in enumerate(found):
        if word.operator and start < word.start < end:
            last = found[i + 1] if word.raw[-1] in "<>|" and i + 1 < len(found) else word
            pieces.append(" " + text[word.start : last.end])
    return "".join(pieces)


def quote(text: str) -> str:
    """One word for a POSIX shell."""
    return shlex.quote(text)
