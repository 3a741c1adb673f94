"""What the text of one line says, whoever wrote it and wherever it stands. Pure; the same text is read once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple

from attnfit.engines.log import LogWords, log_words
from attnfit.explain import consequences
from attnfit.explain.commands import may_hold
from attnfit.explain.quoted import may_quote
from attnfit.hazards import Hit, Near, catalogue, matches
from attnfit.hazards.match import earlier

_LONG = 2000  # characters: a longer line is not remembered


class Of(NamedTuple):
    """What a line says of one engine."""

    log: LogWords
    traces: bool = False
    starts: tuple[str, ...] = ()
    ready: bool = False
    died: int = -1  # where in the line
    at_work: bool = False
    goes_on: bool = False  # a start, to what comes next
    facts: Mapping[str, Any] = {}


class Said(NamedTuple):
    program: str = ""  # that writes such lines
    restarted: bool = False
    follows: bool = False
    served: Literal["", "up", "work"] = ""  # a request was answered
    quotes: bool = False  # it may hold what somebody sent
    command: bool = False  # it may hold a launch command
    earlier: tuple[str, ...] = ()
    engines: tuple[Of, ...] = ()


_NOTHING = Said()


@cache
def _words() -> tuple[str, ...]:
    """Every literal that is looked for, without those that hold another."""
    logs = log_words()
    every = {*consequences.FOLLOWS, *earlier(catalogue())}
    for log in logs:
        every |= {*log.starts, *log.ready, *log.at_work, *log.died, *log.follows, *log.traces, *log.words, *log.goes_on}
    return tuple(sorted(w for w in every if not any(other in w for other in every if other != w)))


def said(text: str) -> Said:
    return _remembered(text) if len(text) <= _LONG else _said(text)


@lru_cache(maxsize=4096)
def _remembered(text: str) -> Said:
    return _said(text)


def _said(text: str) -> Said:
    found = Said(
        consequences.program(text),
        consequences.restarted(text),
        served=consequences.served(text),
        quotes=may_quote(text),
        command=may_hold(text),
    )
    for word in _words():
        if word in text:
            break
    else:
        return found if found != _NOTHING else _NOTHING
    logs = log_words()
    return found._replace(
        follows=consequences.follows(text, logs),
        earlier=tuple(word for word in earlier(catalogue()) if word in text),
        engines=tuple(of for log in logs if (of := _of(log, text, bool(found.program))) is not None),
    )


def _of(log: LogWords, text: str, others: bool) -> Of | None:
    found = Of(
        log,
        traces=not others and any(word in text for word in log.traces),
        starts=tuple(word for word in log.starts if word in text),
        ready=any(word in text for word in log.ready),
        died=min((text.find(word) for word in log.died if word in text), default=-1),
        at_work=any(word in text for word in log.at_work),
        goes_on=any(word in text for word in log.goes_on),
        facts=dict(log.facts(text)) if any(word in text for word in log.words) else {},
    )
    return None if found == (log, False, (), False, -1, False, False, {}) else found


def shows(text: str, above: str, seen: frozenset[str]) -> tuple[Hit, ...]:
    """The hazards that a line shows, the one that says most of it first."""
    if len(text) > _LONG or len(above) > 4 * _LONG:
        return tuple(matches(text, catalogue(), Near(above, seen)))
    return _shown(text, above, seen)


@lru_cache(maxsize=1024)
def _shown(text: str, above: str, seen: frozenset[str]) -> tuple[Hit, ...]:
    return tuple(matches(text, catalogue(), Near(above, seen)))
