"""One start of a unit, followed until a real request was answered or it is clear that none will be."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from attnfit.deploy.left import of_unit
from attnfit.deploy.ready import Prober, ours
from attnfit.deploy.stages import FIRST_REQUEST, SERVING, Tracker
from attnfit.deploy.stream import BLOCK, Kept, Lines, Tail
from attnfit.deploy.systemctl import State, Systemd
from attnfit.deploy.traffic import Traffic
from attnfit.engines.serving import Address, Serving
from attnfit.inputs.units.unit import Unit

TICK_S = 1.0  # between two questions to systemd
SETTLE_S = 10.0  # a unit that nothing can be asked of counts as started after so long
LOOK_S = 20.0  # of silence, after which it is looked whether the engine is at work
BEGIN_S = 60.0  # that the manager may take to end the old start and begin the new one
REST_S = 1.0  # that the journal may take for the last lines of a start that failed


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """How a start ended. `log`: what the unit printed in it."""

    healthy: bool
    why: str
    stage: str
    seconds: float
    log: Kept


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What is watched. file: where its output goes if not to the journal, and how long that was before the start."""

    unit: Unit
    serving: Serving
    address: Address
    in_container: bool
    wait: float  # seconds at most until it serves
    file: tuple[Path, int] | None = None


def output_of(unit: Unit) -> tuple[Path, int] | None:
    """The file that StandardOutput= names, and its size now; None: the journal, or what cannot be told."""
    kind, colon, path = unit.last("StandardOutput").partition(":")
    if kind not in ("append", "file", "truncate") or not colon or "%" in path:
        return None
    try:
        return Path(path), 0 if kind == "truncate" else Path(path).stat().st_size
    except OSError:
        return Path(path), 0


class UnitWatch:
    def __init__(self, systemd: Systemd, target: Target, say: Callable[[str], None]) -> None:
        self.systemd, self.target, self._say = systemd, target, say
        self.tracker = Tracker(target.serving)
        self.kept, self._lines, self._traffic = Kept(), Lines(), Traffic()
        self._looked = 0.0
        self.answered, self.refused = False, ""

    def run(self, left: str) -> Watched:
        """left: the invocation that the start replaces; its last moments are not taken for the new one's."""
        began = time.monotonic()
        self.first = self.state = self._begun(left, began + min(self.target.wait, BEGIN_S))
        address = self.target.address
        file = self.target.file
        journal = None if file else self.systemd.follow(self.target.unit.name, self.state.invocation)
        tail = Tail(file[0]) if file else None
        if tail is not None and file is not None:
            tail.skip(file[1])
        prober = None
        if address.nothing:
            self._say(f"whether it serves is not asked: {address.nothing}")
        else:
            prober = Prober(self.target.serving, address, None, patience=FIRST_REQUEST.patience)
        why = ""
        with selectors.DefaultSelector() as chosen:
            try:
                if journal is not None and journal.stdout is not None:
                    chosen.register(journal.stdout, selectors.EVENT_READ, "journal")
                if prober is not None:
                    chosen.register(prober.woken, selectors.EVENT_READ, "prober")
                while not why and not self.answered:
                    heard = chosen.select(TICK_S)
                    if tail is not None:
                        self._read(tail.read())
                    for key, _ in sorted(heard, key=lambda pair: str(pair[0].data)):  # what it printed comes first
                        if key.data == "prober" and prober is not None:
                            self._probed(prober)
                        elif not self._read(os.read(key.fd, BLOCK)):
                            chosen.unregister(key.fileobj)
                    self.state = self.systemd.state(self.target.unit.name)
                    why = self._wrong(time.monotonic() - began)
                if why and journal is not None and journal.stdout is not None:
                    self._rest(journal.stdout.fileno())
            finally:
                if prober is not None:
                    prober.close()
                if tail is not None:
                    tail.close()
                if journal is not None:
                    journal.kill()
                    journal.communicate()
        return Watched(
            healthy=self.answered and not why,
            why=why,
            stage=self.tracker.stage.name,
            seconds=time.monotonic() - began,
            log=self.kept,
        )

    def _stranger(self) -> bool:
        """Whether it is certain that none of the unit's processes listens there."""
        if self.target.in_container or self.target.address.socket:
            return False
        members = self.members()
        return bool(members) and ours(self.target.address, members) is False

    def members(self) -> list[psutil.Process]:
        """The unit's processes, as far as they can be seen."""
        unit = self.target.unit
        found = []
        for each in of_unit(unit.name, user=unit.user, cgroup=self.state.cgroup).processes:
            with contextlib.suppress(psutil.Error):
                found.append(psutil.Process(each.pid))
        return found

    def _begun(self, left: str, until: float) -> State:
        """The state once the new start has begun: a restart first takes its time to end the old one."""
        while True:
            state = self.systemd.state(self.target.unit.name)
            new = bool(state.invocation) and state.invocation != left
            if new or state.active == "failed" or time.monotonic() > until:
                return state
            time.sleep(0.1)

    def _read(self, data: bytes) -> bool:
        self.kept.add(data)
        for line in self._lines.feed(data):
            if self.tracker.feed(line):
                self._say(f"{self.tracker.stage.name} ...")
        return bool(data)

    def _probed(self, prober: Prober) -> None:
        for said in prober.heard():
            if said.what == "healthy":
                self.tracker.enter(FIRST_REQUEST)
            elif said.what == "ready" and self._stranger():
                self.refused = f"{self.target.address.url} is answered by another process, not by the unit"
            elif said.what == "ready":
                self.answered = True
                self._say(f"a {said.request} was answered" if said.request else said.note)
                self.tracker.enter(SERVING)

    def _wrong(self, passed: float) -> str:
        """What means that the start failed; "" for nothing."""
        state, first, tracker = self.state, self.first, self.tracker
        status = f", exit status {state.status}" if state.status not in ("", "0") else ""
        if state.active == "failed":
            return f"the unit failed ({state.result}{status})"
        if state.restarts > first.restarts or (state.invocation and state.invocation != first.invocation):
            return f"it ended{status}, and systemd has started it again"
        if state.sub == "auto-restart":
            return f"it ended{status}; systemd waits to start it again"
        if state.active in ("inactive", "deactivating"):
            return f"it ended ({state.result}{status})"
        if self.answered or self.refused:
            return self.refused
        if self.target.address.nothing and state.active == "active" and passed > SETTLE_S:
            self.answered = True
            return ""
        if passed > self.target.wait:
            return f"it did not serve within {self.target.wait:.0f} s, and was at: {tracker.stage.name}"
        return self._hung()

    def _hung(self) -> str:
        tracker, now = self.tracker, time.monotonic()
        every = min(LOOK_S, tracker.patience / 4)
        if tracker.silent > every and now - self._looked > every:
            self._looked = now
            if self._traffic.goes_on(self.members()):
                tracker.alive()
        return f"no sign of progress for {tracker.silent:.0f} s, at: {tracker.stage.name}" if tracker.hung else ""

    def _rest(self, pipe: int) -> None:
        """What the journal still says of a start that failed."""
        until = time.monotonic() + REST_S
        with selectors.DefaultSelector() as waiting:
            waiting.register(pipe, selectors.EVENT_READ)
            while time.monotonic() < until and waiting.select(REST_S / 3):
                data = os.read(pipe, BLOCK)
                if not data:
                    return
                self.kept.add(data)
