"""`%i`, `%n`, `%h` ...: what systemd puts into a unit's settings when it loads it (systemd.unit(5), Specifiers)."""

from __future__ import annotations

import os
import platform
import pwd
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from attnfit.errors import InputError

_SPECIFIER = re.compile(r"%([A-Za-z%])")  # before anything else a percent sign is one
_ESCAPED = re.compile(r"\\x([0-9a-fA-F]{2})")
_ARCHITECTURES = {"x86_64": "x86-64", "aarch64": "arm64", "ppc64le": "ppc64-le"}
_OF_THE_MACHINE = "bHlmqv"  # not known of an image that is not running
_BY_RELEASE = "LS"  # of a user's manager they moved between releases
_RELEASE_FIELDS = {
    "A": "IMAGE_VERSION",
    "B": "BUILD_ID",
    "M": "IMAGE_ID",
    "o": "ID",
    "w": "VERSION_ID",
    "W": "VARIANT_ID",
}


class Naming(msgspec.Struct, frozen=True):
    """A unit's name and manager: all that its specifiers depend on besides the machine."""

    name: str  # as it was asked for, instance and suffix included
    user: bool = False  # of a user's manager
    root: Path | None = None  # an image; None: this machine
    fragment: str = ""
    environ: Mapping[str, str] = {}

    @property
    def prefix(self) -> str:
        return self.name.rpartition(".")[0].partition("@")[0]

    @property
    def instance(self) -> str:
        return self.name.rpartition(".")[0].partition("@")[2]


def expand(text: str, naming: Naming, place: str) -> str:
    """`text` with its specifiers resolved. Raises InputError for one that systemd does not know, or we here do not."""
    return _SPECIFIER.sub(lambda found: _value(found[1], naming, place), text)


def _value(letter: str, naming: Naming, place: str) -> str:
    if letter == "%":
        return "%"
    if letter in _OF_THE_MACHINE and naming.root is not None:
        raise InputError(f"{place}: %{letter} is known only where the unit runs; check it there, without --root")
    if letter in _BY_RELEASE and naming.user:
        raise InputError(f"{place}: what %{letter} is for a user's units depends on systemd's release; write the path")
    found = _NAMES.get(letter) or _MACHINE.get(letter)
    if found is not None:
        return found(naming)
    if letter in _RELEASE_FIELDS:
        return _os_release(naming).get(_RELEASE_FIELDS[letter], "")
    raise InputError(f"{place}: %{letter} is no specifier that is known; write %% for a percent sign")


def unescape(name: str) -> str:
    """systemd's escaped names: `-` is a slash, `\\x2d` a dash."""
    return _ESCAPED.sub(lambda m: chr(int(m[1], 16)), name.replace("-", "/"))


def _path(naming: Naming) -> str:
    return "/" + unescape(naming.instance or naming.prefix).lstrip("/")


def _home(naming: Naming) -> str:
    if not naming.user:
        return "/root"
    return naming.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir


def _xdg(system: str, variable: str, below_home: str) -> Callable[[Naming], str]:
    def of(naming: Naming) -> str:
        return system if not naming.user else naming.environ.get(variable) or f"{_home(naming)}/{below_home}"

    return of


def _runtime(naming: Naming) -> str:
    return "/run" if not naming.user else naming.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"


def _credentials(naming: Naming) -> str:
    return f"{_runtime(naming)}/credentials/{naming.name}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8").strip()
    except OSError:
        return ""


def _os_release(naming: Naming) -> dict[str, str]:
    root = naming.root or Path("/")
    for name in ("etc/os-release", "usr/lib/os-release"):
        try:
            text = (root / name).read_text("utf-8")
        except OSError:
            continue
        return {m[1]: m[2].strip("\"'") for m in re.finditer(r"(?m)^([A-Z_]+)=(.*)$", text)}
    return {}


def _user(naming: Naming) -> str:
    return "root" if not naming.user else pwd.getpwuid(os.getuid()).pw_name


_NAMES: dict[str, Callable[[Naming], str]] = {
    "i": lambda n: n.instance,
    "I": lambda n: unescape(n.instance),
    "j": lambda n: n.prefix.rpartition("-")[2],
    "J": lambda n: unescape(n.prefix.rpartition("-")[2]),
    "n": lambda n: n.name,
    "N": lambda n: n.name.rpartition(".")[0],
    "p": lambda n: n.prefix,
    "P": lambda n: unescape(n.prefix),
    "f": _path,
    "y": lambda n: n.fragment,
    "Y": lambda n: n.fragment.rpartition("/")[0],
    "C": _xdg("/var/cache", "XDG_CACHE_HOME", ".cache"),
    "E": _xdg("/etc", "XDG_CONFIG_HOME", ".config"),
    "L": lambda n: "/var/log",
    "S": lambda n: "/var/lib",
    "d": _credentials,
    "t": _runtime,
    "T": lambda n: "/tmp",
    "V": lambda n: "/var/tmp",
    "h": _home,
    "u": _user,
    "U": lambda n: "0" if not n.user else str(os.getuid()),
    "g": lambda n: "root" if not n.user else _group(),
    "G": lambda n: "0" if not n.user else str(os.getgid()),
    "s": lambda n: "/bin/sh" if not n.user else pwd.getpwuid(os.getuid()).pw_shell,
}
_MACHINE: dict[str, Callable[[Naming], str]] = {
    "a": lambda n: _ARCHITECTURES.get(platform.machine(), platform.machine()),
    "b": lambda n: _read("/proc/sys/kernel/random/boot_id").replace("-", ""),
    "m": lambda n: _read("/etc/machine-id"),
    "H": lambda n: platform.node(),
    "l": lambda n: platform.node().partition(".")[0],
    "q": lambda n: _pretty() or platform.node(),
    "v": lambda n: platform.release(),
}


def _group() -> str:
    import grp

    return grp.getgrgid(os.getgid()).gr_name


def _pretty() -> str:
    found = re.search(r'(?m)^PRETTY_HOSTNAME="?([^"\n]*)', _read("/etc/machine-info"))
    return found[1] if found else ""
