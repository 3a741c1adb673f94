"""One unit file to its settings: comments, sections, lines that go on (systemd.syntax(7))."""

from __future__ import annotations

from pathlib import Path

import msgspec

from attnfit.errors import InputError

MAX_BYTES = 1 << 20
_SPACE = " \t\n\r"


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


def read_settings(path: Path, shown: str, ignored: list[str]) -> list[Setting]:
    """The settings of a unit file or drop-in, in order. `shown`: its name in messages; `ignored`: as for `parse`.

    Raises InputError for a file that cannot be read, is too large or is no text.
    """
    name = shown
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except PermissionError:
        raise InputError(f"{name} may not be read by this user; run again as its owner or as root") from None
    except OSError as error:
        raise InputError(f"{name} cannot be read ({error.strerror}); is it a unit file?") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{name} is larger than {MAX_BYTES >> 20} MiB; that is no unit file")
    if b"\0" in data:
        raise InputError(f"{name} holds NUL bytes; that is no unit file, name the .service itself")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError(f"{name}:{line} is not UTF-8, and systemd ignores such a line; correct it") from None
    return parse(text, name, ignored)


def parse(text: str, name: str, ignored: list[str] | None = None) -> list[Setting]:
    """The settings in `text`. Raises InputError for what is no section header: systemd refuses the file.

    ignored: gets a line for each one that systemd passes over with a warning.
    """
    passed = [] if ignored is None else ignored
    found: list[Setting] = []
    section, pending, start = "", None, 0
    for number, raw in enumerate([*text.split("\n"), None], 1):
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
        if line.startswith("["):
            if not line.endswith("]"):
                raise InputError(f"{place}: {line[:40]!r} is no section header; write it as [Service]")
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
