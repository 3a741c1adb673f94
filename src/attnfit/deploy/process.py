"""attnfit's side of the keeper: one engine, started, told to stop, and gone for certain."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from attnfit.deploy import tree
from attnfit.deploy.residue import Residue

BLOCK = 1 << 16
GRACE_S = 30.0  # from asking the engine to end to ending it
SLOW_S = 5.0  # that the keeper may take beyond what it waits for


class Detached:
    """Where a detached engine's output and end are kept."""

    def __init__(self, folder: Path, number: int) -> None:
        """number: of the start; each has its own, so that none is read for another's."""
        self.log = folder / f"engine-{number}.log"
        self.end = folder / f"ended-{number}.json"


class Engine:
    """A started engine. `out`, `err` and `status` are descriptors to select on; -1: there is none."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        grace: float = GRACE_S,
        detached: Detached | None = None,
        secrets: Mapping[str, str] = {},
    ) -> None:
        """argv is started as it is, by no shell. Raises OSError where not even the keeper can be started."""
        tree.adopt()  # should the keeper be killed, its children come to us
        self.pid = 0  # of the engine's first process
        self.created = 0.0
        self.code: int | None = None
        self.left: list[dict[str, Any]] = []
        self.removed: list[str] = []  # files that belonged to it and to nobody any more
        self.gone = False  # everything is over, and nothing is left but what `left` names
        self.trouble = ""  # why it could not be started
        self.asked = ""
        self._until = float("inf")  # when the keeper must have ended everything
        self._grace = grace
        self._residue = Residue([*argv, *env.values()])  # what the keeper saw the engine hold
        self._said = b""
        self._ended = False
        pipes: list[int] = []
        try:
            self.status, status = _pipe(pipes)
            self.out, out = (-1, -1) if detached else _pipe(pipes)
            self.err, err = (-1, -1) if detached else _pipe(pipes)
            self._keeper = subprocess.Popen(
                [sys.executable, "-P", "-m", "attnfit.deploy.keeper"],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                pass_fds=[pipe for pipe in (status, out, err) if pipe >= 0],
            )  # fmt: skip
        except BaseException:
            for pipe in pipes:
                os.close(pipe)
            raise
        for pipe in (status, out, err):
            if pipe >= 0:
                os.close(pipe)
        job = {
            "argv": list(argv), "env": dict(env), "grace": grace, "status": status, "out": out, "err": err,
            "log": str(detached.log) if detached else "", "end": str(detached.end) if detached else "",
            "secrets": dict(secrets),
        }  # fmt: skip
        self._order(json.dumps(job).encode())
        self.keeper = self._keeper.pid
        self.keeper_created = tree.created(self.keeper)

    def stop(self, signal_name: str = "term") -> None:
        """Asks the engine to end; asked again, or when its grace is over, everything of it is killed."""
        if self.asked:
            self.kill()
            return
        self.asked = "stop"
        self._until = time.monotonic() + self._grace + tree.SETTLE_S + tree.TERM_S + tree.KILL_S + SLOW_S
        self._order(b"int" if signal_name == "int" else b"stop")
        self._wake()

    def kill(self) -> None:
        self.asked = "kill"
        self._until = min(self._until, time.monotonic() + tree.SETTLE_S + tree.KILL_S + SLOW_S)
        self._order(b"kill")
        self._wake()

    def _wake(self) -> None:
        """A keeper that somebody has stopped (SIGSTOP) hears no order."""
        if tree.same(self.keeper, self.keeper_created) is not None:
            tree.send(self.keeper, signal.SIGCONT)

    def overdue(self) -> None:
        """Kills a keeper that was told to end everything and has not, long after it had to: what it kept is then
        ours to end."""
        if time.monotonic() > self._until and tree.same(self.keeper, self.keeper_created) is not None:
            tree.send(self.keeper, signal.SIGKILL)

    def _order(self, line: bytes) -> None:
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):
            self._keeper.stdin.write(line + b"\n")
            self._keeper.stdin.flush()

    def hear(self) -> None:
        """Reads what the keeper says; call it when `status` can be read."""
        found = b""
        with contextlib.suppress(OSError):
            found = os.read(self.status, BLOCK)
        *lines, self._said = (self._said + found).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if said["event"] == "started":
                self.pid, self.created = said["pid"], said["created"]
            elif said["event"] == "holds":
                self._residue.told(said["files"])
            elif said["event"] == "exited":
                self.code = said["code"]
            elif said["event"] in ("failed", "broken"):
                self.trouble = said["text"]
            elif said["event"] == "ended":
                self.left, self.removed, self._ended = said["left"], said.get("removed", []), True
        if not found:
            self._over()

    def _over(self) -> None:
        """The keeper is gone. It was the last to go, unless it was killed: then what it kept is ours to end."""
        self._keeper.wait()
        if self.pid and not self._ended:
            self.trouble = "the process that holds the engine together (attnfit.deploy.keeper) was ended from outside"
        self._residue.look(each.pid for each in self._orphans())
        self.left += tree.end(lambda: self._orphans(), hard=True)
        if not self._ended:
            self.removed = self._residue.clear()
        self.gone = True

    def _orphans(self) -> list[psutil.Process]:
        """What the keeper left to us. The engine's tree is all that `run` starts while an engine is there."""
        found = tree.below(but=frozenset((self.keeper,)))
        for each in psutil.Process().children():
            with contextlib.suppress(psutil.Error, ChildProcessError):
                if each.status() == psutil.STATUS_ZOMBIE and each.pid != self.keeper:
                    os.waitpid(each.pid, os.WNOHANG)
        return found

    def members(self) -> list[psutil.Process]:
        """The engine's living processes."""
        try:
            return tree.below(psutil.Process(self.keeper))
        except psutil.Error:
            return []

    def close(self) -> None:
        """Lets go of the pipes. An engine that is not detached ends with that, if it has not yet."""
        with contextlib.suppress(OSError):
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()
        for pipe in (self.status, self.out, self.err):
            if pipe >= 0:
                os.close(pipe)
        self.status = self.out = self.err = -1


def _pipe(kept: list[int]) -> tuple[int, int]:
    read, write = os.pipe()
    kept += (read, write)
    os.set_blocking(read, False)
    return read, write
