"""The way out of a hazard, put into the user's own command. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from attnfit.engines.log import Edit, log_words
from attnfit.errors import UsageError
from attnfit.explain.story import Story
from attnfit.hazards import Record, Remedy
from attnfit.hazards.words import does_nothing, suits
from attnfit.inputs.command import Command, parse_command
from attnfit.inputs.rewrite import rewrite
from attnfit.inputs.secrets import hide

_HOLE = re.compile(r"\{(\w+)\}")


class Way(msgspec.Struct, frozen=True):
    text: str
    change: str  # what of it is a matter of flags and variables, "" for nothing
    command: tuple[str, ...] | None  # secrets hidden; None: no command is known, or it is no matter of flags
    installs: tuple[str, ...] = ()
    release: str = ""
    gives_up: str = ""
    from_: str = ""  # where the command is from
    shows: bool = False  # a diagnosis: it says more of the cause, and cures nothing
    but: str = ""  # why no command is given, or another than the remedy's own


class Launch(NamedTuple):
    """The command that remedies are put into."""

    command: Command | None
    source: str = ""  # where it is from


def launch_of(story: Story, at: int, facts: Mapping[str, Any], given: Command | None, engine: str) -> Launch:
    """The user's own command: given, else in the log, else put together from the arguments that the log prints.

    engine: whose hazard it is. A given command of another engine than the log's is not changed.
    """
    engine = story.engine_of(at) or engine
    if given is not None and engine in ("", given.engine):
        return Launch(given, "given")
    starts = story.starts
    before = starts[at - 1].first if at else 0
    after = starts[at + 1].first if at + 1 < len(starts) else story.last + 1
    for command in story.commands.of(starts[at].first, before, after):
        if engine in ("", command.engine) and _same_model(command.model, facts.get("model")):
            return Launch(command, "the log")
    words = next((log for log in log_words() if log.engine == engine), None)
    args = facts.get("args")
    made = words.command(args) if words is not None and isinstance(args, dict) else None
    if not made:
        return Launch(None)
    unread = facts.get("unread")
    but = f" (but for {', '.join(unread)}, which it does not print as a value)" if unread else ""
    try:
        return Launch(parse_command(made), f"the arguments in the log{but}")
    except UsageError:
        return Launch(None)


def _same_model(one: str | None, other: object) -> bool:
    """Whether they may be the same: paths differ between a container and the machine around it."""
    if one is None or not isinstance(other, str) or "$" in one:
        return True
    return one.rstrip("/").rpartition("/")[2] == other.rstrip("/").rpartition("/")[2]


def ways(
    record: Record, figures: Mapping[str, str], facts: Mapping[str, Any], launch: Launch, said: str = ""
) -> tuple[Way, ...]:
    """Every remedy that can be meant, in the record's order, diagnoses last.

    said: what the log says of the failure (`suits`).
    """
    found = []
    command = launch.command
    engine = facts.get("engine") or (command.engine if command is not None else None)
    said += f"\nmodel={command.model}" if command is not None else ""
    release = release_of(facts, command)
    for remedy in record.remedies:
        if remedy.engine and engine and remedy.engine != engine:
            continue
        if not _holds(remedy.release, release) or not suits(remedy, said):
            continue
        whole = _filled(remedy, figures)
        if whole is None:
            continue
        of = record.engine or remedy.engine  # whose flags; "": it sets variables only
        edit = _spelt(whole, of or (command.engine if command else engine or ""), release)
        words = _applied(command, edit, release, of) if command is not None and isinstance(edit, Edit) else None
        if command is not None and words is None and does_nothing(whole, ()):
            continue  # it only takes away what this command has not
        found.append(
            Way(
                text=whole.text,
                change=_shown(edit) if isinstance(edit, Edit) else "",
                command=words,
                installs=whole.installs,
                release=whole.release,
                gives_up=whole.gives_up,
                from_=launch.source if words else "",
                shows=whole.shows,
                but="" if isinstance(edit, Edit) else edit,
            )
        )
    return tuple(sorted(found, key=lambda way: way.shows))


def release_of(facts: Mapping[str, Any], command: Command | None) -> str | None:
    """The release that the log names, else the command's image or requirement."""
    said = facts.get("release")
    if isinstance(said, str):
        return said
    return (command.image_release or command.required_release) if command is not None else None


def _spelt(remedy: Remedy, engine: str, release: str | None) -> Edit | str:
    """In the flags and variables of that release; else why they cannot be."""
    edit = Edit(remedy.set, remedy.drop, remedy.variables)
    words = next((log for log in log_words() if log.engine == engine), None)
    return edit if words is None else words.spelt(edit, release)


def _holds(specifier: str, release: object) -> bool:
    """Whether the release that the log names is one the remedy is for; one that is not known may be."""
    if not specifier or not isinstance(release, str):
        return True
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(specifier).contains(Version(release).base_version, prereleases=True)
    except InvalidVersion:
        return True


def _shown(edit: Edit) -> str:
    parts = [f"{flag} {value}".strip() for flag, value in edit.set.items()]
    parts += [f"drop {flag}" for flag in edit.drop]
    parts += [f"unset {name}" if value is None else f"{name}={value}" for name, value in edit.variables.items()]
    return ", ".join(parts)


def _filled(remedy: Remedy, figures: Mapping[str, str]) -> Remedy | None:
    """With the figures in its values; None where one is not known."""
    missing = False

    def put(text: str) -> str:
        nonlocal missing
        missing |= any(name not in figures for name in _HOLE.findall(text))
        return _HOLE.sub(lambda hole: figures.get(hole[1], hole[0]), text)

    filled = msgspec.structs.replace(
        remedy,
        text=put(remedy.text),
        set={flag: put(value) for flag, value in remedy.set.items()},
        variables={name: value and put(value) for name, value in remedy.variables.items()},
    )
    return None if missing else filled


def _applied(command: Command, edit: Edit, release: str | None, engine: str) -> tuple[str, ...] | None:
    """engine: whose flags the edit names; "": it sets variables only."""
    if not (edit.set or edit.drop or edit.variables) or engine not in ("", command.engine):
        return None
    log = next(log for log in log_words() if log.engine == command.engine)
    argv = log.edited(command.argv, command.form, release, edit)
    variables = {k: v for k, v in edit.variables.items() if v is not None or k in command.env}
    if argv == command.argv and not variables:
        return None
    words = rewrite(command, argv, variables) if variables else command.render(argv)
    return None if words is None else tuple(hide(words))
