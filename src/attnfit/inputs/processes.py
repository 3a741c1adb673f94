"""Processes of this machine as /proc tells them: who they are, since when, and which unit or container they belong to.

Linux only. Nothing is sent to any of them; a command line is never read, for it may hold a key.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

PROC = Path("/proc")
_CONTAINER = re.compile(
    r"(?:^|/)(?:(?P<kind>docker|libpod|cri-containerd|crio|nerdctl|containerd)-)?"
    r"(?P<id>[0-9a-f]{64})(?:\.scope)?(?:/|$)"
)
_LXC = re.compile(r"/lxc(?:\.payload)?[./](?P<id>[\w-]+)")
_POD = re.compile(r"pod(?P<id>[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f-_]{22,})")
_KINDS = {"libpod": "podman", "cri-containerd": "containerd", "crio": "cri-o"}


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process. `ticks` with `pid` is that process alone: a number that is used again has another beginning."""

    pid: int
    name: str
    uid: int
    user: str
    ticks: int  # clock ticks from the boot to its start
    started: float  # seconds since 1970
    group: int
    session: int
    parent: int
    zombie: bool = False
    unit: str = ""
    of_user: bool = False  # a unit of a user's manager
    container: str = ""  # "docker 0123456789ab"
    cgroup: str = ""


def read_process(pid: int, proc: Path = PROC) -> Process | None:
    """None where there is no such process (any more)."""
    folder = proc / str(pid)
    try:
        stat = (folder / "stat").read_bytes().decode("utf-8", "replace")
        uid = folder.stat().st_uid
    except OSError:
        return None
    name = stat[stat.index("(") + 1 : stat.rindex(")")]
    fields = stat[stat.rindex(")") + 2 :].split()
    state, parent, group, session, ticks = fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19])
    cgroup = read_cgroup(folder)
    unit, of_user = unit_of(cgroup)
    return Process(
        pid=pid, name=name, uid=uid, user=user_name(uid), ticks=ticks, started=boot_time(proc) + ticks / _hertz(),
        group=group, session=session, parent=parent, zombie=state in "ZX", unit=unit, of_user=of_user,
        container=container_of(cgroup), cgroup=cgroup,
    )  # fmt: skip


def pids(proc: Path = PROC) -> Iterator[int]:
    try:
        yield from sorted(int(entry.name) for entry in os.scandir(proc) if entry.name.isdecimal())
    except OSError:
        return


def every(proc: Path = PROC) -> Iterator[Process]:
    for pid in pids(proc):
        found = read_process(pid, proc)
        if found is not None:
            yield found


def _hertz() -> int:
    return os.sysconf("SC_CLK_TCK")


def boot_time(proc: Path = PROC) -> float:
    try:
        found = re.search(r"(?m)^btime (\d+)", (proc / "stat").read_text())
    except OSError:
        return 0.0
    return float(found[1]) if found else 0.0


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def read_cgroup(folder: Path) -> str:
    """The process's place in systemd's own tree: of cgroup v2, or of the hierarchy that v1 names for it."""
    try:
        lines = (folder / "cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    found = dict(line.split(":", 2)[1:] for line in lines if line.count(":") >= 2)
    paths = [found[kind] for kind in ("", "name=systemd") if kind in found] + sorted(found.values(), key=len)
    return next((path for path in paths if len(path) > 1), paths[0] if paths else "")


def unit_of(cgroup: str) -> tuple[str, bool]:
    """(the service or scope a cgroup belongs to, whether it is one of a user's manager); "" for none."""
    parts = cgroup.split("/")
    of_user = any(re.fullmatch(r"user@\d+\.service", part) for part in parts)
    for part in reversed(parts):
        if part.endswith(".service") and not re.fullmatch(r"user@\d+\.service", part):
            return part, of_user
        if part.endswith(".scope") and not _CONTAINER.search(part):
            return part, of_user
    return "", of_user


def in_unit(cgroup: str, name: str, of_user: bool) -> bool:
    """Whether the cgroup is that unit's or lies below it."""
    parts = cgroup.split("/")
    return name in parts and any(re.fullmatch(r"user@\d+\.service", part) for part in parts) == of_user


def container_of(cgroup: str) -> str:
    """The container a cgroup is made for, as its runtime names it; "" for none."""
    found = list(_CONTAINER.finditer(cgroup))
    if found:
        last = found[-1]
        kind = last["kind"] or ("docker" if "/docker/" in cgroup else "container")
        return f"{_KINDS.get(kind, kind)} {last['id'][:12]}"
    if lxc := _LXC.search(cgroup):
        return f"lxc {lxc['id']}"
    pod = _POD.search(cgroup)
    return f"pod {pod['id']}" if pod else ""
