"""The variables a unit sets for its process: Environment=, EnvironmentFile= and UnsetEnvironment= (systemd.exec(5))."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from attnfit.errors import InputError
from attnfit.inputs.units import plain
from attnfit.inputs.units.lines import MAX_BYTES, Setting
from attnfit.inputs.units.specifiers import Naming, expand
from attnfit.inputs.units.words import SPACE, Unbalanced, split

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Variables(msgspec.Struct, frozen=True):
    """What the process gets of the unit, files before settings, and what could not be read."""

    values: dict[str, str]
    origin: dict[str, str]  # name -> where it is set
    notes: tuple[str, ...] = ()  # of what systemd passes over
    unread: tuple[str, ...] = ()  # files that exist but may not be read by us
    unset: tuple[str, ...] = ()


def variables(settings: Sequence[Setting], naming: Naming, base: dict[str, str]) -> Variables:
    """Of the [Service] settings in order. `base`: what the manager sets by itself.

    Raises InputError for a setting that systemd would refuse.
    """
    own: dict[str, tuple[str, str]] = {}
    files: list[tuple[str, Setting]] = []
    unset: list[str] = []
    notes: list[str] = []
    for setting in settings:
        if setting.name == "Environment":
            if not setting.value:
                own.clear()
            for word in words(setting, naming):
                name, equals, value = word.partition("=")
                if not equals or not _NAME.fullmatch(name):
                    said = f"{setting.place}: a word of Environment= is no NAME=VALUE"
                    notes.append(f"{said}; systemd ignores it, quote values with spaces")
                    continue
                own[name] = (value, setting.place)
        elif setting.name == "EnvironmentFile":
            files = [*files, (setting.value, setting)] if setting.value else []
        elif setting.name == "UnsetEnvironment":
            unset = [*unset, *words(setting, naming)] if setting.value else []
    values = dict(base) | {name: value for name, (value, _) in own.items()}
    origin = {name: place for name, (_, place) in own.items()}
    unread: list[str] = []
    for pattern, setting in files:
        for path in _paths(pattern, setting, naming, notes):
            try:
                found = read_file(path, naming.root)
            except PermissionError:
                unread.append(_shown(path, naming.root))
                continue
            values |= found
            origin |= dict.fromkeys(found, _shown(path, naming.root))
    for word in unset:
        name, equals, value = word.partition("=")
        if name in values and (not equals or values[name] == value):
            del values[name]
            origin.pop(name, None)
    return Variables(values, origin, tuple(notes), tuple(unread), tuple(unset))


def words(setting: Setting, naming: Naming) -> list[str]:
    try:
        return [expand(word.value, naming, setting.place) for word in split(setting.value)]
    except Unbalanced as error:
        raise InputError(f"{setting.place}: {setting.name}= has a word where {error}; correct the quotes") from None


def _paths(pattern: str, setting: Setting, naming: Naming, notes: list[str]) -> list[Path]:
    """The files that one EnvironmentFile= names. Raises InputError where systemd would not start for want of one."""
    optional = pattern.startswith("-")
    path = expand(pattern.removeprefix("-"), naming, setting.place)
    if not path.startswith("/"):
        notes.append(f"{setting.place}: EnvironmentFile={path} is no absolute path; systemd ignores it")
        return []
    within = f"{naming.root}{path}" if naming.root else path
    found = sorted(glob.glob(within)) if glob.has_magic(within) else [within] if _exists(within) else []
    if not found and not optional:
        raise InputError(
            f"{setting.place}: {path} is not there, so systemd does not start the unit; make it, or write "
            f"EnvironmentFile=-{path}"
        )
    return [Path(each) for each in found]


def _shown(path: Path, root: Path | None) -> str:
    return str(path) if root is None else "/" + str(path.relative_to(root))


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except PermissionError:
        return True  # in a directory that may not be looked into: reading says so


def read_file(path: Path, root: Path | None = None) -> dict[str, str]:
    """An environment file's assignments. Raises PermissionError, and InputError for what is no text."""
    try:
        data = plain.read(path, MAX_BYTES)
    except PermissionError:
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); it is an EnvironmentFile=") from None
    try:
        if len(data) > MAX_BYTES or b"\0" in data:
            raise ValueError
        return parse_file(data.decode("utf-8", "surrogateescape"))
    except ValueError:
        raise InputError(f"{path} is no text of NAME=VALUE lines; correct the EnvironmentFile=") from None


def parse_file(text: str) -> dict[str, str]:
    """Assignments of an environment file. Quotes may stand in pieces; a name that is none is passed over, as there.

    Raises ValueError for one that is no UTF-8 (its bytes are surrogates); a comment may be anything.
    """
    found: dict[str, str] = {}
    at, end = 0, len(text)
    while at < end:
        if text[at] in SPACE:
            at += 1
        elif text[at] in "#;":
            at = _line_end(text, at)
        else:
            stop = min((i for i in (text.find("=", at), text.find("\n", at)) if i >= 0), default=end)
            name = text[at:stop].rstrip(SPACE)
            if stop == end or text[stop] == "\n":
                at = stop + 1
                continue
            value, at = _value(text, stop + 1)
            if not plain.is_utf8(name + value):
                raise ValueError
            if _NAME.fullmatch(name):
                found[name] = value
    return found


def _line_end(text: str, at: int) -> int:
    newline = text.find("\n", at)
    return len(text) if newline < 0 else newline


def _value(text: str, at: int) -> tuple[str, int]:
    out: list[str] = []
    kept = 0  # trailing space that was not quoted goes away
    bare = False  # inside a piece that is not quoted
    while at < len(text) and text[at] not in "\r\n":
        c = text[at]
        at += 1
        if c == "\\":
            if at < len(text) and text[at] not in "\r\n":
                out.append(text[at])
                kept = len(out)
            at += 1
            bare = True
        elif c in "'\"" and not bare:
            piece, at = _quoted(text, at, c)
            out += piece
            kept = len(out)
        elif bare or c not in SPACE:
            bare = True
            out.append(c)
            kept = len(out) if c not in SPACE else kept
    return "".join(out[:kept]), at


def _quoted(text: str, at: int, quote: str) -> tuple[list[str], int]:
    out: list[str] = []
    while at < len(text) and text[at] != quote:
        c = text[at]
        at += 1
        if quote == '"' and c == "\\" and at < len(text):
            following = text[at]
            at += 1
            if following != "\n":
                out += [following] if following in '"\\`$' else ["\\", following]
        else:
            out.append(c)
    return out, at + 1
