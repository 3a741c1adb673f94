"""The parent's side of the witness: starts the isolated child, asks it, kills it when it takes too long."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from attnfit.errors import AttnfitError, UnknownAnswer

WORKER = Path(__file__).with_name("worker.py")
WALL_SECONDS, CPU_SECONDS, MEMORY_MB = 60.0, 60, 1024


class WitnessError(AttnfitError):
    """The child died, ran out of its limits, or a job raised."""


class Witness:
    """One release in one isolated child. Use as a context manager.

    `root` holds the release's package; `env` its environment facts; `modules` name the stdlib-only attnfit modules that
    are imported in the child and register jobs: their folders can be read there, and those of `packages` (for what
    they import later). `wall_seconds` bounds each call, `cpu_seconds` and `memory_mb` the child's life.
    """

    def __init__(
        self,
        root: str | Path,
        version: str,
        env: Mapping[str, Any],
        *,
        modules: Sequence[str] = (),
        packages: Sequence[str] = (),
        wall_seconds: float = WALL_SECONDS,
        cpu_seconds: int = CPU_SECONDS,
        memory_mb: int = MEMORY_MB,
        python: str = sys.executable,
    ) -> None:
        self.version, self.wall_seconds = version, wall_seconds
        self._errors = b""
        self._buffer = b""
        self._child = subprocess.Popen(
            [python, "-I", "-S", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            cwd="/",
            close_fds=True,
            start_new_session=True,
        )
        self._selector = selectors.DefaultSelector()
        for stream in (self._child.stdout, self._child.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ)
        hello = {
            "root": str(Path(root).resolve()),
            "version": version,
            "env": dict(env),
            "modules": list(modules),
            "packages": list(packages),
            "cpu_seconds": cpu_seconds,
            "memory_mb": memory_mb,
        }
        try:
            self._send(hello)
            self.isolation: dict[str, Any] = self._answer(time.monotonic() + wall_seconds)["result"]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(self, job: str, **arguments: Any) -> Any:
        """Run one job and return its result. Raises WitnessError."""
        self._send({"job": job, "arguments": arguments})
        return self._answer(time.monotonic() + self.wall_seconds)["result"]

    def stream(self, job: str, **arguments: Any) -> Iterator[Any]:
        """Run a job that yields; the items as they come."""
        self._send({"job": job, "arguments": arguments})
        while True:
            message = self._answer(time.monotonic() + self.wall_seconds)
            if "item" not in message:
                return
            yield message["item"]

    def close(self) -> None:
        """End the child and everything it may have started."""
        with contextlib.suppress(OSError):
            if self._child.poll() is None:
                os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._selector.close()
        for stream in (self._child.stdin, self._child.stdout, self._child.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(message).encode() + b"\n")
            self._child.stdin.flush()
        except (BrokenPipeError, ValueError):
            raise self._dead() from None

    def _answer(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                self.close()
                raise WitnessError(
                    f"the witness for {self.version} took longer than {self.wall_seconds:g} s and was stopped; "
                    "ask with a larger limit, or from the rule book"
                )
            for key, _ in self._selector.select(remaining):
                data = os.read(key.fd, 1 << 16)
                if key.fileobj is self._child.stderr:
                    self._errors = (self._errors + data)[-4096:]
                    if not data:
                        self._selector.unregister(key.fileobj)
                elif data:
                    self._buffer += data
                else:
                    raise self._dead()
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            if message["kind"] in ("StubLeak", "ImportError", "ModuleNotFoundError"):
                raise UnknownAnswer(f"{message['error']}; this release cannot be asked that way")
            raise WitnessError(f"the witness for {self.version} failed: {message['kind']}: {message['error']}")
        return message

    def _dead(self) -> WitnessError:
        self.close()
        code = self._child.returncode
        known = {-signal.SIGXCPU: "used up its CPU time", -signal.SIGKILL: "was killed (CPU time or memory)"}
        reason = known.get(code, f"ended (status {code})")
        tail = self._errors.decode("utf-8", "replace").strip().splitlines()[-1:]
        return WitnessError(f"the witness for {self.version} {reason}{': ' + tail[0] if tail else ''}")
