"""What a run says while it goes on, a line an event, and the list of runs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from attnfit.inputs.secrets import line as one_line
from attnfit.report import plain

if TYPE_CHECKING:
    from attnfit.deploy.records import Attempt, Run

SCHEMA = 1


def printable(line: str) -> str:
    """One line, whatever a word of a command or of a log holds."""
    return plain.printable(line).replace("\n", "\\n")


def render_json(event: Mapping[str, Any]) -> str:
    """One line of `--json`."""
    return msgspec.json.encode({"schema": SCHEMA, "time": round(time.time(), 3), **event}).decode() + "\n"


def render(event: Mapping[str, Any]) -> str:
    """Lines that begin `attnfit: `, so that they are told from the engine's own; "" for what need not be said."""
    make = _TEXTS.get(event["event"])
    lines = make(event) if make is not None else []
    return "".join(f"{click.style('attnfit:', bold=True)} {printable(line)}\n" for line in lines if line)


def _check(e: Mapping[str, Any]) -> list[str]:
    return [e["text"] if e["verdict"] != "unknown" else f"it is not known whether this launch passes: {e['text']}"]


def _ways(ways: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for way in ways:
        wanted = " ".join(way["installs"])
        install = f"; first, where it runs: pip install {wanted}" if wanted and "pip install" not in way["text"] else ""
        lines.append(f"{'diagnosis' if way['shows'] else 'next'}: {way['text']}{install}")
        lines += [f"      gives up: {way['gives_up']}"] if way["gives_up"] else []
        lines += [f"      {one_line(way['command'])}"] if way["command"] else []
    return lines


def _refused(e: Mapping[str, Any]) -> list[str]:
    return [
        "not started",
        *_ways(e["ways"]),
        "--pivot starts the first of these that needs nothing else" if e["takes"] else "",
    ]


def _pivot(e: Mapping[str, Any]) -> list[str]:
    gives_up = f"; gives up: {e['gives_up']}" if e["gives_up"] else ""
    return [f"pivot: {e['text']}{gives_up}"]


def _stage(e: Mapping[str, Any]) -> list[str]:
    return [f"{e['stage']} {e['done']}/{e['total']}" if e["total"] else e["stage"]]


def _ready(e: Mapping[str, Any]) -> list[str]:
    shown = f"a {e['request']} was answered" if e["request"] else e["note"]
    return [f"ready after {e['seconds']} s{' at ' + e['url'] if e['url'] else ''}; {shown}"]


def _failed(e: Mapping[str, Any]) -> list[str]:
    end = f", {e['killed_by']}" if e["killed_by"] else f", exit code {e['code']}" if e["code"] is not None else ""
    where = f" at stage {e['stage']}" if e["stage"] else ""
    sure = f" ({e['how_sure']})" if e["how_sure"] not in ("", "certain") else ""
    cause = f"{e['hazard']} {e['cause']}{sure}".strip()
    return [f"{e['outcome']}{where}{end}", f"cause: {cause}" if cause else "", f"  {e['line']}" if e["line"] else ""]


def _left(e: Mapping[str, Any]) -> list[str]:
    stuck = f"; {e['stuck']} could not be ended" if e["stuck"] else "; ended"
    return [
        f"left by the engine: {', '.join(e['processes'])}{stuck}" if e["processes"] else "",
        f"left by the engine: {', '.join(e['removed'])}; removed" if e["removed"] else "",
    ]


def _stopping(e: Mapping[str, Any]) -> list[str]:
    if e["hard"]:
        return [f"{e['signal']} again: everything of the engine is killed"]
    return [f"{e['signal']}: the engine is asked to end, and killed after {e['grace']:.0f} s"]


def _hung(e: Mapping[str, Any]) -> list[str]:
    then = "it is kept (--keep-hung)" if e["kept"] else "it is stopped"
    return [f"hung: no progress for {e['silent']:.0f} s at stage {e['stage']}; {then}"]


def _detached(e: Mapping[str, Any]) -> list[str]:
    end = f"attnfit runs stop {e['id']}" if e["recorded"] else f"it is not recorded: kill {e['keeper']} ends it"
    return [f"run {e['id']} goes on by itself; its output: {e['log']}; {end}"]


def _dry(e: Mapping[str, Any]) -> list[str]:
    stages = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in e["stages"].items())
    return [
        f"would start: {one_line(e['command'])}",
        f"would ask: {e['url'] or e['note']}",
        f"would wait, without progress at a stage: {stages}",
        f"would record it in {e['records']}",
    ]


_TEXTS: dict[str, Any] = {
    "check": _check,
    "refused": _refused,
    "pivot": _pivot,
    "attempt": lambda e: [f"attempt {e['number']} of {e['of']}: {one_line(e['command'])}"],
    "stage": _stage,
    "ready": _ready,
    "failed": _failed,
    "hung": _hung,
    "left": _left,
    "stopping": _stopping,
    "again": lambda e: [f"it had served; started again in {e['seconds']:.0f} s"],
    "give-up": lambda e: [f"not tried again: {e['text']}", *_ways(e["ways"])],
    "detached": _detached,
    "dry-run": _dry,
    "note": lambda e: [f"note: {e['text']}"],
    "end": lambda e: [f"ended: {e['outcome']}, {e['attempts']} attempt{'s' if e['attempts'] != 1 else ''}"],
}


# ---- attnfit runs ----


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def render_list(runs: Sequence[Run]) -> str:
    if not runs:
        return "no runs are recorded\n"
    rows = [("RUN", "STARTED", "STATE", "ATTEMPTS", "COMMAND")]
    rows += [(r.id, _when(r.started), r.state, str(len(r.attempts)), one_line(r.command)) for r in runs]
    wide = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = ["  ".join([*(cell.ljust(wide[i]) for i, cell in enumerate(row[:4])), row[4]]) for row in rows]
    return "".join(printable(line.rstrip()) + "\n" for line in lines)


def render_run(run: Run) -> str:
    lines = [f"{run.id}: {run.state}", f"  engine   {run.engine}{', detached' if run.detached else ''}"]
    lines += [f"  address  {run.url}"] if run.url else []
    for number, attempt in enumerate(run.attempts, 1):
        lines += ["", f"attempt {number}: {attempt.outcome}", f"  {one_line(attempt.command)}", *_attempt(attempt)]
    return "".join(printable(line) + "\n" for line in lines)


def _attempt(attempt: Attempt) -> list[str]:
    until = f" to {_when(attempt.ended)}" if attempt.ended else ""
    lines = [f"  from {_when(attempt.started)}{until}; last stage: {attempt.stage or 'none'}"]
    lines += [f"  ready after {attempt.ready_s} s"] if attempt.ready_s is not None else []
    lines += [f"  cause: {attempt.hazard} {attempt.cause}".rstrip()] if attempt.cause else []
    lines += [f"    {attempt.line}"] if attempt.line else []
    lines += [f"  left by the engine: {attempt.left} processes, {attempt.stuck} not ended"] if attempt.left else []
    lines += [f"  left by the engine, and removed: {', '.join(attempt.removed)}"] if attempt.removed else []
    return lines


def render_runs_json(runs: Sequence[Run]) -> str:
    body = {"schema": SCHEMA, "runs": [{**msgspec.to_builtins(run), "state": run.state} for run in runs]}
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode() + "\n"
