"""One start of an engine, from its first line to its end: output passed through, stages, ready, hang, signals."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from attnfit.deploy.command import Launch
from attnfit.deploy.process import GRACE_S, Detached, Engine
from attnfit.deploy.ready import Prober, Said, ours
from attnfit.deploy.signals import Signals
from attnfit.deploy.stages import FIRST_REQUEST, SERVING, Tracker
from attnfit.deploy.stream import BLOCK, Kept, Lines, Tail, Through
from attnfit.deploy.traffic import Traffic
from attnfit.engines.log import log_words
from attnfit.engines.serving import Address, Serving
from attnfit.explain import Answer

TICK_S = 0.2
QUIET_S = 10.0  # an engine that has said it is dead, and says no more for so long, is not waited for
PROGRESS_S = 5.0  # from one line of progress to the next
LOOK_S = 20.0  # a silent engine is looked at so often; more often where its stage has less patience

Say = Callable[..., None]  # (event, **what it says)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    patience: Mapping[str, float] = {}  # seconds without progress, by stage; "": in all of them
    grace: float = GRACE_S
    keep_hung: bool = False
    out: int = 1  # where the engine's stdout goes; -1: nowhere
    err: int = 2
    probe_every: float = 0.5


class Ended(msgspec.Struct, kw_only=True):
    """How a start went. outcome: serving (detached, and still there), served, failed, crashed, hung, stopped,
    not started."""

    outcome: str
    stage: str
    ready_s: float | None
    served_s: float
    code: int | None
    answer: Answer | None
    trouble: str
    left: list[dict[str, Any]]
    removed: list[str]  # files that it left
    silent_s: float = 0.0
    told: bool = False  # it was ended by us, because it hung or had failed


class Watch:
    def __init__(
        self, launch: Launch, serving: Serving, address: Address, settings: Settings, say: Say, signals: Signals
    ) -> None:
        self.launch, self.serving, self.address, self.settings = launch, serving, address, settings
        self._say, self.signals = say, signals
        self.tracker = Tracker(serving, settings.patience)
        self.kept = Kept()
        self.background = ""  # why an end of its first process that looks good is none
        self.why = ""  # why it was told to end by us: "hung", "failed"
        self.ready_at: float | None = None
        self.silent = 0.0
        self._lines = (Lines(), Lines())
        self._judged = -1  # how much was kept when it was last judged
        self._told = 0.0
        self._kept_hung = False
        self._forwarded = 0
        self._traffic, self._looked = Traffic(), 0.0
        words = next(each for each in log_words() if each.engine == serving.engine)
        self._ready_words = words.ready

    def run(
        self, detached: Detached | None, started: Callable[[Engine], None], ready: Callable[[float], None]
    ) -> Ended:
        """started, ready: told when that happens, for the record."""
        self.begun = time.monotonic()
        engine = self.engine = Engine(
            self.launch.argv, self.launch.env, grace=self.settings.grace, detached=detached, secrets=self.launch.secrets
        )
        self.detached, self._on_started, self._on_ready = detached, started, ready
        self._through = tuple(
            Through(to, lambda: self.signals.count > 0) for to in (self.settings.out, self.settings.err)
        )
        self._tail = Tail(detached.log) if detached else None
        self._select = selectors.DefaultSelector()
        self._prober: Prober | None = None
        try:
            self._register(engine.status, self._hear)
            self._register(self.signals.woken, self.signals.drain)
            for number, pipe in enumerate((engine.out, engine.err)):
                if pipe >= 0:
                    self._register(pipe, partial(self._read, pipe, number))
            while not engine.gone:
                for key, _ in self._select.select(TICK_S):
                    key.data()
                if self.detached and self.ready_at is not None:
                    break
                self._follow()
                self._judge()
            self._drain()
        finally:
            if self._prober is not None:
                self._prober.close()
            self._select.close()
            if self._tail is not None:
                self._tail.close()
            engine.close()
        return self._ended()

    def _register(self, descriptor: int, call: Callable[[], object]) -> None:
        self._select.register(descriptor, selectors.EVENT_READ, call)

    # ---- what is heard ----

    def _hear(self) -> None:
        known = self.engine.pid
        self.engine.hear()
        if self.engine.code == 0 and self._prober is not None and self.ready_at is not None and not self.engine.asked:
            address = self._prober.address
            if not address.socket and ours(address, self.engine.members()):
                self.background = "its first process ended while another of it served; start it in the foreground"
        if self.engine.gone:
            self._select.unregister(self.engine.status)
        if self.engine.pid and not known:
            self._on_started(self.engine)
            self._stage()
            if self.address.nothing:
                self._say("note", text=f"{self.address.nothing}: that it serves is read from its log only")
            else:
                members = None if self.launch.in_container else self.engine.members
                patience = self.settings.patience.get(FIRST_REQUEST.name, FIRST_REQUEST.patience)
                self._prober = Prober(
                    self.serving, self.address, members, patience=patience, every=self.settings.probe_every
                )
                self._register(self._prober.woken, self._probed)

    def _read(self, pipe: int, number: int) -> bool:
        try:
            found = os.read(pipe, BLOCK)
        except BlockingIOError:
            return False
        except OSError:
            found = b""
        if not found:
            with contextlib.suppress(KeyError):
                self._select.unregister(pipe)
            return False
        self._take(found, number)
        return True

    def _take(self, data: bytes, number: int) -> None:
        self._through[number].write(data)
        self.kept.add(data, number)
        for line in self._lines[number].feed(data):
            opened = self.tracker.feed(line)
            if opened or (self.tracker.total and time.monotonic() - self._told > PROGRESS_S):
                self._stage()
            if self.ready_at is None and any(word in line for word in self._ready_words):
                if self._prober is not None:
                    self._prober.looks_elsewhere = True
                elif self.address.nothing:
                    self._ready(Said("ready", note="its log says so"))

    def _follow(self) -> None:
        """The output of a detached engine, out of its file."""
        while self._tail is not None and (found := self._tail.read()):
            self._take(found, 0)

    def _drain(self) -> None:
        for number, pipe in enumerate((self.engine.out, self.engine.err)):
            while pipe >= 0 and self._read(pipe, number):
                pass
        self._follow()

    def _probed(self) -> None:
        assert self._prober is not None
        for said in self._prober.heard():
            if said.what == "healthy" and self.ready_at is None:
                self.tracker.enter(FIRST_REQUEST)
                self._stage()
            elif said.what == "ready":
                self._ready(said)
            else:
                self.tracker.alive()

    def _ready(self, said: Said) -> None:
        self.ready_at = time.monotonic()
        self.tracker.enter(SERVING)
        self._kept_hung = False
        seconds = round(self.ready_at - self.begun, 1)
        self._on_ready(seconds)
        url = "" if self._prober is None else self._prober.address.url
        self._say("ready", url=url, seconds=seconds, request=said.request, note=said.note)

    def _stage(self) -> None:
        self._told = time.monotonic()
        tracker = self.tracker
        self._say("stage", stage=tracker.stage.name, done=tracker.done, total=tracker.total)

    # ---- what is decided ----

    def _judge(self) -> None:
        if self.signals.count > self._forwarded:
            for _ in range(min(2, self.signals.count) - min(2, self._forwarded)):
                hard = bool(self.engine.asked)
                self._say("stopping", signal=self.signals.name, hard=hard, grace=self.settings.grace)
                self.engine.stop("int" if self.signals.first == signal.SIGINT else "term")
            self._forwarded = self.signals.count
        self.engine.overdue()
        if self.engine.asked or self.engine.code is not None:
            return
        if self.tracker.silent > QUIET_S and self.kept.size != self._judged and self.ready_at is None:
            self._judged = self.kept.size
            if self.kept.died:
                self._end("failed", "the engine says that it has failed, and does not end")
                return
        if self.ready_at is None:
            self._look()
        watched = self.ready_at is None or not self.address.nothing
        if watched and self.tracker.hung and not self._kept_hung:
            self.silent = self.tracker.silent
            self._say("hung", stage=self.tracker.stage.name, silent=round(self.silent, 1), kept=self.settings.keep_hung)
            if self.settings.keep_hung:
                self._kept_hung = True
            else:
                self._end("hung", "")

    def _look(self) -> None:
        """Whether a silent engine downloads or compiles."""
        now, every = time.monotonic(), min(LOOK_S, self.tracker.patience / 4)
        if self.tracker.silent > every and now - self._looked > every:
            self._looked = now
            if self._traffic.goes_on(self.engine.members()):
                self.tracker.alive()

    def _end(self, why: str, text: str) -> None:
        self.why = why
        if text:
            self._say("note", text=text)
        self.engine.stop()

    def _ended(self) -> Ended:
        engine = self.engine
        now = time.monotonic()
        outcome = self._outcome()
        failed = outcome in ("failed", "crashed", "hung")
        return Ended(
            outcome=outcome,
            stage=self.tracker.stage.name,
            ready_s=None if self.ready_at is None else round(self.ready_at - self.begun, 1),
            served_s=0.0 if self.ready_at is None else now - self.ready_at,
            code=engine.code,
            answer=self.kept.explained(self.launch.shown) if failed else None,
            trouble=engine.trouble or self.background,
            left=engine.left,
            removed=engine.removed,
            silent_s=self.silent,
            told=bool(self.why),
        )

    def _outcome(self) -> str:
        engine = self.engine
        if not engine.gone:
            return "serving"
        if not engine.pid:
            return "stopped" if self.signals.count else "not started"
        if self.signals.count:
            return "served" if self.ready_at is not None else "stopped"
        if self.why:
            return self.why
        if self.ready_at is None or self.background:
            return "failed"
        # A server whose workers have died may shut down in good order, and say that all is well.
        return "served" if engine.code == 0 and not self.kept.died else "crashed"
