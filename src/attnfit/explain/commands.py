"""Launch commands that stand in a log: as a shell shows them, as a launcher prints them, bare, or as a list of words.

A command that is only spoken of ("try PROGRAM serve", a usage line) is none. What is taken was understood whole.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

from attnfit.engines.entry import entry_points
from attnfit.engines.log import literal
from attnfit.errors import UsageError
from attnfit.inputs.command import Command, parse_command
from attnfit.inputs.log import Line
from attnfit.inputs.wrappers import CONTAINERS, SHELLS, WRAPPERS

_MOST, _MOST_TRIES = 64, 512  # commands kept, and lines looked at for one
_MOST_LINES = 80  # of one command
_LONGEST = 20_000  # characters of one
_SHELL = re.compile(r"[;&|<>`$()]")  # a line with more in it than words: the whole of it is the command
_PROMPT = re.compile(
    r"(?:\([\w.+-]{1,60}\) ?)*(?:"
    r"[$%#>❯»] +|\++ +"  # `$ `, root's `# `, and what `set -x` puts in front
    r"|➜ +\S{1,80} +(?:git:\(\S{1,80}\) +(?:✗ +)?)?"
    r"|\[?[\w.-]{1,80}@[\w.-]{1,80}[: ][^$#%]{0,200}[$#%] +"  # user@host:dir$
    r"|(?:ba|z|da)?sh-[\d.]{1,10}[$#] +)"
)
_LABEL = re.compile(
    r"(?i)(?:^|[\s\"'\]>:-])(?:(?:\w+[ _-])?(?:command|cmd|cmdline|argv)(?:[ _]line)?['\"]?(?: is)?\s*[:=]|ExecStart="
    r"|(?:executing|running|launching|starting|exec)(?: \w+)?:|(?:running|executing|exec)(?= )"
    r"|(?:cmd|entrypoint)(?= \[))\s*(?P<rest>\S.*)$"
)
_SPOKEN = re.compile(
    r"(?i)\b(?:try|please|use|using|usage|e\.g\.|example|instead|hint|consider|should|could|recommend\w*)\b"
)
_PROSE = re.compile(r"(?:\s[A-Za-z][a-z']+[,.;:!?]?){3,}\s*$")  # a sentence goes on behind it
_WORD = re.compile(  # of a sentence
    r"(?i)(?:an?|and|are|as|at|because|but|by|can(?:not)?|crash(?:ed|es)|does|dies|errors?|exits|fail(?:s|ed)|for|from"
    r"|gives|got|hangs|ha[sv]e?|here|if|in|is|it|like|me|my|not|of|on|or|our|out|so|still|than|that|the|then|there|these|they|this"
    r"|to|was|we|when|where|which|while|will|with(?:out)?|works|would|you|your)[.,:;!?]*"
)
_COMMENT = re.compile(r"\s#\s[^'\"]*$|\s\(code=\w+, [^()]*\)$")  # the last as `systemctl status` puts it behind
_PLACE = re.compile(r"[\[\]<>{}…]|\.\.\.")  # in a usage line's words


@cache
def launch_words() -> tuple[str, ...]:
    """What stands in a line that starts a server."""
    tables = entry_points()
    programs = [f"{name} {sub}".strip() for t in tables for name, subs in t.programs.items() for sub in subs]
    return (*programs, *(module for t in tables for module in t.modules), *(s for t in tables for s in t.scripts))


def launch_marks() -> set[str]:
    """The fewest words by which a long log is searched for a command: `PROGRAM SUBCOMMAND`, `-m PACKAGE.`"""
    tables = entry_points()
    modules = {f"-m {module.partition('.')[0]}." for t in tables for module in t.modules}
    return modules | {f"{name} {sub}".strip() for t in tables for name, subs in t.programs.items() for sub in subs}


@cache
def _hint() -> re.Pattern[str]:
    """A name that stands in every one of them."""
    names = {name for t in entry_points() for name in t.programs} | {
        m.partition(".")[0] for t in entry_points() for m in t.modules
    }
    return re.compile("|".join(map(re.escape, (*names, *CONTAINERS))))


@cache
def _maybe() -> re.Pattern[str]:
    """Lines that may hold a command."""
    programs = [
        rf"\b{re.escape(name)}\b.{{1,9}}\b{re.escape(s)}\b"
        for t in entry_points()
        for name, subs in t.programs.items()
        for s in subs
        if s
    ]
    runs = [rf"\b{name}\b.{{0,200}}\brun\b" for name in CONTAINERS]
    return re.compile("|".join((*programs, *map(re.escape, launch_words()), *runs)))


def may_hold(text: str) -> bool:
    return len(text) <= _LONGEST and (
        text.endswith("\\") or (_hint().search(text) and _maybe().search(text)) is not None
    )


@dataclass
class Commands:
    """Those of one log, in their order."""

    found: list[tuple[int, Command]] = field(default_factory=list)  # (line, command)
    tries: int = 0
    open: str = ""  # one that goes on
    _joined: int = 0  # lines of it
    _joins: str = ""  # what stands between them: a space behind a backslash, a line's end within a quote
    _number: int = 0
    _worker: str = ""

    def read(self, line: Line) -> None:
        """Takes the next line."""
        text = line.text
        if self.open:
            if line.worker == self._worker and not line.level and self._joined < _MOST_LINES:
                more = re.sub(r"^(?:> ?)?\s*", "", text) if self._joins == " " else text
                self._look(self.open + self._joins + more)
                return
            self.end()
        if not may_hold(text) or self.tries >= _MOST_TRIES:
            return
        self._number, self._worker, self._joined = line.number, line.worker, 0
        self._look(text)

    def _look(self, text: str) -> None:
        """Whether what stands there so far is a whole command."""
        self._joined += 1
        if text.endswith("\\"):
            self.open, self._joins = text[:-1].rstrip(), " "
            return
        self.open = text
        try:
            shlex.split(text)
        except ValueError as error:
            if "closing" in str(error) and len(text) < _LONGEST and not _SPOKEN.search(text):
                self._joins = "\n"
                return
        self.end()

    def end(self) -> None:
        """Nothing follows of the one that is open."""
        if not self.open:
            return
        text, self.open = self.open, ""
        self.tries += 1
        if len(self.found) < _MOST and (command := read(text)) is not None:
            self.found.append((self._number, command))

    def of(self, first: int, before: int, after: int) -> Iterator[Command]:
        """Those of the start whose first line is given, best first; `before` and `after` are its neighbours' lines."""
        own = [(n, c) for n, c in self.found if before < n < after]
        yield from (c for n, c in own if n <= first or before <= 1)
        yield from (c for n, c in own if n > first and before > 1)
        yield from (c for n, c in reversed(self.found) if n <= before)


