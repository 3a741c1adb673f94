"""A drop-in that makes a unit start another command. Pure: a unit and words in, a text out.

Words that stay are written as the user wrote them, with their specifiers and variables; only what is new is spelled
out. So a key in `${API_KEY}` stays in its file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from textwrap import wrap

from attnfit.deploy.command import restored, secrets_of
from attnfit.errors import AttnfitError, UsageError
from attnfit.inputs import secrets
from attnfit.inputs.units import variables
from attnfit.inputs.units.commands import Arg, Exec
from attnfit.inputs.units.launch import UnitLaunch
from attnfit.inputs.units.lines import parse
from attnfit.inputs.units.specifiers import expand
from attnfit.inputs.units.unit import Unit
from attnfit.inputs.units.words import Raw, Unbalanced, spell, word_at
from attnfit.inputs.units.words import split as split_words

FILE = "zz-attnfit.conf"  # behind those of others: drop-ins count in the order of their names
_NAMED = re.compile(r"(?<!\$)(?:\$\$)*\$\{?([A-Za-z_]\w*)")  # `$$` is a dollar sign
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=")


def wanted(launch: UnitLaunch, step: Sequence[str]) -> tuple[list[str], dict[str, str | None]]:
    """(the arguments to start, variables to set or, where None, to take away) of a step that `check` offers.

    Keys, shown there as $NAME, get their values back. Raises UsageError where it cannot be told which.
    """
    real = list(restored(step, launch.words) or ())
    if not real:
        raise UsageError(
            "keys of the same name stand in the command, and it cannot be told which is which; put them into an "
            "EnvironmentFile= first"
        )
    argv, after = split(real)
    before = dict(_pair(word) for word in launch.words[: launch.assigned])
    changed: dict[str, str | None] = {name: value for name, value in after.items() if before.get(name) != value}
    return argv, changed | dict.fromkeys(before.keys() - after.keys())


def split(words: Sequence[str]) -> tuple[list[str], dict[str, str | None]]:
    """(the arguments, the variables in front of them)."""
    count = 0
    while count < len(words) and _ASSIGNED.match(words[count]):
        count += 1
    return list(words[count:]), dict(_pair(word) for word in words[:count])


def _pair(word: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    return name, value


def dropin(
    unit: Unit, index: int, argv: Sequence[str], changed: Mapping[str, str | None], why: str, before: str | None
) -> str:
    """The drop-in's text. Raises UsageError where a drop-in cannot bring that about.

    before: what stands in it now; its other settings stay.
    """
    changes = list(argv) != _seen(unit.execs[index], argv)
    words = list(_words(unit, unit.execs[index], argv)) if changes else []
    said = [f"Written by attnfit: {why}", *(no_longer_read(unit, index, " ".join(words)) if changes else ())]
    lines = [line for each in said for line in wrap(_comment(each), 100, initial_indent="# ", subsequent_indent="#   ",
                                                    break_on_hyphens=False, break_long_words=False)]  # fmt: skip
    lines += [f"# To take it away: {_comment(f'attnfit unit undo {unit.name}{_scope(unit)}')}", "[Service]"]
    kept = [each for each in parse(before or "", FILE, dropin=True) if not (changes and each.name == "ExecStart")]
    lines += [f"{each.name}={each.value}" for each in kept if each.section == "Service"]
    for name, value in sorted(changed.items()):
        origin = unit.variables.origin.get(name, "")
        if value is None:
            lines.append(f"UnsetEnvironment={name}")
        elif origin.startswith("/") and not re.search(r":\d+$", origin):
            raise UsageError(
                f"{name} is set in {origin}, which counts more than any drop-in; set it to {value!r} there"
            )
        else:
            lines.append("Environment=" + spell(f"{name}={value}", variables=False))
    if changes:
        lines.append("ExecStart=")
        for number, each in enumerate(unit.execs):
            lines.append("ExecStart=" + _broken(words if number == index else [each.raw]))
    for section in dict.fromkeys(each.section for each in kept if each.section != "Service"):
        lines.append(f"[{section}]")
        lines += [f"{each.name}={each.value}" for each in kept if each.section == section]
    return "\n".join(lines) + "\n"


def no_longer_read(unit: Unit, index: int, raw: str) -> list[str]:
    """A sentence for each of the unit's variables that the command named and, as `raw`, names no more."""
    old = unit.execs[index]
    gone = [name for name in _NAMED.findall(old.raw) if name not in _NAMED.findall(raw)] if old.expands else []
    return [
        f"the command no longer reads ${name}: what is changed in {unit.variables.origin[name]} does not reach it"
        for name in dict.fromkeys(gone)
        if name in unit.variables.origin
    ]


def _scope(unit: Unit) -> str:
    """The options that name this unit again."""
    root = f" --root {shlex.quote(str(unit.root))}" if unit.root is not None else ""
    return (" --user" if unit.user else "") + root


def _seen(old: Exec, argv: Sequence[str]) -> list[str]:
    """The old arguments, the program as `argv` names it where that is only the place it was found at."""
    found = old.argv
    if argv and "/" not in found[0] and argv[0].rpartition("/")[2] == found[0]:
        found[0] = argv[0]
    return found


