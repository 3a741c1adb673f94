"""Starts an engine, and another way when it fails in a way that is known: bounded, each attempt recorded.

A failure that is not known is not tried again. An engine that crashes after it has served is started again, later and
later, and then no more.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from attnfit.deploy import memory, records, tree
from attnfit.deploy.address import address_of
from attnfit.deploy.checked import About, Checked, Instead, checked, cures, may_start
from attnfit.deploy.command import Launch
from attnfit.deploy.process import Detached, Engine
from attnfit.deploy.ready import taken
from attnfit.deploy.records import Attempt, Book, Run
from attnfit.deploy.signals import Signals
from attnfit.deploy.watch import Ended, Settings, Watch
from attnfit.engines.serving import Address, Serving, serving_of
from attnfit.errors import UsageError

LONG_S = 600.0  # a server that served so long did not crash in a loop
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0  # from a crash to the next start; doubled each time
ATTEMPTS = 3
MOST_ATTEMPTS = 100  # that are told of one run

Tell = Callable[[Mapping[str, Any]], None]  # takes events, in which no secret stands


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for. pivot None: a launch that fails is changed, one that is refused before it starts is
    shown; True: both are changed; False: none is."""

    about: About = About()
    settings: Settings = Settings()
    pivot: bool | None = None
    attempts: int = ATTEMPTS
    detach: bool = False
    dry_run: bool = False
    first_wait: float = FIRST_WAIT_S


