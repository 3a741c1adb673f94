"""One unit file to its settings: comments, sections, lines that go on (systemd.syntax(7))."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from attnfit.errors import InputError
from attnfit.inputs.units import plain

MAX_BYTES = 1 << 20
_SPACE = " \t\n\r"
_END = re.compile(r"\r\n?|\n\r?")


class Setting(msgspec.Struct, frozen=True):
    """`name=value` of a section, and the line it begins on."""

    section: str
    name: str
    value: str
    file: str
    line: int

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def read_settings(path: Path, shown: str, ignored: list[str], *, dropin: bool = False) -> list[Setting]:
    """The settings of a unit file or drop-in, in order. `shown`: its name in messages; the others: as for `parse`.

    Raises InputError for a file that cannot be read, is too large or is no text.
    """
    name = shown
    try:
        data = plain.read(path, MAX_BYTES)
    except PermissionError:
        raise InputError(f"{name} may not be read by this user; run again as its owner or as root") from None
    except OSError as error:
        raise InputError(f"{name} cannot be read ({error.strerror}); is it a unit file?") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{name} is larger than {MAX_BYTES >> 20} MiB; that is no unit file")
    if b"\0" in data:
        raise InputError(f"{name} holds NUL bytes; that is no unit file, name the .service itself")
    return parse(data.decode("utf-8-sig", "surrogateescape"), name, ignored, dropin=dropin)


def parse(text: str, name: str, ignored: list[str] | None = None, *, dropin: bool = False) -> list[Setting]:
    """The settings in `text`, bytes that are no UTF-8 as surrogates: in a comment they are nobody's business.

    Raises InputError for what is no section header, and for any other line that is no UTF-8: systemd refuses the file.
    dropin: of such a one it takes what stands before that line.
    ignored: gets a line for what systemd passes over with a warning.
    """
    passed = [] if ignored is None else ignored
    found: list[Setting] = []
    section, pending, start = "", None, 0
    for number, raw in enumerate([*_END.split(text), None], 1):
        if raw is None:  # the end of the file ends a line that would go on
            line, pending = pending or "", None
        else:
            part = raw.lstrip(_SPACE)
            if part.startswith(("#", ";")):
                continue  # also in the middle of a line that goes on
            line = part if pending is None else pending + part
            start = number if pending is None else start
            trailing = len(line) - len(line.rstrip("\\"))
            if trailing % 2:
                pending = line[:-1] + " "
                continue
            pending = None
        line = line.strip(_SPACE)
        if not line:
            continue
        place = f"{name}:{start}"
        if why := _refused(line):
            if not dropin:
                raise InputError(f"{place}{why}; systemd refuses the unit, correct the line")
            passed.append(f"{place}{why}; systemd reads nothing of this drop-in from there on")
            break
        if line.startswith("["):
            section = line[1:-1]
            continue
        key, equals, value = line.partition("=")
        if not equals:
            passed.append(f"{place} has no '='; systemd ignores the line, write NAME=VALUE")
            continue
        if not section:
            passed.append(f"{place}: {key.strip()[:40]!r} stands before any section; systemd ignores it")
            continue
        found.append(Setting(section, key.strip(_SPACE), value.strip(_SPACE), name, start))
    return found


def _refused(line: str) -> str:
    """Why systemd reads no further; "": it does."""
    if not plain.is_utf8(line):
        return " is not UTF-8"
    if line.startswith("[") and not line.endswith("]"):
        return f": {line[:40]!r} is no section header, as [Service] is"
    return ""
