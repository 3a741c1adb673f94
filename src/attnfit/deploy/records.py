"""What was started, how it went and what was left: one small private file a run, for `attnfit runs`.

They lie in $XDG_STATE_HOME/attnfit/runs/ID/record.json. A disk that is full is a note; it never stops an engine.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import psutil

from attnfit.deploy import tree
from attnfit.deploy.files import private_folder, read_plain, write_private
from attnfit.deploy.signals import SAME_S
from attnfit.errors import UsageError, did_you_mean

SCHEMA = 1
MOST = 200  # runs that are kept
MARK = "ATTNFIT_RUN"  # the engine's environment has the run's id under this name: by it `free` knows what is left

# A file may hold anything: what is no time or process number is no record.
Time = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
Known = tuple[Annotated[int, msgspec.Meta(ge=0, le=1 << 22)], Time]  # process, and when it began


class Attempt(msgspec.Struct, kw_only=True):
    """One start of the engine. Keys and tokens stand as $NAME in all of it."""

    command: tuple[str, ...]
    started: Time  # seconds since 1970
    ended: Time | None = None
    outcome: str = "starting"  # then: serving, served, failed, crashed, hung, stopped, not started
    stage: str = ""  # the last that was reached
    ready_s: float | None = None  # from the start to the answer of the first request
    code: int | None = None  # exit status of the engine's first process; -9: killed by signal 9
    hazard: str = ""  # the record that explains it: "AF034"
    cause: str = ""  # in words
    line: str = ""  # the engine's own
    left: int = 0  # processes that were still there when the first had ended; they were ended
    stuck: int = 0  # of them, those that could not be ended
    removed: tuple[str, ...] = ()  # sockets and shared memory of its own that it left
    memory: str = ""  # what is to say of its GPU memory afterwards


class Run(msgspec.Struct, kw_only=True):
    id: str
    engine: str
    started: Time
    command: tuple[str, ...]
    url: str = ""
    detached: bool = False
    outcome: str = "starting"
    exit_code: int | None = None
    attempts: list[Attempt] = []
    attnfit: Known = (0, 0.0)
    keeper: Known = (0, 0.0)
    process: Known = (0, 0.0)  # the engine's first
    schema: int = SCHEMA

    @property
    def watcher(self) -> psutil.Process | None:
        """The attnfit that watches it, and may start it again; one that is done with it goes on as a Python program
        may that has called us."""
        return tree.same(*self.attnfit) if self.exit_code is None and self.attnfit[0] else None

    @property
    def alive(self) -> bool:
        """Whether anything of it is there, or will be again."""
        known = (each for each in (self.keeper, self.process) if each[0])
        if self.watcher is not None or any(tree.same(*each) is not None for each in known):
            return True
        return bool(self.process[0] and tree.session(*self.process))

    @property
    def state(self) -> str:
        """The outcome, where attnfit lived to note it."""
        under_way = self.outcome in ("starting", "serving")
        return "lost" if under_way and not self.alive else self.outcome


class End(msgspec.Struct):
    """What a keeper noted when a detached engine had ended."""

    ended: Time
    code: int | None
    left: list[dict[str, Any]]
    removed: tuple[str, ...] = ()
    asked: str = ""


def folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "attnfit" / "runs"


def new_id() -> str:
    return time.strftime("%m%d-%H%M%S-") + secrets.token_hex(2)


class Book:
    """Writes one run's record again and again. `trouble`: why it could not be written the last time."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.trouble = ""
        self.place = folder() / run.id

    def write(self) -> str:
        """Why it cannot be written, where that is new; else ""."""
        try:
            private_folder(self.place.parent)
            private_folder(self.place)
            write_private(self.place / "record.json", msgspec.to_builtins(self.run))
        except OSError as error:
            first = not self.trouble
            self.trouble = f"this run is not recorded: {error.strerror or error} ({self.place})"
            return self.trouble if first else ""
        self.trouble = ""
        return ""


def read_all() -> list[Run]:
    """Every run that is recorded, oldest first; what cannot be read is left out."""
    found = [run for place in _places() if (run := _read(place)) is not None]
    return sorted(found, key=lambda run: run.started)


