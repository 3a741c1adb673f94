"""Answers one job: every case of a module, for every capability asked, in processes of their own.

A process for each capability, since modules may decide by the GPU when they are imported; in it the cases are recorded
and each distinct kernel is compiled in a further one (workers.py). The job and the answer are plain data (JSON).
"""

from __future__ import annotations

import json
import os
import selectors
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import triton

from attnfit.kernels.fit import torch_cuda
from attnfit.kernels.fit.driver import NoGpuDriver, active, parse
from attnfit.kernels.fit.lifeline import Lifeline, follow
from attnfit.kernels.fit.recorder import recording
from attnfit.kernels.fit.records import Case, Launch, Unknown
from attnfit.kernels.fit.workers import SECONDS, Progress, Tokens, compiled, cpus

SCHEMA = 1
OLDEST = (3, 5)
Say = Callable[[dict[str, Any]], None]


def answer(job: dict[str, Any], progress: Progress | None = None, lifeline: Lifeline | None = None) -> dict[str, Any]:
    """`job`: capabilities ["12.0", ...]; limits {"12.0": bytes of shared memory a block may have}; module, its
    cases(ask, capability) yields `Case`s; ask: what the module wants to know; and optionally properties
    {"12.0": {"multiprocessor_count": ...}}, cache (a folder), jobs (processes), seconds (for one kernel), wanted (a
    part of the case's name). Raises ValueError for a job that is not one, ImportError for a Triton that is too old.
    """
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < OLDEST:
        raise ImportError(f"Triton {triton.__version__} is too old: {'.'.join(map(str, OLDEST))} or newer is needed")
    capabilities = list(job["capabilities"])
    if missing := [c for c in capabilities if c not in job["limits"]]:
        raise ValueError(f"no limit given for {', '.join(missing)}")
    torch.set_num_threads(1)
    started = time.monotonic()
    tokens = Tokens(int(job.get("jobs") or cpus()))
    rows: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []
    counts: dict[str, tuple[int, int]] = {}

    def heard(capability: str, message: dict[str, Any]) -> None:
        if "progress" in message:
            counts[capability] = tuple(message["progress"])
            if progress:
                progress(*(sum(column) for column in zip(*counts.values(), strict=True)))
        rows.extend(message.get("rows", ()))
        failures.extend(message.get("failures", ()))

    for capability, died in _forked(capabilities, lambda c, say: _one(job, c, tokens, say), heard, lifeline):
        tokens.give()  # it may have died with some; one more than there were does no harm
        message = f"the process for {capability} {died}"
        failures.append({"case": "", "capability": capability, "exception": "", "message": message})
    order = {c: i for i, c in enumerate(capabilities)}
    rows.sort(key=lambda row: order[row["capability"]])
    failures.sort(key=lambda failure: order[failure["capability"]])
    return {
        "schema": SCHEMA,
        "triton": triton.__version__,
        "torch": torch.__version__,
        "rows": rows,
        "failures": failures,
        "seconds": round(time.monotonic() - started, 1),
    }


def _one(job: dict[str, Any], capability: str, tokens: Tokens, say: Say) -> None:
    """The process for one capability: records every case, then compiles."""
    limit = int(job["limits"][capability])
    properties = {"max_shared_mem": limit, **job.get("properties", {}).get(capability, {})}
    torch_cuda.pretend(parse(capability), properties)
    launches: list[Launch] = []
    failures: list[dict[str, Any]] = []
    with active(NoGpuDriver(capability, properties, device=0)):
        try:
            for case in import_module(job["module"]).cases(job.get("ask", {}), capability):
                if job.get("wanted", "") in case.name:
                    seen, failed = _recorded(case, capability, limit, properties)
                    launches += seen
                    failures += failed
        except Exception as raised:
            failures.append(_failure("", capability, raised))
    cache = Path(job["cache"]) if job.get("cache") else None
    results = compiled(
        launches,
        cache=cache,
        tokens=tokens,
        seconds=float(job.get("seconds") or SECONDS),
        progress=lambda done, of: say({"progress": [done, of]}),
    )
    say({"rows": [result.plain() for result in results], "failures": failures})


def _recorded(
    case: Case, capability: str, limit: int, properties: dict[str, int]
) -> tuple[list[Launch], list[dict[str, Any]]]:
    """What the case launched, and why it ended early if it did."""
    with recording(capability, limit, case=case.name, note=case.note, properties=properties) as launches:
        try:
            case.call()
        except Exception as raised:
            return launches, [_failure(case.name, capability, raised)]
    if not launches:
        return launches, [_failure(case.name, capability, Unknown("it launched no Triton kernel"))]
    return launches, []


def _failure(case: str, capability: str, raised: Exception) -> dict[str, Any]:
    if isinstance(raised, Unknown):
        return {"case": case, "capability": capability, "exception": "", "message": str(raised)}
    traceback.print_exception(raised)
    where = traceback.extract_tb(raised.__traceback__)
    place = f" ({Path(where[-1].filename).name}:{where[-1].lineno})" if where else ""
    what = "the launch function failed before Triton was asked" if case else "the launches could not be listed"
    message = f"{what}: {raised}{place}"
    return {"case": case, "capability": capability, "exception": type(raised).__name__, "message": message}


def _forked(
    names: Iterable[str],
    work: Callable[[str, Say], None],
    heard: Callable[[str, dict[str, Any]], None],
    lifeline: Lifeline | None = None,
) -> Iterable[tuple[str, str]]:
    """Runs `work` for each name in a process of its own; what it says (a line each) is heard as it comes. Yields the
    names of those that died, and how."""
    pipes: dict[int, tuple[str, int, bytearray]] = {}
    asker = os.getpid()
    with selectors.DefaultSelector() as selector:
        if lifeline is not None and lifeline.fd is not None:
            selector.register(lifeline.fd, selectors.EVENT_READ)
        for name in names:
            reading, writing = os.pipe()
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    follow(asker)
                    os.close(reading)
                    with os.fdopen(writing, "w", encoding="utf-8") as pipe:
                        work(name, lambda message, pipe=pipe: _line(pipe, message))  # type: ignore[misc]
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            os.close(writing)
            pipes[reading] = name, pid, bytearray()
            selector.register(reading, selectors.EVENT_READ)
        while pipes:
            for found, _ in selector.select():
                if lifeline is not None and found.fd == lifeline.fd:
                    lifeline.end()
                name, pid, buffer = pipes[found.fd]
                if data := os.read(found.fd, 1 << 16):
                    buffer += data
                    *lines, rest = bytes(buffer).split(b"\n")
                    buffer[:] = rest
                    for line in lines:
                        heard(name, json.loads(line))
                    continue
                selector.unregister(found.fd)
                os.close(found.fd)
                del pipes[found.fd]
                _, status = os.waitpid(pid, 0)
                if status:
                    yield name, f"ended with status {os.waitstatus_to_exitcode(status)}"


def _line(pipe: Any, message: dict[str, Any]) -> None:
    pipe.write(json.dumps(message) + "\n")
    pipe.flush()
