"""What a unit's launch comes to, and the drop-in that would put it right: read, judged and looked over; not written."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from attnfit.core import Report, Step
from attnfit.deploy import dropin, unitfile
from attnfit.deploy.checked import is_here
from attnfit.deploy.command import secrets_of
from attnfit.errors import InputError, UsageError
from attnfit.inputs.secrets import without_passwords
from attnfit.inputs.units.launch import UnitLaunch, server_of
from attnfit.inputs.units.unit import Unit, read_unit
from attnfit.report.redact import masked

_NO_TEXT = re.compile("[\udc80-\udcff]")  # bytes of a comment that are no UTF-8, as "surrogateescape" reads them
Check = Callable[..., Report]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """How the launch is judged: as on the command line of `check`."""

    gpu: str = "auto"
    count: int | None = None
    engine: str | None = None
    env: Mapping[str, bool] = {}


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A drop-in that would make the unit start. `after`: what `check` says of the unit with it."""

    place: unitfile.Place
    text: str
    launch: UnitLaunch
    after: Report
    why: str
    gives_up: str = ""
    notes: tuple[str, ...] = ()


def judge(unit: Unit, asked: Asked, launch: UnitLaunch | None = None) -> Report:
    """What `check` says of the unit's own command. Errors as `server_of` and `check`."""
    from attnfit.api import check

    launch = launch or server_of(unit)
    with _inside(unit):
        return check(launch.words, gpu=asked.gpu, count=asked.count, engine=asked.engine, env=dict(asked.env))


def step_of(report: Report) -> Step | None:
    """The planner's first offer that is a command, and nothing but a command."""
    return next((step for step in report.steps if step.argv and is_here(step)), None)


def from_step(unit: Unit, report: Report, step: Step, asked: Asked) -> Planned:
    launch = server_of(unit)
    argv, variables = dropin.wanted(launch, step.argv or ())
    return _planned(unit, launch, argv, variables, asked, step.text, step.gives_up)


def from_words(unit: Unit, words: Sequence[str], asked: Asked) -> Planned:
    """The command that the user wants the unit to start; variables in front of it become the unit's."""
    launch = server_of(unit)
    argv, variables = dropin.split(words)
    if not argv or not (argv[0].startswith("/") or "/" not in argv[0]):
        raise UsageError("behind -- the command begins with a program, by name or absolute path")
    own = {name: value for name, value in variables.items() if unit.variables.values.get(name) != value}
    return _planned(unit, launch, argv, own, asked, "the command that was given", "")


def _planned(
    unit: Unit,
    launch: UnitLaunch,
    argv: Sequence[str],
    variables: Mapping[str, str | None],
    asked: Asked,
    why: str,
    gives_up: str,
) -> Planned:
    place = unitfile.place_of(unit)
    text = dropin.dropin(unit, launch.index, argv, variables, why, place.before)
    then = read_unit(unit.name, user=unit.user, root=unit.root, instead={place.shown: text})
    new = server_of(then)
    had, has = unit.variables.values, then.variables.values
    for name in had.keys() | has.keys() | variables.keys():
        if has.get(name) != (variables[name] if name in variables else had.get(name)):
            raise UsageError(f"a drop-in cannot change {name} of {unit.name}; change it where it is set")
    if list(new.argv) != list(argv):
        others = [path for path in then.dropins if path.rpartition("/")[2] > dropin.FILE]
        where = others[-1] if others else unit.fragment
        raise InputError(f"{where} sets ExecStart= behind our drop-in; change it there, or remove it")
    notes = dropin.no_longer_read(unit, launch.index, then.execs[new.index].raw)
    return Planned(
        place=place, text=text, launch=new, after=judge(then, asked, new), why=why, gives_up=gives_up,
        notes=tuple(notes),
    )  # fmt: skip


def diff(planned: Planned) -> str:
    """What the file would become, keys hidden; "" where it is so already."""
    place = planned.place
    before = place.before or ""
    text = difference(before, planned.text, place.shown if place.before is not None else "/dev/null", place.shown)
    return shown(text, planned.launch.words, hidden=dropin.secrets_in(before) | dropin.secrets_in(planned.text))


def difference(before: str, after: str, old: str, new: str) -> str:
    """As `diff -u` shows it, without the ends of lines."""
    told = difflib.unified_diff(_lines(before), _lines(after), old, new, lineterm="")
    return "".join(f"{line}\n" for line in told)


def _lines(text: str) -> list[str]:
    return re.split(r"\r?\n", text.removesuffix("\n").removesuffix("\r")) if text else []


def shown(text: str, *commands: Sequence[str], hidden: Mapping[str, str] = {}) -> str:
    """`text` without keys: none of its own, none of those commands' (what `run` hides is hidden), none of `hidden`."""
    return masked(concealed(text, *commands, hidden=hidden))


def concealed(text: str, *commands: Sequence[str], hidden: Mapping[str, str] = {}) -> str:
    """`text`, ours, with a name for each value that is a secret in one of the commands, or stands in `hidden`."""
    found = dict(hidden)
    for words in commands:
        found |= secrets_of(words, {})
    for value in sorted(found, key=len, reverse=True):
        text = text.replace(value, found[value])
    text = _NO_TEXT.sub(lambda byte: f"\\x{ord(byte[0]) - 0xDC00:02x}", without_passwords(text))
    return text.encode("utf-8", "backslashreplace").decode()


def in_each_text(value: Any, how: Callable[[str], str]) -> Any:
    """`value`, of a JSON answer, with each of its texts as `how` makes it; names and numbers stay."""
    if isinstance(value, str):
        return how(value)
    if isinstance(value, dict):
        return {name: in_each_text(each, how) for name, each in value.items()}
    return [in_each_text(each, how) for each in value] if isinstance(value, list | tuple) else value


@contextlib.contextmanager
def _inside(unit: Unit) -> Iterator[None]:
    """Relative paths of the command are read from the unit's WorkingDirectory=; systemd's default is /."""
    if unit.root is not None:
        yield
        return
    wanted = Path(unit.directory or (os.path.expanduser("~") if unit.user else "/"))
    before = os.getcwd()
    try:
        os.chdir(wanted)
    except OSError as error:
        if unit.directory is not None and not unit.last("WorkingDirectory").startswith("-"):
            raise InputError(
                f"WorkingDirectory={wanted} of {unit.name} cannot be entered ({error.strerror}); make it"
            ) from None
    try:
        yield
    finally:
        os.chdir(before)
