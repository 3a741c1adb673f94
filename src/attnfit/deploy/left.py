"""Which processes an engine left behind: those of a run that attnfit recorded, or of a unit's cgroup. Reads only.

A run's processes are known by number and beginning together; those that they started by descent, while these live, and
by a mark in their environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from attnfit.deploy.records import MARK, Run
from attnfit.inputs.processes import PROC, Process, every, in_unit

_OVERWRITTEN = "\0"  # what a program that changes its title leaves of its environment
_NEAR_S = 0.5  # a beginning is kept in hundredths of a second, and the boot's in whole seconds


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """Processes of one origin, and what makes them its own."""

    origin: str  # "run 1130-120000-ab12", "serve.service"
    processes: tuple[Process, ...]
    attnfit: Process | None = None  # the one that watches the run, where it lives


def of_run(run: Run, proc: Path = PROC) -> Left:
    """What is there of a recorded run."""
    here = {process.pid: process for process in every(proc)}
    alive = [here[pid] for pid, since in (run.keeper, run.process) if _same(here.get(pid), since)]
    found = {each.pid: each for root in alive for each in (root, *_below(root, here)) if not each.zombie}
    for process in here.values():
        if not process.zombie and _is_of(run, process, here, proc):
            found[process.pid] = process
    watcher = here.get(run.attnfit[0]) if run.exit_code is None else None  # done with it, it may go on for others
    return Left(
        origin=f"run {run.id}",
        processes=tuple(found[pid] for pid in sorted(found)),
        attnfit=watcher if _same(watcher, run.attnfit[1]) else None,
    )


def of_unit(name: str, *, user: bool, cgroup: str = "", proc: Path = PROC) -> Left:
    """What is there in a unit's cgroup.

    cgroup: as systemd names it; "" where it does not: then it is one with the unit's name.
    """
    found = [
        each
        for each in every(proc)
        if not each.zombie
        and (f"{each.cgroup}/".startswith(f"{cgroup}/") if cgroup else in_unit(each.cgroup, name, user))
    ]
    return Left(origin=name, processes=tuple(found))


def _same(process: Process | None, since: float) -> bool:
    return process is not None and since > 0 and abs(process.started - since) < _NEAR_S


def _below(root: Process, here: Mapping[int, Process]) -> Sequence[Process]:
    found, look = [], [root.pid]
    while look:
        parent = look.pop()
        children = [each for each in here.values() if each.parent == parent]
        found += children
        look += [each.pid for each in children]
    return found


def _is_of(run: Run, process: Process, here: Mapping[int, Process], proc: Path) -> bool:
    """Whether its environment has the run's mark, or its title overwrote that and it stands in the session that the
    run's first process opened.

    While a session has members the kernel gives its number to no new process; so if that number is another's by now,
    the session is, too.
    """
    first, since = run.process
    if not first or process.started < since - _NEAR_S:
        return False
    mark = _mark(process, proc)
    if mark != _OVERWRITTEN or process.session != first:
        return mark == run.id
    leader = here.get(first)
    return leader is None or leader.zombie or _same(leader, since)


def _mark(process: Process, proc: Path) -> str | None:
    """The mark in its environment; None: it has none, or it is not ours to read."""
    try:
        words = (proc / str(process.pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    for word in words:
        name, equals, value = word.partition(b"=")
        if equals and name == MARK.encode():
            return value.decode("utf-8", "replace")
    return None if any(word.startswith(b"PATH=") for word in words) else _OVERWRITTEN
