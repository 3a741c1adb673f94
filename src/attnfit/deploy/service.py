"""A unit put to another command: written, restarted, watched until it serves, and taken back where it does not."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

import msgspec

from attnfit.deploy import unitfile
from attnfit.deploy.systemctl import Refused, State, Systemd
from attnfit.deploy.unitwatch import Target, UnitWatch, Watched

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
STOP_S = 300.0  # that a failing unit may take to stop


class Fixed(msgspec.Struct, frozen=True, kw_only=True):
    """How a change ended. `back`: what was done to take it back, a line each; none where it stays."""

    watched: Watched | None
    trouble: str = ""
    back: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        return self.watched is not None and self.watched.healthy


def behind(state: State, place: unitfile.Place) -> str:
    """Why a unit does not run as its files say, though it should; "": it does, or nobody has started it."""
    if state.stale:
        return "its files were changed since systemd read them"
    record = unitfile.record_of(place.path)
    ours = record is not None and record["after"] == place.before
    if state.active == "failed" or state.sub == "auto-restart" or (ours and not state.on):
        return f"it is {state.active} ({state.sub})"
    return ""


def change(
    systemd: Systemd, target: Target, place: unitfile.Place, text: str | None, *, say: Callable[[str], None]
) -> Fixed:
    """Writes `text`, reloads, restarts, watches. The unit is put back, files and state, unless it becomes healthy.

    text None: its files stay as they are, and there is nothing to put back.

    Raises UsageError where nothing could be written, and passes on what interrupts it (Ctrl-C, SIGTERM) after putting
    back.
    """
    name = target.unit.name
    before = systemd.state(name)
    watched: Watched | None = None
    trouble = ""
    with _interruptible():
        earlier = unitfile.put(place, text, name) if text is not None else None
        try:
            if text is not None:
                say(f"written: {place.path}")
            systemd.do("daemon-reload")
            say(f"restarting {name}")
            left = _quiet(systemd, name, before)
            systemd.do("restart", name, "--no-block")
            watched = UnitWatch(systemd, target, say).run(left)
        except Refused as error:
            trouble = str(error)
        except BaseException:
            for line in _back(systemd, name, place, text, earlier, before):
                say(line)
            raise
    if watched is not None and watched.healthy:
        return Fixed(watched=watched)
    return Fixed(watched=watched, trouble=trouble, back=_back(systemd, name, place, text, earlier, before))


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM, SIGHUP and SIGQUIT interrupt as Ctrl-C does: what was begun is put back."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _back(
    systemd: Systemd, name: str, place: unitfile.Place, text: str | None, earlier: unitfile.Record | None, before: State
) -> tuple[str, ...]:
    """The old file, and the old state: running again where it ran, stopped where it did not. Nothing interrupts it."""
    if text is None:
        return (f"{name}: its files are as they were; its state is as this start left it",)
    done: list[str] = []
    heard = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *_ENDING)}
    try:
        unitfile.roll_back(place, text, earlier)
        done.append(f"{place.path}: {'as it was' if place.before is not None else 'removed'}")
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
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)
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


def cause_of(watched: Watched, command: Sequence[str]) -> tuple[str, ...]:
    """What the reader of crashes says broke it: a line, and where it knows no hazard what was raised first."""
    from attnfit.report.explain import verdict_line

    if not watched.log.size:
        return ("nothing that it printed was seen",)
    answer = watched.log.explained(command)
    if answer.unknown is None:
        return (verdict_line(answer),) if answer.exit_code == 0 and answer.cause is not None else ()
    return (verdict_line(answer), *(answer.unknown.chain or (answer.unknown.earliest,)))
