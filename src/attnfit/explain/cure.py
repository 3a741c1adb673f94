"""The way out of a hazard, put into the user's own command. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

import msgspec

from attnfit.engines.log import Edit, LogWords, log_words
from attnfit.errors import UsageError
from attnfit.explain.story import Story
from attnfit.hazards import Record, Remedy
from attnfit.inputs.command import Command, parse_command
from attnfit.inputs.rewrite import rewrite
from attnfit.inputs.secrets import hide

_HOLE = re.compile(r"\{(\w+)\}")
_START = re.compile(r"(?:\$ |\+ |exec |(?:[Rr]unning )?[Cc]ommand: ?|COMMAND: ?|CMD: ?|[Rr]unning:? )(.*)$")
_SHELL = re.compile(r"[;&|<>`$()]")  # a line with more in it than words: the whole of it is the command


class Way(msgspec.Struct, frozen=True):
    text: str
    change: str  # what of it is a matter of flags and variables, "" for nothing
    command: tuple[str, ...] | None  # secrets hidden; None: no command is known, or it is no matter of flags
    installs: tuple[str, ...] = ()
    release: str = ""
    gives_up: str = ""
    from_: str = ""  # where the command is from


def ways(record: Record, figures: Mapping[str, str], story: Story, given: Sequence[str] | str) -> tuple[Way, ...]:
    """Every remedy that can be meant, in the record's order."""
    found = []
    command, source = _command(story, given)
    for remedy in record.remedies:
        if remedy.engine and story.engine and remedy.engine != story.engine:
            continue
        if not _holds(remedy.release, story):
            continue
        whole = _filled(remedy, figures)
        if whole is None:
            continue
        words = _applied(command, whole, story, record.engine or remedy.engine) if command is not None else None
        found.append(
            Way(
                text=whole.text,
                change=_shown(whole),
                command=words,
                installs=whole.installs,
                release=whole.release,
                gives_up=whole.gives_up,
                from_=source if words else "",
            )
        )
    return tuple(found)


def _holds(specifier: str, story: Story) -> bool:
    """Whether the release that the log names is one the remedy is for; one that is not known may be."""
    release = story.facts.get("release")
    if not specifier or not isinstance(release, str):
        return True
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(specifier).contains(Version(release).base_version, prereleases=True)
    except InvalidVersion:
        return True


def _shown(remedy: Remedy) -> str:
    parts = [f"{flag} {value}".strip() for flag, value in remedy.set.items()]
    parts += [f"drop {flag}" for flag in remedy.drop]
    parts += [f"unset {name}" if value is None else f"{name}={value}" for name, value in remedy.variables.items()]
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


def _command(story: Story, given: Sequence[str] | str) -> tuple[Command | None, str]:
    """The user's own command: given, else in the log, else put together from the arguments that the log prints."""
    if given:
        return parse_command(given), "given"
    for text in story.commands:
        match = _START.search(text)
        try:
            if match is not None:
                plain = _SHELL.search(match[1]) is None
                return parse_command(shlex.split(match[1]) if plain else match[1]), "the log"
        except (UsageError, ValueError):  # ValueError: a quote that is not closed
            continue
    words = _words(story)
    args = story.facts.get("args")
    made = words.command(args) if words is not None and isinstance(args, dict) else None
    try:
        return (parse_command(made), "the arguments in the log") if made else (None, "")
    except UsageError:
        return None, ""


def _words(story: Story) -> LogWords | None:
    return next((log for log in log_words() if log.engine == story.engine), None)


def _applied(command: Command, remedy: Remedy, story: Story, engine: str) -> tuple[str, ...] | None:
    """engine: whose flags the remedy names; "": it sets variables only."""
    if not (remedy.set or remedy.drop or remedy.variables) or engine not in ("", command.engine):
        return None
    log = next(log for log in log_words() if log.engine == command.engine)
    release = story.facts.get("release")
    argv = log.edited(command.argv, command.form, release, Edit(remedy.set, remedy.drop))
    variables = {k: v for k, v in remedy.variables.items() if v is not None or k in command.env}
    if argv == command.argv and not variables:
        return None
    words = rewrite(command, argv, variables) if variables else command.render(argv)
    return None if words is None else tuple(hide(words))
