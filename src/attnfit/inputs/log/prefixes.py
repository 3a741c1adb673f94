"""What collectors put in front of a line, taken off: times, hosts, containers, units, ranks, levels.

Indentation behind a prefix is the program's own and stays: tracebacks are read by it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

_MOST = 6  # prefixes in front of each other


class Plain(NamedTuple):
    text: str
    worker: str  # who wrote it, as far as the line says: "Worker_TP3", "TP3 EP0", "rank3", ""
    level: str  # DEBUG, INFO, WARNING, ERROR, CRITICAL; LOG: a logger's that prints none; "": no logger's
    own: bool = False  # an engine's logger wrote it
    source: str = ""  # pod or container, where a collector mixes several
    head: str = ""  # what stood in front


_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: ?(?:Z|[+-]\d\d:?\d\d))?"
_LEVELS = r"(?P<level>DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)"
_DIGIT, _NAME = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# How a server's own line goes on behind a prefix that is no more than words.
_ENGINE = (
    r"(?=\([\w.:-]+ pid=\d+|\[\d{4}-\d\d-\d\d |\[rank\d|(?:INFO|ERROR|WARNING|DEBUG)(?::| \d\d-\d\d)|Traceback \(|  )"
)
_FORMS = tuple(
    (frozenset(begins), re.compile(pattern))
    for begins, pattern in (
        ("[", r"\[(?P<source>(?:pod|container)/[^\]]{1,200})\] "),  # kubectl logs --prefix
        ("", r"(?:> )?\[?(?P<source>[\w.-]{1,80})\]? +\| "),  # docker compose, also quoted
        (_DIGIT, rf"{_ISO} \| {_LEVELS} *\| \w+ \| "),
        (_DIGIT, rf"{_ISO} \| "),
        (_DIGIT, rf"{_ISO} (?=\()"),
        # syslog and journalctl: time, host, program
        (
            _DIGIT + _NAME,
            rf"(?:[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|{_ISO}) [\w.:-]{{1,255}} [\w@./-]{{1,100}}\[\d+\]: ",
        ),
        (_DIGIT, rf"{_ISO} - [\w.]{{1,200}} - {_LEVELS} - "),
        (_DIGIT, rf"{_ISO}[ \t](?:\[?\d+\]? )?\[?{_LEVELS}\]?:?[ \t]+(?:[\w.]+:\d+ +)?(?:-{{1,2}} )?"),
        # docker -t, kubectl, CRI
        (_DIGIT, r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(?:Z|[+-]\d\d:?\d\d) (?:std(?:out|err) [FP] )?"),
        ("(", r"\((?P<worker>[\w.:-]+(?: [\w.=]+)?) pid=\d+(?:, ip=[\w.:]+)?\)(?: |$)"),  # workers by name, Ray
        ("[", r"\[rank(?P<rank>\d{1,6})\]:(?: |$|(?=\[))"),  # torch
        ("[", r"\[(?:default|worker|trainer)(?P<rank>\d{1,6})\]:"),  # torchrun
        ("IWEF", r"(?P<short>[IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w/.-]+:\d+\] ?"),  # glog
        ("[", r"\[(?P<short>[IWEF])\d{3,4} \d\d:\d\d:\d\d\.\d+ [\w/.-]+:\d+\] ?"),  # torch
        ("DIWECF", rf"{_LEVELS}:(?: +|$)(?!\w+Error)"),  # uvicorn, logging's plainest form
    )
)
# Prefixes that are no more than words: known by what stands behind them once, and taken off every line from then on.
_LEARNT = (
    re.compile(rf"\d{{1,4}}: {_ENGINE}"),  # srun --label
    re.compile(rf"(?P<source>[a-z][a-z0-9.-]{{0,252}}-[a-z0-9]{{1,10}}) [a-z][a-z0-9-]{{0,62}} {_ENGINE}"),  # stern
)
_MOST_LEARNT = 64
_EMPTY: frozenset[str] = frozenset()  # a form that may begin with anything
_SHORT = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_REPEATED = re.compile(r"(?:\x1b\[\d*m)? \[repeated \d+x across cluster\].*$")  # Ray puts that behind


def plain(text: str, own: Sequence[re.Pattern[str]] = (), learnt: dict[str, str] | None = None) -> Plain:
    """A line without what stands in front of it.

    own: the forms of the engines' own loggers. learnt: prefixes met in this log, and whose they are; more are put in.
    """
    worker = level = source = ""
    by_engine = False
    at = 0
    if learnt is not None:
        at, source = _learnt(text, learnt)
    for _ in range(_MOST):
        first = text[at : at + 1]
        if first in ("", " ", "\t"):
            break
        found = next((m for form in own if (m := form.match(text, at)) and m.end() > at), None)
        ours = found is not None
        if found is None:
            table = _forms(first) if " | " in text else _forms_without_bar(first)
            found = next((m for form in table if (m := form.match(text, at)) and m.end() > at), None)
        if found is None:
            break
        groups = found.groupdict()
        name = groups.get("worker") or (groups.get("rank") and f"rank{groups['rank']}") or ""
        worker = name.strip() or worker
        source = groups.get("source") or source
        level = groups.get("level") or _SHORT.get(groups.get("short") or "", "LOG" if ours else level)
        by_engine |= ours
        at = found.end()
    head, text = text[:at], text[at:]
    if "repeated" in text:
        text = _REPEATED.sub("", text)
    return Plain(text, worker, {"WARN": "WARNING", "FATAL": "CRITICAL"}.get(level, level), by_engine, source, head)


def _learnt(text: str, learnt: dict[str, str]) -> tuple[int, str]:
    """Where a line begins behind such a prefix, and whose it is."""
    for prefix, source in learnt.items():
        if text.startswith(prefix):
            return len(prefix), source
    if len(learnt) < _MOST_LEARNT and " " in text[1:260] and text[0] in "0123456789abcdefghijklmnopqrstuvwxyz":
        for form in _LEARNT:
            if (found := form.match(text)) is not None:
                source = found.groupdict().get("source") or ""
                learnt[found[0]] = source
                return found.end(), source
    return 0, ""


@cache
def _forms(first: str) -> tuple[re.Pattern[str], ...]:
    """Those that a prefix may have which begins with that character, in their order."""
    return tuple(form for begins, form in _FORMS if begins == _EMPTY or first in begins)


@cache
def _forms_without_bar(first: str) -> tuple[re.Pattern[str], ...]:
    return tuple(form for begins, form in _FORMS if first in begins)
