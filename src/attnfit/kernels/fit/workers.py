"""Compiles recorded launches, each distinct kernel in a forked process of its own, a few at a time.

A compiler can die (an LLVM assertion, a segfault of ptxas) or hang; then that one kernel's verdict is unknown and the
others are not touched. Forking costs milliseconds, since torch and Triton are loaded already.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.compiler.compiler import make_backend

from attnfit.kernels.fit.compiling import READER, outcome
from attnfit.kernels.fit.kept import keep, kept
from attnfit.kernels.fit.lifeline import follow
from attnfit.kernels.fit.records import REFUSED, UNKNOWN, Compiled, Launch, joined

SECONDS = 300.0  # for one kernel; the slowest seen take some tens of seconds
Progress = Callable[[int, int], None]  # kernels answered, of how many


def compiled(
    launches: Iterable[Launch],
    *,
    jobs: int | None = None,
    cache: Path | None = None,
    tokens: Tokens | None = None,
    seconds: float = SECONDS,
    progress: Progress | None = None,
) -> list[Compiled]:
    """One result for each launch, in order; equal kernels are compiled once.

    `jobs` processes at a time (default: the CPUs this process may use), or as many as `tokens`, shared with other
    processes, allow; `cache` is a folder of kept results, None to keep none; `seconds` bounds the compiling of each.
    """
    launches = list(launches)
    keys = [key(launch) for launch in launches]
    wanted = {k: launch for k, launch in zip(keys, launches, strict=True) if launch.refusal is None}
    results = {k: found for k in wanted if (found := kept(cache, k)) is not None}
    todo = {k: launch for k, launch in wanted.items() if k not in results}
    done = len(results)
    if todo:
        _hash_triton()
    with tempfile.TemporaryDirectory(prefix="attnfit-fit-") as folder:
        for k, result in _each(todo, Path(folder), tokens or Tokens(jobs or cpus()), seconds):
            results[k] = result
            done += 1
            keep(cache, k, result)
            if progress:
                progress(done, len(wanted))
    return [
        joined(launch, {**results[k], "key": k} if launch.refusal is None else _refusal(launch))
        for k, launch in zip(keys, launches, strict=True)
    ]


def cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _hash_triton() -> None:
    """Triton hashes its own files for each process's first compilation: once here spares it in every worker."""
    with contextlib.suppress(ImportError):
        from triton.runtime.cache import triton_key

        triton_key()


class Tokens:
    """How many compilers may run at once, counted across forked processes (a pipe that holds a byte for each)."""

    def __init__(self, count: int) -> None:
        self.fd, self._back = os.pipe()
        os.set_blocking(self.fd, False)
        os.write(self._back, b"." * max(1, count))

    def take(self) -> bool:
        """Whether there was one left."""
        try:
            return bool(os.read(self.fd, 1))
        except BlockingIOError:
            return False

    def give(self) -> None:
        os.write(self._back, b".")


def key(launch: Launch) -> str:
    """The same for launches that are one compiled kernel on one GPU, with this Triton and this reader."""
    if launch.refusal is not None:
        return ""
    handed = launch.source
    parts = [
        READER,
        triton.__version__,
        make_backend(handed.target).hash(),  # capability and version of ptxas
        launch.limit,
        handed.digest,
        sorted((name, str(value)) for name, value in handed.options.items()),
    ]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _refusal(launch: Launch) -> dict[str, Any]:
    assert launch.refusal is not None
    exception, message = launch.refusal
    return {"verdict": REFUSED, "exception": exception, "message": message}


@dataclass
class _Worker:
    key: str
    pid: int
    pipe: int
    log: Path
    deadline: float
    said: bytes = b""
    late: bool = False

    def stop_if_late(self) -> None:
        if time.monotonic() >= self.deadline and not self.late:
            self.late = True
            self.kill()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def _each(
    todo: dict[str, Launch], folder: Path, tokens: Tokens, seconds: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each kernel's outcome as it comes."""
    waiting = list(todo.items())[::-1]
    running: dict[int, _Worker] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(tokens.fd, selectors.EVENT_READ)
        try:
            while waiting or running:
                while waiting and tokens.take():
                    worker = _start(*waiting.pop(), folder, seconds)
                    running[worker.pipe] = worker
                    selector.register(worker.pipe, selectors.EVENT_READ)
                if not waiting and tokens.fd in selector.get_map():
                    selector.unregister(tokens.fd)
                ready = {found.fd for found, _ in selector.select(_until(running))}
                for worker in list(running.values()):
                    if worker.pipe not in ready:
                        worker.stop_if_late()
                    elif data := os.read(worker.pipe, 1 << 16):
                        worker.said += data
                    else:
                        selector.unregister(worker.pipe)
                        del running[worker.pipe]
                        result = _end(worker, seconds)
                        tokens.give()
                        yield worker.key, result
        finally:
            for worker in running.values():  # interrupted
                worker.kill()
                os.close(worker.pipe)
                os.waitpid(worker.pid, 0)
                tokens.give()


def _until(running: dict[int, _Worker]) -> float | None:
    """Seconds until one of them is late; None: no reason to wake."""
    deadlines = [worker.deadline for worker in running.values() if not worker.late]
    return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None


def _start(k: str, launch: Launch, folder: Path, seconds: float) -> _Worker:
    mine = folder / k[:32]
    mine.mkdir()
    log = mine / "log"
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        status = 1
        try:
            follow(parent)
            os.close(reading)
            status = _work(launch, mine, log, writing)
        finally:
            os._exit(status)
    os.close(writing)
    return _Worker(k, pid, reading, log, time.monotonic() + seconds)


def _work(launch: Launch, mine: Path, log: Path, writing: int) -> int:
    """The worker: everything printed goes to the log, the outcome into the pipe."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    sys.stdout = sys.stderr = open(log, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 (until the process ends)
    os.environ.update(TRITON_CACHE_DIR=str(mine), TRITON_HOME=str(mine), TMPDIR=str(mine), TRITON_DUMP_PTXAS_LOG="1")
    tempfile.tempdir = str(mine)
    try:
        result = outcome(launch.source, launch.capability, launch.limit, log)
    except Exception as raised:
        traceback.print_exc()
        result = {
            "verdict": UNKNOWN,
            "exception": type(raised).__name__,
            "message": f"attnfit could not read it: {raised}",
        }
    data = json.dumps(result).encode()
    while data:
        data = data[os.write(writing, data) :]
    return 0


def _end(worker: _Worker, seconds: float) -> dict[str, Any]:
    os.close(worker.pipe)
    _, status = os.waitpid(worker.pid, 0)
    tail = ""
    if worker.log.exists():
        tail = next(
            (line for line in reversed(worker.log.read_text("utf-8", "replace").splitlines()) if line.strip()), ""
        )
    shutil.rmtree(worker.log.parent, ignore_errors=True)
    if status == 0:
        found: dict[str, Any] = json.loads(worker.said)
        return found
    if worker.late:
        how = f"the compiler took longer than {seconds:g} s and was stopped"
    elif os.WIFSIGNALED(status):
        how = f"the compiler died ({signal.Signals(os.WTERMSIG(status)).name})"
    else:
        how = f"the compiler ended its process (status {os.waitstatus_to_exitcode(status)})"
    return {"verdict": UNKNOWN, "exception": "", "message": f"{how}{': ' + tail.strip()[:300] if tail else ''}"}
