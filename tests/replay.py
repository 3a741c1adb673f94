"""`attnfit run` on an engine that is played: where it lies, how it is started, what is left of it afterwards."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
WITHIN = 30.0  # seconds that anything here may take on a loaded machine; nothing is timed by it


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def until(what: Callable[[], Any], saying: str = "") -> Any:
    end = time.monotonic() + WITHIN
    while not (found := what()):
        assert time.monotonic() < end, f"not within {WITHIN} s: {saying or what}"
        time.sleep(0.02)
    return found


class Stage:
    """A folder with a model that holds scenes, a program by the engine's name, and a home of its own."""

    def __init__(self, folder: Path, program: str = "vllm") -> None:
        self.folder, self.model = folder, folder / "model"
        self.model.mkdir()
        self.state = folder / "state"
        bin_ = folder / "bin"
        bin_.mkdir()
        script = bin_ / program
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "replay_engine.py"}" "$@"\n')
        script.chmod(0o755)
        self.port = free_port()
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("ATTNFIT_", "VLLM_"))}
        self.env |= {"PATH": f"{bin_}:{os.environ['PATH']}", "XDG_STATE_HOME": str(self.state), "HOME": str(folder)}

    def scenes(self, *scenes: dict[str, Any]) -> None:
        (self.model / "scenes.json").write_text(json.dumps(scenes))

    @property
    def launch(self) -> list[str]:
        return ["vllm", "serve", str(self.model), "--port", str(self.port)]

    def start(self, *options: str, launch: list[str] | None = None, **env: str) -> Played:
        words = [sys.executable, "-m", "attnfit", "run", "--json", "--no-check", *options, "--"]
        return Played(self, [*words, *(launch or self.launch)], {**self.env, **env})

    def attnfit(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "attnfit", *words], env={**self.env, **env}, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip

    def pids(self, file: str) -> list[int]:
        path = self.model / file
        return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []

    def alive(self) -> list[int]:
        """Processes of the engine that are there, zombies counted."""
        return [pid for pid in self.pids("starts.txt") + self.pids("workers.txt") if psutil.pid_exists(pid)]

    def port_is_free(self) -> bool:
        with socket.socket() as wanted:
            wanted.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
            try:
                wanted.bind(("127.0.0.1", self.port))
            except OSError:
                return False
            return True

    def runs(self) -> list[dict[str, Any]]:
        files = sorted((self.state / "attnfit" / "runs").glob("*/record.json"))
        return [json.loads(file.read_text()) for file in files]

    def everything_written(self) -> str:
        return "".join(path.read_text("utf-8", "replace") for path in self.state.rglob("*") if path.is_file())


class Played:
    """A running `attnfit run --json`."""

    def __init__(self, stage: Stage, words: list[str], env: dict[str, str]) -> None:
        self.stage = stage
        self.out, self.err = stage.folder / "out.txt", stage.folder / "err.txt"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(words, env=env, stdout=out, stderr=err, stdin=subprocess.DEVNULL)

    def events(self, name: str = "") -> list[dict[str, Any]]:
        lines = self.out.read_text().splitlines()
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in found if not name or event["event"] == name]

    def event(self, name: str) -> dict[str, Any]:
        def there() -> list[dict[str, Any]]:
            assert self.process.poll() is None or self.events(name), f"ended without {name}: {self.said()}"
            return self.events(name)

        found: dict[str, Any] = until(there, name)[-1]
        return found

    def said(self) -> str:
        return self.out.read_text() + self.err.read_text()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        try:
            return self.process.wait(WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"does not end: {self.said()}") from None

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