def _places() -> list[Path]:
    try:
        return sorted(place for place in folder().iterdir() if place.is_dir() and not place.is_symlink())
    except OSError:
        return []


def find(id: str) -> Run:
    """One run, by its whole number or the end of it. Raises UsageError."""
    if not id:
        raise UsageError("an empty number is no run's; attnfit runs lists them")
    runs = read_all()
    found = [run for run in runs if run.id == id] or [run for run in runs if run.id.endswith(id)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{id!r} may be {', '.join(run.id for run in found)}; give the whole of it")
    raise UsageError(f"no run {id!r}{did_you_mean(id, [run.id for run in runs])}; attnfit runs lists them")


def _read(place: Path) -> Run | None:
    """The record in a folder; one that says it is another folder's is none."""
    try:
        run = msgspec.json.decode(read_plain(place / "record.json"), type=Run)
    except (OSError, msgspec.MsgspecError):
        return None
    if run.id != place.name:
        return None
    try:
        end = msgspec.json.decode(read_plain(place / f"ended-{len(run.attempts)}.json"), type=End)
    except (OSError, msgspec.MsgspecError):
        return run
    if run.attempts and run.attempts[-1].ended is None:
        last = run.attempts[-1]
        last.ended, last.code, last.left = end.ended, end.code, len(end.left)
        last.stuck, last.removed = sum(not each.get("ended", True) for each in end.left), end.removed
        last.outcome = run.outcome = "served" if end.asked or end.code == 0 else "crashed"
    return run


def prune() -> None:
    """Forgets the oldest runs of which nothing is there any more, and folders without a record as old as they."""
    known = [(run.started if (run := _read(place)) else _changed(place), place, run) for place in _places()]
    known.sort(key=lambda each: each[:2])
    for _, place, run in known[: max(0, len(known) - MOST)]:
        if run is None or not run.alive:
            shutil.rmtree(place, ignore_errors=True)


def _changed(place: Path) -> float:
    try:
        return place.stat().st_mtime
    except OSError:
        return 0.0


def tell(run: Run) -> None:
    """Has whoever watches a run end it: that one would take its end for a crash, and start it again."""
    if (watcher := run.watcher) is not None:
        tree.send(watcher.pid, signal.SIGTERM)
        tree.send(watcher.pid, signal.SIGCONT)  # somebody may have stopped it


def unwatched(run: Run, seconds: float) -> bool:
    """Whether nobody watches a run any more, at the latest after so many seconds."""
    until = time.monotonic() + seconds
    while (there := (_read(folder() / run.id) or run).watcher is not None) and time.monotonic() < until:
        time.sleep(tree.TICK_S)
    return not there


def stop(run: Run, seconds: float) -> Iterator[psutil.Process]:
    """Ends what is there of a run: attnfit does it where that watches, else its keeper, else we. Yields what could not
    be ended."""
    tell(run)
    if not unwatched(run, max(seconds, 2 * SAME_S)):
        tell(run)  # the second time is without grace
        unwatched(run, tree.KILL_S + tree.TERM_S)
    run = _read(folder() / run.id) or run  # it may have started another meanwhile
    keeper = tree.same(*run.keeper)
    if keeper is not None:
        tree.send(keeper.pid, signal.SIGTERM)
        tree.send(keeper.pid, signal.SIGCONT)  # somebody may have stopped it
        psutil.wait_procs([keeper], timeout=seconds)
        if keeper.is_running():
            tree.send(keeper.pid, signal.SIGQUIT)  # without grace
            psutil.wait_procs([keeper], timeout=tree.KILL_S + tree.TERM_S)
    if not run.process[0]:
        return
    whole = {each.pid: each for each in tree.session(*run.process)}
    if (process := tree.same(*run.process)) is not None:
        whole |= {each.pid: each for each in (process, *tree.below(process))}
    for each in whole.values():
        tree.send(each.pid, signal.SIGTERM)
    _, left = psutil.wait_procs(list(whole.values()), timeout=seconds)
    for each in left:
        tree.send(each.pid, signal.SIGKILL)
    yield from psutil.wait_procs(left, timeout=tree.KILL_S)[1]
