"""A unit put to another command: written, restarted, watched until it serves, and taken back where it does not."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Callable, Sequence

import msgspec

from attnfit.deploy import unitfile
from attnfit.deploy.ready import Prober
from attnfit.deploy.stages import FIRST_REQUEST, SERVING, Tracker
from attnfit.deploy.stream import BLOCK, Kept, Lines
from attnfit.deploy.systemctl import Refused, State, Systemd
from attnfit.engines.serving import Address, Serving

TICK_S = 1.0  # between two questions to systemd
STOP_S = 300.0  # that a failing unit may take to stop
SETTLE_S = 10.0  # a unit that nothing can be asked of counts as started after so long


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """How a start ended. `log`: what the journal has of it."""

    healthy: bool
    why: str
    stage: str
    seconds: float
    log: Kept


class Fixed(msgspec.Struct, frozen=True, kw_only=True):
    """How a change ended. `back`: what was done to take it back, a line each; none where it stays."""

    watched: Watched | None
    trouble: str = ""
    back: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        return self.watched is not None and self.watched.healthy


def change(
    systemd: Systemd,
    name: str,
    place: unitfile.Place,
    text: str,
    serving: Serving,
    address: Address,
    *,
    wait: float,
    say: Callable[[str], None],
) -> Fixed:
    """Writes `text`, reloads, restarts, watches. The unit is put back, files and state, unless it becomes healthy.

    wait: seconds at most until it serves. Raises UsageError where nothing could be written, and passes on Ctrl-C after
    putting back.
    """
    before = systemd.state(name)
    unitfile.put(place, text, name)
    watched: Watched | None = None
    trouble = ""
    try:
        say(f"written: {place.path}")
        systemd.do("daemon-reload")
        say(f"restarting {name}")
        left = _quiet(systemd, name, before)
        systemd.do("restart", name, "--no-block")
        watched = watch(systemd, name, serving, address, wait=wait, say=say, left=left)
    except Refused as error:
        trouble = str(error)
    except BaseException:
        for line in _back(systemd, name, place, text, before):
            say(line)
        raise
    if watched is not None and watched.healthy:
        return Fixed(watched=watched)
    return Fixed(watched=watched, trouble=trouble, back=_back(systemd, name, place, text, before))


def _back(systemd: Systemd, name: str, place: unitfile.Place, text: str, before: State) -> tuple[str, ...]:
    """The old file, and the old state: running again where it ran, stopped where it did not."""
    done: list[str] = []
    try:
        unitfile.take_back(place, place.before, text)
        done.append(f"{place.path}: {'as it was' if place.before is not None else 'removed'}")
        if place.before is None:
            unitfile.forget(place)
        systemd.do("daemon-reload")
        with contextlib.suppress(Refused):
            systemd.do("reset-failed", name)
        if _ran(before):
            systemd.do("restart", name, "--no-block")
            done.append(f"{name}: restarted as it was before")
        else:
            systemd.do("stop", name, "--no-block")
            times = f", restarted {before.restarts} times" if before.restarts else ""
            done.append(f"{name}: stopped; before it was {before.active} ({before.sub}{times})")
    except Exception as error:
        done.append(f"not all could be put back: {error}")
    return tuple(done)


def _ran(before: State) -> bool:
    """Whether it ran, and not only between two crashes."""
    return before.active in ("active", "reloading") and not before.restarts


def _quiet(systemd: Systemd, name: str, before: State) -> str:
    """The invocation that the restart will end. A unit that is started again and again is stopped first: else its next
    crash, of the old command, would be taken for one of the new."""
    if _ran(before):
        return before.invocation
    systemd.do("stop", name, "--no-block")
    until = time.monotonic() + STOP_S
    while (state := systemd.state(name)).active not in ("inactive", "failed"):
        if time.monotonic() > until:
            raise Refused(f"{name} does not stop within {STOP_S:.0f} s")
        time.sleep(0.1)
    with contextlib.suppress(Refused):
        systemd.do("reset-failed", name)  # its start limit counts the failures before
    return state.invocation


def watch(
    systemd: Systemd,
    name: str,
    serving: Serving,
    address: Address,
    *,
    wait: float,
    say: Callable[[str], None],
    left: str = "",
) -> Watched:
    """From a restart to the answer of a first request, or to what went wrong.

    left: the invocation that the restart ends; its last moments are not taken for the new one's.
    """
    kept, lines = Kept(), Lines()
    tracker = Tracker(serving)
    began = time.monotonic()
    state = _begun(systemd, name, left, began + min(wait, 60.0))
    journal = systemd.follow(name, state.invocation)
    prober = None if address.nothing else Prober(serving, address, None, patience=FIRST_REQUEST.patience)
    if address.nothing:
        say(f"whether it serves is not asked: {address.nothing}")
    chosen = selectors.DefaultSelector()
    if journal is not None and journal.stdout is not None:
        chosen.register(journal.stdout, selectors.EVENT_READ, "journal")
    if prober is not None:
        chosen.register(prober.woken, selectors.EVENT_READ, "prober")
    healthy, why = False, ""
    first = state
    try:
        while not why and not healthy:
            for key, _ in chosen.select(TICK_S):
                if key.data == "journal":
                    data = os.read(key.fd, BLOCK)
                    if not data:
                        chosen.unregister(key.fileobj)
                    kept.add(data)
                    for line in lines.feed(data):
                        if tracker.feed(line):
                            say(f"{tracker.stage.name} ...")
                elif prober is not None:
                    for said in prober.heard():
                        if said.what == "healthy":
                            tracker.enter(FIRST_REQUEST)
                        elif said.what == "ready":
                            healthy, asked = True, f"a {said.request} was answered" if said.request else said.note
                            say(asked)
            state = systemd.state(name)
            why = _wrong(state, first)
            if healthy and not why:
                tracker.enter(SERVING)
            elif not why and time.monotonic() - began > wait:
                why = f"it did not serve within {wait:.0f} s, and was at: {tracker.stage.name}"
            elif not why and tracker.hung:
                why = f"no sign of progress for {tracker.silent:.0f} s, at: {tracker.stage.name}"
            elif not why and address.nothing and state.active == "active":
                healthy = time.monotonic() - began > SETTLE_S
        if why:
            _rest(journal, kept)
    finally:
        chosen.close()
        if prober is not None:
            prober.close()
        if journal is not None:
            journal.terminate()
            journal.communicate()
    return Watched(
        healthy=healthy and not why,
        why=why,
        stage=tracker.stage.name,
        seconds=time.monotonic() - began,
        log=kept,
    )


def _begun(systemd: Systemd, name: str, left: str, until: float) -> State:
    """The state once the new start has begun: the job of a restart takes its time to end the old one."""
    while True:
        state = systemd.state(name)
        if (state.invocation != left and state.invocation) or state.active == "failed" or time.monotonic() > until:
            return state
        time.sleep(0.1)


def _wrong(state: State, first: State) -> str:
    """What of a state means that the start failed; "" for nothing."""
    status = f", exit status {state.status}" if state.status not in ("", "0") else ""
    if state.active == "failed":
        return f"the unit failed ({state.result}{status})"
    if state.restarts > first.restarts or (state.invocation and state.invocation != first.invocation):
        return f"it ended{status}, and systemd has started it again"
    if state.sub == "auto-restart":
        return f"it ended{status}; systemd waits to start it again"
    if state.active in ("inactive", "deactivating"):
        return f"it ended ({state.result}{status})"
    return ""


def _rest(journal: object, kept: Kept) -> None:
    """What the journal still says of a start that failed."""
    pipe = getattr(journal, "stdout", None)
    if pipe is None:
        return
    until = time.monotonic() + 1.0
    with selectors.DefaultSelector() as waiting:
        waiting.register(pipe, selectors.EVENT_READ)
        while time.monotonic() < until and waiting.select(0.3):
            data = os.read(pipe.fileno(), BLOCK)
            if not data:
                return
            kept.add(data)


def cause_of(watched: Watched, command: Sequence[str]) -> str:
    """What the reader of crashes says broke it, in a line; "" where it does not know."""
    from attnfit.report.explain import verdict_line

    answer = watched.log.explained(command)
    return verdict_line(answer) if answer.exit_code == 0 and watched.log.size else ""
