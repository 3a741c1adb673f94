"""The launch command of a unit: which of its commands starts a server, in the words that `check` takes."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from attnfit.errors import UnknownAnswer, UsageError
from attnfit.inputs.command import Command, parse_command
from attnfit.inputs.units import paths
from attnfit.inputs.units.unit import PROGRAMS, Unit


class UnitLaunch(msgspec.Struct, frozen=True):
    """`words` are `NAME=value ...` of the unit's own variables, then the command's arguments."""

    index: int  # of Unit.execs
    words: tuple[str, ...]
    assigned: int  # how many of them are variables
    command: Command
    notes: tuple[str, ...] = ()

    @property
    def argv(self) -> tuple[str, ...]:
        return self.words[self.assigned :]


def server_of(unit: Unit) -> UnitLaunch:
    """Raises UsageError where the unit starts no server, UnknownAnswer where a file that decides may not be read."""
    if unit.variables.unread:
        raise UnknownAnswer(
            f"{unit.variables.unread[0]} may not be read by this user, and {unit.name} takes variables from it; "
            "run again as root"
        )
    values, origin = unit.variables.values, unit.variables.origin
    assigned = [f"{name}={values[name]}" for name in origin]
    refused: UsageError | None = None
    for index, found in enumerate(unit.execs):
        argv = found.argv
        argv[0] = _resolved(argv[0], unit)
        words = (*assigned, *argv)
        try:
            command = parse_command(words)
        except UsageError as error:
            refused = refused or error
            continue
        return UnitLaunch(index, words, len(assigned), command, tuple(_notes(unit, index)))
    raise UsageError(f"{unit.name}: {refused}")


def _notes(unit: Unit, index: int) -> list[str]:
    missing = unit.execs[index].missing
    notes = [f"${{{name}}} is set by nobody; systemd puts nothing in its place" for name in dict.fromkeys(missing)]
    if unit.user:
        notes.append("the environment of the user's manager reaches the unit too; it is not read here")
    return notes


def _resolved(program: str, unit: Unit) -> str:
    """A plain name is looked for where systemd looks, not in the unit's PATH."""
    if "/" in program:
        return program
    own = unit.last("ExecSearchPath")
    for folder in own.split(":") if own else PROGRAMS:
        place = paths.within(unit.root, f"{folder}/{program}")
        if os.access(place, os.X_OK) and place.is_file():
            return f"{folder}/{program}"
    return program


def names(words: Sequence[str], assigned: int) -> dict[str, str]:
    """The variables among the first `assigned` words."""
    return {name: value for name, _, value in (word.partition("=") for word in words[:assigned])}