def read(text: str) -> Command | None:
    """The command that a line is, or shows; None where it shows none."""
    for words, shown in _candidates(text):
        try:
            command = parse_command(words)
        except (UsageError, ValueError):
            continue
        if _meant(command, words, shown):
            return command
    return None


def _candidates(text: str) -> Iterator[tuple[Sequence[str] | str, bool]]:
    """(words, whether something in front of it says that it is a command)."""
    text = _COMMENT.sub("", text.strip())
    if (prompt := _PROMPT.match(text)) is not None:
        yield from ((words, True) for words in _words(text[prompt.end() :]))
    if (label := _LABEL.search(text)) is not None and not _SPOKEN.search(text[: label.start("rest")]):
        rest = label["rest"].strip()
        if rest[:1] in "\"'`" and rest.endswith(rest[:1]) and rest.count(rest[:1]) == 2:
            rest = rest[1:-1]
        yield from ((words, True) for words in _words(rest))
    yield from ((words, False) for words in _words(text))


def _words(text: str) -> Iterator[Sequence[str] | str]:
    if text[:1] in "[(":
        listed = literal(text[: text.rfind("]" if text[0] == "[" else ")") + 1])
        if isinstance(listed, (list, tuple)) and listed and all(isinstance(word, str) for word in listed):
            yield list(listed)
        return
    if _SHELL.search(text) is not None:
        yield text
        return
    try:
        yield shlex.split(text)
    except ValueError:
        return


def _meant(command: Command, words: Sequence[str] | str, shown: bool) -> bool:
    """Whether that is a command, and no sentence that begins like one."""
    known = WRAPPERS.keys() | SHELLS | CONTAINERS
    if any(name not in known and not (shown and ("/" in name or "." in name)) for name in command.wrappers):
        return False  # a word of a sentence
    argv = command.argv
    text = words if isinstance(words, str) else " ".join(words)
    if any(word in ("...", "…") for word in text.split()) or _PROSE.search(text) or _PLACE.search(command.model or ""):
        return False
    if any(_WORD.fullmatch(word) and not before.startswith("-") for before, word in pairwise(argv)):
        return False
    positional = command.form != "module" and argv and not argv[0].startswith("-")
    if positional and len(argv) > 1 and not argv[1].startswith("-"):
        return False
    named = command.model is not None or any(word.startswith("--config") for word in argv)
    if not named:
        return False
    flags = any(word.startswith("-") for word in argv)
    return shown or flags or "/" in (command.model or "")
