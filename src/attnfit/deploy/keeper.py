"""Holds one engine's processes together: a small program of its own between attnfit and the engine.

It starts the engine in a session of its own and, on Linux, adopts whatever the engine leaves behind, so that no worker
or resource tracker gets lost. It ends the whole tree when it is told to, when the engine's first process ends, and
when the pipe from attnfit breaks: attnfit is gone, killed with -9 perhaps. A detached engine stays then.

The job comes as JSON on stdin, so that nothing of it stands in the process list; further lines on stdin are orders.
What happens goes as JSON lines to the descriptor that the job names.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import Any

import psutil

from attnfit.deploy import tree
from attnfit.deploy.keptlog import KeptLog
from attnfit.deploy.residue import Residue
from attnfit.deploy.signals import heard

BLOCK = 1 << 16
LOOKS_S = (2.0, 5.0, 10.0, 20.0, 40.0)  # after the start, and then each 60 s: what the engine holds open is looked at
# Also whenever there is a new name of a socket or of shared memory, which may be the engine's; later on more rarely.
GLANCE_S, GLANCE_LATER_S, LATER_S = 0.5, 5.0, 600.0


class Keeper:
    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.detached = bool(job["log"])
        self.log = KeptLog(job["log"], job["secrets"]) if self.detached else None
        self.engine: subprocess.Popen[bytes] | None = None
        self.code: int | None = None  # of the engine's first process, once it has ended
        self.asked = ""  # what it was told to do: "stop", "kill"
        self.since = 0.0
        self.orders = b""
        self.residue = Residue([*job["argv"], *job["env"].values()])
        self.looked = 0  # times
        self.look_at = 0.0
        self.began = time.monotonic()

    def say(self, **what: Any) -> None:
        with contextlib.suppress(OSError):
            os.write(self.job["status"], json.dumps(what).encode() + b"\n")

    def start(self) -> bool:
        job = self.job
        out, err = (subprocess.PIPE, subprocess.STDOUT) if self.detached else (job["out"], job["err"])

        def first() -> None:
            if not self.detached:  # should we be killed ourselves
                tree.prctl(tree.PR_SET_PDEATHSIG, signal.SIGKILL)

        try:
            self.engine = subprocess.Popen(
                job["argv"], env=job["env"], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True, preexec_fn=first,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            self.say(event="failed", text=str(error))
            return False
        for pipe in (job["out"], job["err"]):
            if pipe >= 0:
                os.close(pipe)
        self.say(event="started", pid=self.engine.pid, created=tree.created(self.engine.pid))
        return True

    def run(self) -> None:
        woken, wake = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in filter(heard, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)):
            signal.signal(number, self.signalled)
        tree.adopt()
        if not self.start():
            return
        wait = selectors.DefaultSelector()
        wait.register(woken, selectors.EVENT_READ, lambda: self.drain(woken))
        wait.register(0, selectors.EVENT_READ, self.read_orders)
        if self.detached:
            os.set_blocking(self.output, False)
            wait.register(self.output, selectors.EVENT_READ, self.pump)
        self.look()
        while self.code is None:
            for key, _ in wait.select(self.patience()):
                if not key.data():
                    wait.unregister(key.fd)
            self.reap()
            if time.monotonic() >= self.look_at:
                self.look()
            elif self.residue.stirred():
                self.look(planned=False)
            if self.asked == "stop" and self.grace_left() == 0.0 and self.code is None:
                self.order("kill")
        self.say(event="exited", code=self.code)
        self.look()  # what workers hold that outlived it, and made since the last time
        grace = min(tree.TERM_S, self.job["grace"])
        left = tree.end(self.others, hard=self.asked == "kill", grace=grace, meanwhile=self.pump)
        removed = self.residue.clear()
        if self.log is not None:
            self.pump()
            self.log.close()
        self.note_end(left, removed)
        self.say(event="ended", left=left, removed=removed)

    @property
    def output(self) -> int:
        assert self.engine is not None
        assert self.engine.stdout is not None
        return self.engine.stdout.fileno()

    def patience(self) -> float:
        """Seconds until there is something to do."""
        now = time.monotonic()
        glance = GLANCE_S if now < self.began + LATER_S else GLANCE_LATER_S
        until_look = min(glance, max(0.0, self.look_at - now))
        return min(until_look, self.grace_left()) if self.asked == "stop" else until_look

    def grace_left(self) -> float:
        return max(0.0, self.since + float(self.job["grace"]) - time.monotonic())

    def look(self, *, planned: bool = True) -> None:
        if planned:
            self.look_at = time.monotonic() + (LOOKS_S[self.looked] if self.looked < len(LOOKS_S) else 60.0)
            self.looked += 1
        if new := self.residue.look(each.pid for each in self.others()):
            self.say(event="holds", files=new)  # should we be killed ourselves

    def signalled(self, number: int, _frame: object) -> None:
        """SIGTERM never means haste: a unit that stops sends it to us and to attnfit, which then asks us too."""
        if number == signal.SIGQUIT:
            self.order("kill")
        elif number != signal.SIGCHLD:
            self.order("stop", signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)

    def drain(self, pipe: int) -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(pipe, BLOCK)
        return True

    def read_orders(self) -> bool:
        found = b""
        with contextlib.suppress(OSError):
            found = os.read(0, BLOCK)
        if not found:
            if not self.detached:
                self.order("stop")
            return False
        *lines, self.orders = (self.orders + found).split(b"\n")
        for line in lines:
            self.order("kill" if line == b"kill" else "stop", signal.SIGINT if line == b"int" else signal.SIGTERM)
        return True

    def order(self, what: str, number: int = signal.SIGTERM) -> None:
        """stop: the engine's first process is asked, and given its grace; kill: everything at once."""
        if what == self.asked or self.asked == "kill":
            return
        self.asked, self.since = what, time.monotonic()
        if self.engine is None or self.code is not None:
            return
        self.look()
        if what == "stop":
            tree.send(self.engine.pid, number)
        else:
            for each in tree.first_to_kill(self.others()):
                tree.send(each.pid, signal.SIGKILL)

    def others(self) -> list[psutil.Process]:
        self.reap()
        return tree.below()

    def reap(self) -> None:
        """Zombies of the engine, and of everything that was left to us."""
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if self.engine is not None and found[0] == self.engine.pid:
                    self.code = self.engine.returncode = os.waitstatus_to_exitcode(found[1])

    def pump(self) -> bool:
        """The output of a detached engine, into its file; False: there will be no more."""
        if self.log is None:
            return False
        while True:
            try:
                found = os.read(self.output, BLOCK)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not found:
                return False
            self.log.write(found)

    def note_end(self, left: list[dict[str, Any]], removed: list[str]) -> None:
        """For those who ask later: nobody may be there to be told."""
        if self.detached:
            from attnfit.deploy.files import write_private

            with contextlib.suppress(OSError):
                ended = {"code": self.code, "ended": time.time(), "asked": self.asked, "left": left, "removed": removed}
                write_private(self.job["end"], ended)


def read_job() -> dict[str, Any]:
    """The first line of stdin, byte by byte: what follows are orders."""
    found = bytearray()
    while not found.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            sys.exit(0)  # attnfit is gone before it said what to start
        found += piece
    job: dict[str, Any] = json.loads(found)
    return job


def main() -> None:
    keeper = Keeper(read_job())
    try:
        keeper.run()
    except Exception as error:  # whatever it is: nothing may stay behind
        keeper.say(event="broken", text=f"{type(error).__name__}: {error}")
        keeper.say(event="ended", left=tree.end(keeper.others, hard=True), removed=keeper.residue.clear())
        raise


if __name__ == "__main__":
    main()