class _Runner:
    def __init__(
        self, words: Sequence[str], wishes: Wishes, tell: Tell, environ: Mapping[str, str], signals: Signals
    ) -> None:
        self.wishes, self._tell, self.signals = wishes, tell, signals
        self.launch = Launch(words, environ)
        self.serving: Serving = serving_of(self.launch.engine)
        self.tried = {self.launch.words}
        self.number = 0
        self.crashes = 0

    def say(self, event: str, **what: Any) -> None:
        """To the user, without a secret of the launch in it."""
        self._tell({"event": event, **{name: self._clean(value) for name, value in what.items()}})

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.launch.clean(value)
        if isinstance(value, list | tuple):
            return [self._clean(each) for each in value]
        return {name: self._clean(each) for name, each in value.items()} if isinstance(value, dict) else value

    @property
    def address(self) -> Address:
        return address_of(self.launch, self.serving)

    # ---- before a start ----

    def prepare(self) -> int | None:
        """Checks the launch, and takes the plan if that is wished. An exit code: nothing is started."""
        self.launch.findable()
        found = checked(self.launch, self.wishes.about)
        self.say("check", verdict=found.verdict, text=found.text, may_break=found.may_break)
        if found.starts:
            return None
        way = self._first(found)
        if way is not None and self.wishes.pivot and way.launch is not None:
            self.change(way)
            return None
        self.say("refused", ways=[self._shown(each) for each in found.instead], takes=way is not None)
        return 1

    def _first(self, found: Checked) -> Instead | None:
        return next((way for way in found.instead if way.launch is not None), None)

    @staticmethod
    def _shown(way: Instead) -> dict[str, Any]:
        return {"text": way.text, "command": list(way.shown), "gives_up": way.gives_up,
                "installs": list(way.installs), "shows": way.shows}  # fmt: skip

    def change(self, way: Instead) -> None:
        assert way.launch is not None
        self.launch = way.launch
        self.tried.add(way.launch.words)
        self.say("pivot", text=way.text, command=list(self.launch.shown), gives_up=way.gives_up)

    def dry(self) -> int:
        address = self.address
        stages = {stage.name: self.wishes.settings.patience.get(stage.name, self.wishes.settings.patience.get(
            "", stage.patience)) for stage in self.serving.stages}  # fmt: skip
        self.say(
            "dry-run", command=list(self.launch.shown), url="" if address.nothing else address.url,
            note=address.nothing, stages=stages, records=str(records.folder()),
        )  # fmt: skip
        return 0

    # ---- starts ----

    def run(self) -> int:
        code = self.prepare()
        if code is not None or self.wishes.dry_run:
            return self.dry() if code is None else code
        me = os.getpid()
        run = Run(
            id=records.new_id(), engine=self.launch.engine, started=time.time(), command=self.launch.kept,
            detached=self.wishes.detach, attnfit=(me, tree.created(me)),
        )  # fmt: skip
        self.book = Book(run)
        records.prune()
        self.write()
        if self.wishes.detach and self.book.trouble:
            raise UsageError("a detached engine could not be found again without its record; make room for it, or set "
                             "XDG_STATE_HOME to another folder; nothing was started")  # fmt: skip
        self.say("run", id=run.id, records=str(self.book.place))
        try:
            with self.signals:
                before = memory.used()
                while (code := self.after(self.attempt(), before)) is None:
                    pass
        except BaseException:
            self.broken()
            raise
        run.exit_code = code
        if self.signals.first and code == 128 + self.signals.first:
            run.outcome = "stopped"  # also between two starts
        self.write()
        self.say("end", outcome=run.outcome, exit_code=code, attempts=self.number)
        return code

    def broken(self) -> None:
        """Notes that nobody watches it any more, and that the engine has ended with us."""
        run = self.book.run
        run.exit_code, run.outcome = 2, "failed"
        for each in run.attempts[-1:]:
            if each.ended is None:
                each.ended, each.outcome, each.cause = time.time(), "failed", "attnfit itself failed"
        self.write()

    def write(self) -> None:
        if trouble := self.book.write():
            self.say("note", text=trouble)

    def attempt(self) -> Ended:
        self.number += 1
        address, run = self.address, self.book.run
        mine = Attempt(command=self.launch.kept, started=time.time())
        self.launch.env[records.MARK] = run.id
        run.attempts = [*run.attempts[1 - MOST_ATTEMPTS :], mine]
        run.url = "" if address.nothing else address.url
        run.outcome = "starting"
        self.say("attempt", number=self.number, of=self.wishes.attempts, command=list(self.launch.shown))
        if not address.nothing and not self.launch.in_container and (who := taken(address)):
            return Ended(
                outcome="not started", stage="", ready_s=None, served_s=0, code=None, answer=None, left=[], removed=[],
                trouble=f"{address.url} is taken already, by {who}; stop it, or give the server another port",
            )  # fmt: skip

        def started(engine: Engine) -> None:
            run.keeper = (engine.keeper, engine.keeper_created)
            run.process = (engine.pid, engine.created)
            self.write()

        def ready(seconds: float) -> None:
            mine.ready_s, mine.outcome, run.outcome = seconds, "serving", "serving"
            self.write()

        watch = Watch(self.launch, self.serving, address, self.wishes.settings, self.say, self.signals)
        detached = Detached(self.book.place, self.number) if self.wishes.detach else None
        return watch.run(detached, started, ready)

    def after(self, ended: Ended, before: memory.Used) -> int | None:
        """What is done after a start has ended; an exit code, or None: start again."""
        run, mine = self.book.run, self.book.run.attempts[-1]
        mine.outcome = run.outcome = ended.outcome
        mine.stage, mine.ready_s, mine.code = ended.stage, ended.ready_s, ended.code
        if ended.outcome == "serving":
            self.write()
            kept = not self.book.trouble
            log = str(Detached(self.book.place, self.number).log)
            self.say("detached", id=run.id, log=log, keeper=run.keeper[0], recorded=kept)
            return 0
        mine.ended = time.time()
        mine.left, mine.stuck = len(ended.left), sum(not each["ended"] for each in ended.left)
        mine.removed = tuple(map(self._clean, ended.removed))
        self._explain(ended, mine)
        if ended.left or ended.removed:
            processes = [f"{each['pid']} {each['what']}" for each in ended.left]
            self.say("left", processes=processes, stuck=mine.stuck, removed=ended.removed)
        if ended.outcome in ("served", "stopped"):
            self.write()
            return 0 if ended.outcome == "served" or not self.signals.first else 128 + self.signals.first
        mine.memory = (
            memory.wait_free(before, lambda: self.signals.count > 0)
            if mine.ready_s or ended.outcome != "not started"
            else ""
        )
        if mine.memory and before.mib:
            self.say("note", text=mine.memory)
        self.write()
        return self._again(ended)

    def _explain(self, ended: Ended, mine: Attempt) -> None:
        answer = ended.answer
        cause = answer.cause if answer is not None else None
        mine.hazard = cause.record.id if cause else ""
        if cause is not None:
            mine.cause, mine.line = cause.record.title, self.launch.clean(cause.line)[:400]
        elif ended.outcome == "hung":
            mine.cause = f"no progress for {ended.silent_s:.0f} s; attnfit ended it"
        elif ended.trouble:
            mine.cause = self.launch.clean(ended.trouble)
        elif answer is not None:
            mine.cause = self.launch.clean(answer.why)
            if (unknown := answer.unknown) is not None:
                mine.line = self.launch.clean("; then ".join(unknown.chain) or unknown.earliest)[:400]
            elif (killed := _signal_name(ended.code)) and not ended.told:
                mine.cause = f"{killed} ended its first process; its log says nothing of it"
        if ended.outcome not in ("served", "stopped"):
            killed = "" if ended.told else _signal_name(ended.code)  # a signal of ours is no finding
            self.say(
                "failed", outcome=ended.outcome, stage=ended.stage, code=ended.code, killed_by=killed,
                hazard=mine.hazard, cause=mine.cause, line=mine.line, why=cause.record.why if cause else "",
                how_sure=cause.how_sure if cause else "",
            )  # fmt: skip

    def _again(self, ended: Ended) -> int | None:
        if ended.outcome == "not started":
            return 1
        if ended.served_s >= LONG_S:
            self.number = self.crashes = 0
        more = self.number < self.wishes.attempts
        found = cures(self.launch, ended.answer, self.wishes.about) if ended.answer and ended.answer.cause else ()
        offered: list[Instead] = []
        for way in found:
            offered.append(way)
            untried = way.launch is not None and way.launch.words not in self.tried
            if untried and more and self.wishes.pivot is not False and may_start(way, self.wishes.about):
                self.change(way)
                return 128 + self.signals.first if self.signals.count else None
        if ended.outcome == "crashed" and more:
            self.crashes += 1
            seconds = min(LONGEST_WAIT_S, self.wishes.first_wait * 2 ** (self.crashes - 1))
            self.say("again", seconds=seconds)
            return 128 + self.signals.first if self.signals.wait(seconds) else None
        why = self._why_not(ended, more, offered)
        self.say("give-up", text=why, ways=[self._shown(way) for way in offered])
        return 1

    def _why_not(self, ended: Ended, more: bool, offered: Sequence[Instead]) -> str:
        if not more:
            return f"{self.number} of {self.wishes.attempts} attempts made (--attempts)"
        if ended.answer is None or ended.answer.cause is None:
            return "this failure is not known, and is not tried again"
        if self.wishes.pivot is False and any(way.launch is not None for way in offered):
            return "there is another way, and --no-pivot"
        return "no other command is known that would help"


def _signal_name(code: int | None) -> str:
    if code is None or code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def run(
    words: Sequence[str],
    wishes: Wishes,
    tell: Tell,
    environ: Mapping[str, str] | None = None,
    signals: Signals | None = None,
) -> int:
    """Starts the launch `words` and stays until it is over, or, detached, until it serves. The exit code.

    signals: heard while an engine is there; `tell` may look at it, to wait for no reader of its own when one has come.
    Raises an AttnfitError for a command that cannot be started as given.
    """
    env = dict(os.environ if environ is None else environ)
    return _Runner(words, wishes, tell, env, signals or Signals()).run()
