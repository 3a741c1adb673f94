"""What collectors put in front of a line, taken off: times, hosts, containers, units, ranks, levels.

Indentation behind a prefix is the program's own and stays: tracebacks are read by it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_MOST = 6  # prefixes in front of each other


class Plain(NamedTuple):
    text: str
    worker: str  # who wrote it, as far as the line says: "Worker_TP3", "TP3 EP0", "rank3", ""
    level: str  # DEBUG, INFO, WARNING, ERROR, CRITICAL; LOG: a logger's that prints none; "": no logger's


_ISO = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: ?(?:Z|[+-]\d\d:?\d\d))?"
_LEVELS = r"(?P<level>DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)"
_FORMS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\[(?:pod|container)/[^\]]{1,200}\] ",  # kubectl logs --prefix
        r"(?:> )?\[?[\w.-]{1,80}\]? +\| ",  # docker compose, also quoted
        rf"{_ISO} \| {_LEVELS} *\| \w+ \| ",
        rf"{_ISO} \| ",
        rf"{_ISO} (?=\()",
        # syslog and journalctl: time, host, program
        rf"(?:[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|{_ISO}) [\w.:-]{{1,255}} [\w@./-]{{1,100}}\[\d+\]: ",
        rf"{_ISO} - [\w.]{{1,200}} - {_LEVELS} - ",
        rf"{_ISO} (?:\[?\d+\]? )?\[?{_LEVELS}\]?:? +(?:[\w.]+:\d+ +)?(?:- )?",
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+(?:Z|[+-]\d\d:?\d\d) (?:std(?:out|err) [FP] )?",  # docker -t, kubectl, CRI
        r"\((?P<worker>[\w.]+(?: [\w.]+)?) pid=\d+(?:, ip=[\w.:]+)?\)(?: |$)",  # workers by name, Ray
        r"\[(?:rank|default)(?P<rank>\d{1,6})\]:(?: |$)",  # torchrun
        r"(?P<short>[IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w/.-]+:\d+\] ?",  # glog
        r"\[(?P<short>[IWEF])\d{3,4} \d\d:\d\d:\d\d\.\d+ [\w/.-]+:\d+\] ?",  # torch
        rf"{_LEVELS}:(?: +|$)(?!\w+Error)",  # uvicorn, logging's plainest form
    )
)
_SHORT = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_REPEATED = re.compile(r"(?:\x1b\[\d*m)? \[repeated \d+x across cluster\].*$")  # Ray puts that behind


def plain(text: str, own: Sequence[re.Pattern[str]] = ()) -> Plain:
    """A line without what stands in front of it. own: the forms of the engines' own loggers."""
    worker = level = ""
    at = 0
    for _ in range(_MOST):
        found = next((m for form in (*own, *_FORMS) if (m := form.match(text, at)) and m.end() > at), None)
        if found is None:
            break
        groups = found.groupdict()
        name = groups.get("worker") or (groups.get("rank") and f"rank{groups['rank']}") or ""
        worker = name.strip() or worker
        level = groups.get("level") or _SHORT.get(groups.get("short") or "", "LOG" if found.re in own else level)
        at = found.end()
    text = text[at:]
    if "repeated" in text:
        text = _REPEATED.sub("", text)
    return Plain(text, worker, {"WARN": "WARNING", "FATAL": "CRITICAL"}.get(level, level))
