"""A unit as systemd would load it: its own file, then its drop-ins in order, then what its settings come to."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from attnfit.errors import InputError
from attnfit.inputs.units import paths
from attnfit.inputs.units.commands import Exec, commands
from attnfit.inputs.units.environ import Variables, variables
from attnfit.inputs.units.lines import Setting, parse, read_settings
from attnfit.inputs.units.specifiers import Naming, expand

PROGRAMS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")  # where systemd looks


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """A service, understood."""

    name: str
    naming: Naming
    fragment: str
    dropins: tuple[str, ...]
    settings: tuple[Setting, ...]  # of all files, in the order they count
    execs: tuple[Exec, ...]
    variables: Variables
    directory: str | None = None  # WorkingDirectory=
    runs_as: str | None = None  # User=
    notes: tuple[str, ...] = ()  # what systemd passes over in its files

    @property
    def user(self) -> bool:
        return self.naming.user

    @property
    def root(self) -> Path | None:
        return self.naming.root

    def last(self, name: str) -> str:
        """The value that counts of a plain setting of [Service]; "" where none is given."""
        return next((s.value for s in reversed(self.settings) if (s.section, s.name) == ("Service", name)), "")


def read_unit(
    given: str,
    *,
    user: bool = False,
    root: Path | None = None,
    environ: Mapping[str, str] | None = None,
    instead: Mapping[str, str] | None = None,
) -> Unit:
    """The service `given` of this machine, or of the image under `root`.

    instead: texts that stand for files (by path, without root): what a drop-in would make of the unit before it is
    written. Raises UsageError for what is no name of a service, InputError for a unit that is not there, is masked, or
    that systemd would refuse.
    """
    around = dict(os.environ if environ is None else environ)
    name = paths.unit_name(given)
    if root is not None and not root.is_dir():
        raise InputError(f"--root {root} is no directory; give the top of an image's file system")
    folders = paths.search_path(user, around if root is None else {**around, "SYSTEMD_UNIT_PATH": ""})
    fragment, names = paths.find(name, folders, root)
    dropins = paths.dropins(names, folders, root)
    shown = {_shown(path, root): path for path in (fragment, *dropins)}
    main, *rest = shown
    for path in instead or {}:
        if path not in rest:
            rest.append(path)
    rest.sort(key=lambda path: path.rpartition("/")[2])
    settings: list[Setting] = []
    ignored: list[str] = []
    for path in (main, *rest):
        if instead and path in instead:
            settings += parse(instead[path], path, ignored, dropin=path != main)
        else:
            settings += read_settings(shown[path], path, ignored, dropin=path != main)
    naming = Naming(name, user, root, main, around)
    return _unit(name, naming, main, rest, settings, ignored)


def _shown(path: Path, root: Path | None) -> str:
    return str(path) if root is None else "/" + str(path.relative_to(root))


def _unit(
    name: str, naming: Naming, main: str, rest: Sequence[str], settings: Sequence[Setting], ignored: Sequence[str] = ()
) -> Unit:
    service = [setting for setting in settings if setting.section == "Service"]
    last = {setting.name: setting for setting in service}
    runs_as = _plain(last.get("User"), naming)
    values = variables(service, naming, _base(naming, runs_as))
    found: list[Exec] = []
    for setting in service:
        if setting.name == "ExecStart":
            found = [*found, *commands(setting, naming, values.values)] if setting.value else []
    if not found:
        where = "; ".join([", ".join([main, *rest]), *ignored])
        raise InputError(f"{name} has no ExecStart= ({where}); name the unit that starts the server")
    kind = last["Type"].value if "Type" in last else ""
    if len(found) > 1 and kind != "oneshot":
        raise InputError(
            f"{name} has {len(found)} commands in ExecStart=, and systemd takes one unless Type=oneshot; "
            "a drop-in that replaces it begins with an empty ExecStart="
        )
    return Unit(
        name=name,
        naming=naming,
        fragment=main,
        dropins=tuple(rest),
        settings=tuple(settings),
        execs=tuple(found),
        variables=values,
        directory=_directory(last.get("WorkingDirectory"), naming, runs_as),
        runs_as=runs_as,
        notes=(*ignored, *values.notes),
    )


def _plain(setting: Setting | None, naming: Naming) -> str | None:
    return expand(setting.value, naming, setting.place) if setting is not None and setting.value else None


def _directory(setting: Setting | None, naming: Naming, runs_as: str | None) -> str | None:
    found = _plain(setting, naming)
    if found is None:
        return None
    found = found.removeprefix("-")
    return _account(runs_as, "dir") if found == "~" else found


def _account(runs_as: str | None, what: str) -> str | None:
    try:
        if runs_as is None:
            entry = pwd.getpwuid(os.getuid())
        else:
            entry = pwd.getpwuid(int(runs_as)) if runs_as.isdecimal() else pwd.getpwnam(runs_as)
    except (KeyError, ValueError):
        return None
    return {"dir": entry.pw_dir, "name": entry.pw_name, "shell": entry.pw_shell}[what]


def _base(naming: Naming, runs_as: str | None) -> dict[str, str]:
    """What the manager sets by itself and a command line may name: `$HOME`, `$USER` ..."""
    if naming.user:  # a user's manager hands on its own environment; of it we know what a login sets
        known = ("HOME", "USER", "LOGNAME", "SHELL", "XDG_RUNTIME_DIR")
        return {name: naming.environ[name] for name in known if name in naming.environ}
    base = {"PATH": ":".join(PROGRAMS)}
    if runs_as is None or naming.root is not None:
        return base
    found = {
        n: _account(runs_as, w) for n, w in (("HOME", "dir"), ("USER", "name"), ("LOGNAME", "name"), ("SHELL", "shell"))
    }
    return base | {name: value for name, value in found.items() if value}