def _comment(text: str) -> str:
    return " ".join(text.split()).rstrip("\\")


def _words(unit: Unit, old: Exec, argv: Sequence[str]) -> Iterator[str]:
    """`argv` as words of the setting."""
    dollar = old.expands
    program, *rest = argv
    same = program == _seen(old, argv)[0]
    if not same and old.zeroth is not None:
        raise UsageError("the program behind @ changes; change the unit by hand")
    yield old.flags + (old.program.raw if same else spell(program, variables=False))
    if old.zeroth is not None:
        yield old.zeroth.raw
    values = [value for arg in old.args for value in arg.values]
    raws = {value: arg.raw for arg in old.args if len(arg.values) == 1 for value in arg.values}
    matcher = SequenceMatcher(None, values, rest, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            yield from _kept(old.args, i1, i2, len(values), dollar)
            continue
        pairs = values[i1:i2] if i2 - i1 == j2 - j1 else [None] * (j2 - j1)
        for before, word in zip(pairs, rest[j1:j2], strict=True):
            told = retold(unit, raws[before], before, word, dollar) if before in raws else None
            yield told or spell(word, variables=dollar)


def retold(unit: Unit, raw: str, old: str, new: str, dollar: bool) -> str | None:
    """The word `raw`, which became `old`, changed so that it becomes `new` and the rest of it stays as it is written:
    a shell's command line, say, with variables of the unit in it. None: that is not certain."""
    before, after = re.findall(r"\s+|\S+", old), re.findall(r"\s+|\S+", new)
    for tag, i1, i2, j1, j2 in reversed(SequenceMatcher(None, before, after, autojunk=False).get_opcodes()):
        if tag == "equal":
            continue
        gone, put = "".join(before[i1:i2]), "".join(after[j1:j2])
        if re.search(r"[\"'\\]", put) or not put.isprintable():  # a line's end would end the setting
            return None
        put = put.replace("%", "%%").replace("$", "$$" if dollar else "$")
        leads = ("".join(before[i1 - n : i1]) for n in range(i1 + 1))
        lead = next((lead for lead in leads if lead + gone and raw.count(lead + gone) == 1), None)
        if lead is None:
            return None
        raw = raw.replace(lead + gone, lead + put)
    return raw if _becomes(unit, raw, dollar) == [new] else None


def _becomes(unit: Unit, raw: str, dollar: bool) -> list[str] | None:
    try:
        word = word_at(raw, 0)
        if word is None or word.end != len(raw):
            return None
        value = expand(word.value, unit.naming, unit.name)
    except (Unbalanced, AttnfitError):
        return None
    return variables.expand(value, unit.variables.values)[0] if dollar else [value]


def _kept(args: Sequence[Arg], start: int, end: int, total: int, dollar: bool) -> Iterator[str]:
    """The words that became the arguments `start` to `end`; one that became more than these is written out."""
    at = 0
    for arg in args:
        first, at = at, at + len(arg.values)
        if first >= start and at <= end and (arg.values or start <= first < end or first == end == total):
            yield arg.raw
        elif arg.values:
            inside = arg.values[max(start - first, 0) : max(end - first, 0)]
            yield from (spell(value, variables=dollar) for value in inside)


def _broken(words: Sequence[str]) -> str:
    """Long options on lines of their own. No other word begins one: `#` would make it a comment."""
    text = words[0]
    for word in words[1:]:
        text += f" \\\n    {word}" if word.startswith("--") and len(word) > 2 else f" {word}"
    return text


def holds_key(text: str) -> bool:
    """Whether the text has a key, token or password in it, which not everybody may read."""
    try:
        commands = list(_commands(text))
    except Unbalanced:
        return True
    return any(secrets.hide(words) != words or secrets.values(words) for found in commands for words in _read(found))


def secrets_in(text: str) -> dict[str, str]:
    """Every key, token or password of a unit's text, as it is written there -> what stands for it."""
    found: dict[str, str] = {}
    for words in _commands(text, skip=True):
        own = {value: name for each in _read(words) for value, name in secrets_of(each, {}).items()}
        spelt = (word for word in words if any(value in word.value and value not in word.raw for value in own))
        found |= own | {word.raw: secrets.HIDDEN for word in spelt}  # with escapes, the word as a whole
    return found


def _commands(text: str, *, skip: bool = False) -> Iterator[list[Raw]]:
    """The words of each setting, behind the variables that are set beside it. skip: what cannot be read is left out,
    instead of Unbalanced raised."""
    settings: list[tuple[str, list[Raw]]] = []
    for setting in parse(text, FILE, dropin=True):
        try:
            settings.append((setting.name, split_words(setting.value)))
        except Unbalanced:
            if not skip:
                raise
    assigned = [word for name, words in settings if name == "Environment" for word in words]
    for name, words in settings:
        yield [*assigned, *words] if name == "ExecStart" else words


def _read(words: Sequence[Raw]) -> Iterator[list[str]]:
    """The values of the words: as they are written, and with one dollar sign for `$$`, as a shell gets them."""
    plain = [word.value for word in words]
    yield plain
    if any("$$" in word for word in plain):
        yield [word.replace("$$", "$") for word in plain]
