"""ExecStart=: a line to the commands it holds, each word kept as it is written beside what it becomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from attnfit.errors import InputError
from attnfit.inputs.units import variables
from attnfit.inputs.units.lines import Setting
from attnfit.inputs.units.specifiers import Naming, expand
from attnfit.inputs.units.words import SPACE, Raw, Unbalanced, word_at


class Arg(msgspec.Struct, frozen=True):
    """One word of the setting, and the arguments that come of it: none or several where it is `$NAME`."""

    raw: str
    values: tuple[str, ...]


class Exec(msgspec.Struct, frozen=True, kw_only=True):
    """One command of ExecStart=."""

    flags: str  # the characters in front of the program: - @ : + !
    program: Arg
    args: tuple[Arg, ...]
    place: str
    zeroth: Arg | None = None  # behind `@`: the name the program sees as its own
    missing: tuple[str, ...] = ()  # variables it asks for that nobody sets

    @property
    def argv(self) -> list[str]:
        return [*self.program.values, *(value for arg in self.args for value in arg.values)]

    @property
    def expands(self) -> bool:
        """Whether `$` means anything in it."""
        return ":" not in self.flags

    @property
    def raw(self) -> str:
        """The command as a setting, each word as it was written."""
        words = [self.flags + self.program.raw, *([self.zeroth.raw] if self.zeroth else [])]
        return " ".join([*words, *(arg.raw for arg in self.args)])


def commands(setting: Setting, naming: Naming, values: Mapping[str, str]) -> list[Exec]:
    """The commands of one ExecStart= line. Raises InputError for what systemd would refuse to load."""
    try:
        return list(_commands(setting, naming, values))
    except Unbalanced as error:
        raise InputError(f"{setting.place}: {setting.name}= has a word where {error}; correct the quotes") from None


def _commands(setting: Setting, naming: Naming, values: Mapping[str, str]) -> Iterator[Exec]:
    text, at = setting.value, 0
    while (first := word_at(text, at)) is not None:
        at = first.end
        if first.value == ";":
            continue
        flags = _flags(first.value)
        missing: list[str] = []
        args: list[Arg] = []
        while at < len(text):
            if text[at] == ";" and (at + 1 == len(text) or text[at + 1] in SPACE):
                at += 1
                break
            if text.startswith("\\;", at) and (at + 2 == len(text) or text[at + 2] in SPACE):
                word = Raw("\\;", ";", at + 2 + len(text[at + 2 :]) - len(text[at + 2 :].lstrip(SPACE)))
            else:
                found = word_at(text, at)
                assert found is not None  # spaces behind a word were skipped
                word = found
            at = word.end
            args.append(_arg(word, naming, setting.place, values if ":" not in flags else None, missing))
        program = _program(first, flags, naming, setting)
        if "@" in flags and not args:
            raise InputError(f"{setting.place}: behind @ the program's own name must follow; systemd refuses the unit")
        zeroth = args.pop(0) if "@" in flags else None
        yield Exec(
            flags=flags, program=program, args=tuple(args), zeroth=zeroth, place=setting.place, missing=tuple(missing)
        )


def _flags(word: str) -> str:
    """The prefixes of a program: each once, `!` twice, and none of `+` and `!` beside the other."""
    taken = ""
    for c in word:
        privileged = "+" in taken or "!" in taken
        again = c == "!" and taken.count("!") == 1 and "+" not in taken
        if (c in "-@:|" and c not in taken) or (c in "+!" and not privileged) or again:
            taken += c
        else:
            break
    return taken


def _program(first: Raw, flags: str, naming: Naming, setting: Setting) -> Arg:
    path = expand(first.value[len(flags) :], naming, setting.place)
    raw = first.raw
    raw = raw[len(flags) :] if raw.startswith(flags) else raw[0] + raw[1 + len(flags) :]
    why = (
        "is empty" if not path
        else "is a directory" if path.endswith("/")
        else "is neither a plain name nor an absolute path" if "/" in path and not path.startswith("/")
        else "has control characters" if any(ord(c) < 32 or ord(c) == 127 for c in path)
        else ""
    )  # fmt: skip
    if why:
        raise InputError(f"{setting.place}: the program {path!r} of {setting.name}= {why}; give its absolute path")
    return Arg(raw, (path,))


def _arg(word: Raw, naming: Naming, place: str, values: Mapping[str, str] | None, missing: list[str]) -> Arg:
    value = expand(word.value, naming, place)
    if values is None:
        return Arg(word.raw, (value,))
    found, unset = variables.expand(value, values)
    missing += unset
    return Arg(word.raw, tuple(found))
