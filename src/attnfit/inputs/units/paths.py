"""Where a unit's files lie: systemd's search path, templates, aliases and drop-in directories (systemd.unit(5))."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attnfit.errors import InputError, UsageError, did_you_mean

NAME = re.compile(r"[A-Za-z0-9:_.\\-]+(?:@[A-Za-z0-9:_.\\-]*)?\.service")
_SYSTEM = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
)


def unit_name(given: str) -> str:
    """`NAME` or `NAME.service` -> the name with its suffix. Raises UsageError for what names no service."""
    name = given if given.endswith(".service") else f"{given}.service"
    if "/" in given:
        raise UsageError(f"{given} is a path; give the unit's name, and --root DIR for the files of an image")
    if re.search(r"\.(socket|timer|target|path|mount|slice|scope|device|swap|automount)$", given):
        raise UsageError(f"{given} starts no command of its own; name the .service")
    if not NAME.fullmatch(name) or len(name) > 255:
        raise UsageError(f"{given[:60]!r} is no unit name; it has letters, digits and : - _ . \\ @")
    if re.fullmatch(r"[^@]*@\.service", name):
        raise UsageError(f"{name} is a template; name an instance of it, as {name.replace('@.', '@NAME.')}")
    return name


def search_path(user: bool, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Directories of unit files, first wins; without the root of an image."""
    own = environ.get("SYSTEMD_UNIT_PATH")
    usual = _user_path(environ) if user else _SYSTEM
    if not own:
        return usual
    parts = tuple(part for part in own.split(":") if part)
    return (*parts, *usual) if own.endswith(":") else parts


def _user_path(environ: Mapping[str, str]) -> tuple[str, ...]:
    home = environ.get("HOME") or os.path.expanduser("~")
    config = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    data = environ.get("XDG_DATA_HOME") or f"{home}/.local/share"
    run = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    configs = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    shares = (environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(":")
    return (
        f"{config}/systemd/user.control",
        f"{run}/systemd/user.control",
        f"{run}/systemd/transient",
        f"{run}/systemd/generator.early",
        f"{config}/systemd/user",
        *(f"{each}/systemd/user" for each in configs),
        "/etc/systemd/user",
        f"{run}/systemd/user",
        "/run/systemd/user",
        f"{run}/systemd/generator",
        f"{data}/systemd/user",
        *(f"{each}/systemd/user" for each in shares),
        "/usr/local/lib/systemd/user",
        "/usr/lib/systemd/user",
        "/lib/systemd/user",
        f"{run}/systemd/generator.late",
    )


def home_of_dropins(user: bool, environ: Mapping[str, str]) -> str:
    """The directory where whoever administers the units keeps changes: what `systemctl edit` writes into."""
    if not user:
        return "/etc/systemd/system"
    home = environ.get("HOME") or os.path.expanduser("~")
    return f"{environ.get('XDG_CONFIG_HOME') or f'{home}/.config'}/systemd/user"


def find(name: str, folders: Sequence[str], root: Path | None) -> tuple[Path, frozenset[str]]:
    """(the unit's own file, all names it is known by). Raises InputError: not there, or masked."""
    names = {name}
    for _ in range(8):  # an alias is a link to another name in the search path
        found = next((p for p in _candidates(name, folders, root) if p.is_symlink() or p.exists()), None)
        if found is None:
            raise InputError(_not_there(name, folders, root))
        fragment = found
        if not found.is_symlink():
            break
        target = os.readlink(found)
        if target == "/dev/null":
            raise InputError(f"{name} is masked ({found} leads to /dev/null); systemctl unmask {name}")
        base = target.rpartition("/")[2]
        if base == found.name or not NAME.fullmatch(base):  # a linked unit file from elsewhere
            fragment = _followed(found, root)
            break
        name = _instance_of(base, name)
        names.add(name)
    if not fragment.is_file():
        raise InputError(f"{fragment} is no file; the unit cannot be read")
    if fragment.stat().st_size == 0:
        raise InputError(f"{name} is masked ({fragment} is empty); remove the empty file")
    return fragment, frozenset(names | set(_aliases(names, folders, root)))


def _followed(path: Path, root: Path | None) -> Path:
    target = os.readlink(path)
    return within(root, target) if target.startswith("/") else path.parent / target


def _instance_of(base: str, name: str) -> str:
    """`b@.service` as the target of `a@x.service` is `b@x.service`."""
    instance = name.rpartition(".")[0].partition("@")[2]
    return base.replace("@.", f"@{instance}.", 1) if "@." in base and instance else base


def template(name: str) -> str | None:
    head, at, _ = name.partition("@")
    return f"{head}@.service" if at and not name.startswith(f"{head}@.") else None


def _candidates(name: str, folders: Sequence[str], root: Path | None) -> Iterator[Path]:
    for each in filter(None, (name, template(name))):
        yield from (within(root, folder) / each for folder in folders)


def within(root: Path | None, path: str) -> Path:
    return Path(path) if root is None else root / path.lstrip("/")


def _aliases(names: set[str], folders: Sequence[str], root: Path | None) -> Iterator[str]:
    for folder in folders:
        try:
            entries = sorted(os.scandir(within(root, folder)), key=lambda e: e.name)
        except OSError:
            continue
        for entry in entries:
            if entry.is_symlink() and NAME.fullmatch(entry.name):
                try:
                    target = os.readlink(entry.path).rpartition("/")[2]
                except OSError:
                    continue
                if target in names and entry.name not in names:
                    yield entry.name


def dropins(names: frozenset[str], folders: Sequence[str], root: Path | None) -> list[Path]:
    """The drop-ins in the order systemd applies them: by file name; of one name the first directory's."""
    found: dict[str, Path] = {}
    order = [*(f"{f}/{d}.d" for name in sorted(names) for f in folders for d in _spellings(name)),
             *(f"{folder}/service.d" for folder in folders)]  # fmt: skip
    for folder in order:
        try:
            entries = sorted(os.scandir(within(root, folder)), key=lambda e: e.name)
        except NotADirectoryError:
            continue
        except FileNotFoundError:
            continue
        except PermissionError:
            raise InputError(f"{folder} may not be read by this user; run again as root") from None
        for entry in entries:
            if entry.name.endswith(".conf") and not entry.is_dir():
                found.setdefault(entry.name, Path(entry.path))
    kept = (path for _, path in sorted(found.items()))
    return [p for p in kept if not (p.is_symlink() and os.readlink(p) == "/dev/null") and not _empty(p)]


def _empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False  # reading it says what is wrong


def _spellings(name: str) -> Iterator[str]:
    """A name, its template, and what its prefix becomes when it is cut behind each dash."""
    yield name
    if (general := template(name)) is not None:
        yield from _spellings(general)
        return
    prefix = name.rpartition(".")[0].partition("@")[0].rstrip("-")
    while "-" in prefix:
        prefix = prefix.rpartition("-")[0].rstrip("-")
        if prefix:
            yield f"{prefix}-.service"


def _not_there(name: str, folders: Sequence[str], root: Path | None) -> str:
    known = sorted({e.name for f in folders if within(root, f).is_dir() for e in os.scandir(within(root, f))})
    services = [each.removesuffix(".service") for each in known if each.endswith(".service")]
    hint = did_you_mean(name.removesuffix(".service"), services)
    where = f" under {root}" if root else ""
    return f"no unit {name}{where}{hint or '; systemctl list-unit-files lists them, --user those of a user'}"
