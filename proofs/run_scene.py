"""One launch of the real engine by `attnfit run`, for proofs/run.py: marked, watched, and what is left is counted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from vllm_cpu import HOME

sys.path.insert(0, str(HOME / "tests"))
from replay import free_port

MARK = "ATTNFIT_PROOF_MARK"
START_S = 900.0  # no start of a tiny model takes so long, also on a machine that is busy
SHM = Path("/dev/shm")
# A file by which vLLM's CPU workers find each other, which it never removes, however it ends; torch's compiled headers,
# which it keeps for later.
OWN = ("vllm_dist_", "torchinductor_")


@dataclass
class Left:
    processes: list[str]
    listening: bool
    shm: list[str]
    files: list[str]

    def __str__(self) -> str:
        parts = [
            f"{len(self.processes)} processes" + (f" ({', '.join(self.processes)})" if self.processes else ""),
            "port taken" if self.listening else "port free",
            f"{len(self.shm)} in /dev/shm",
            f"{len(self.files)} files",
        ]
        return ", ".join(parts)

    @property
    def nothing(self) -> bool:
        return not (self.processes or self.listening or self.shm or self.files)


class Scene:
    """One launch under `attnfit run --json`, in a folder of its own."""

    def __init__(self, python: str, models: Path, folder: Path) -> None:
        self.python, self.models, self.folder = python, models, folder
        folder.mkdir()
        self.temp = Path(tempfile.mkdtemp(prefix="e"))  # short: paths of Unix sockets are
        self.port = free_port()
        self.mark = uuid.uuid4().hex
        self.sessions: set[int] = set()  # that the engine's processes were seen in
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "ATTNFIT_"))}
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        self.env = {
            **kept, MARK: self.mark, "TMPDIR": str(self.temp), "XDG_STATE_HOME": str(folder / "state"),
            "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "2", "VLLM_CPU_KVCACHE_SPACE": "1",
        }  # fmt: skip
        self.shm = self._shm()
        self.deadline = float("inf")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, model: str, *flags: str, options: tuple[str, ...] = (), **env: str) -> Scene:
        command = [
            self.python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.models / model),
            "--host", "127.0.0.1", "--port", str(self.port), "--enforce-eager", "--dtype", "float32", *flags,
        ]  # fmt: skip
        with (self.folder / "events").open("w") as out, (self.folder / "log").open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "attnfit", "run", "--json", "--timeout", f"{START_S}", *options, "--", *command],
                env={**self.env, **env}, stdout=out, stderr=err, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        return self

    def events(self, name: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in (self.folder / "events").read_text().splitlines() if line.endswith("}")]
        return [event for event in found if event["event"] == name]

    def until(self, name: str, count: int = 1) -> dict[str, Any]:
        end = time.monotonic() + START_S
        while len(found := self.events(name)) < count:
            assert self.process is not None
            self.in_time()
            if time.monotonic() > end or (self.process.poll() is not None and len(self.events(name)) < count):
                raise Wrong(f"no {name} number {count}: {(self.folder / 'events').read_text()}{self.log()[-3000:]}")
            self.members()
            time.sleep(0.5)
        return found[count - 1]

    def wait(self) -> int:
        assert self.process is not None
        end = time.monotonic() + START_S
        while self.process.poll() is None and time.monotonic() < end:
            self.in_time()
            self.members()
            time.sleep(0.5)
        return self.process.wait(1)

    def in_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise Late

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(120)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def members(self) -> list[psutil.Process]:
        """Processes with our mark, but attnfit and its keeper, and those of their sessions; zombies count.

        A process that gives itself a title writes it over its environment: the mark is gone, the session is not.
        """
        sessions: dict[int, list[psutil.Process]] = {}
        for each in psutil.process_iter():
            try:
                session = os.getsid(each.pid)
                marked = each.environ().get(MARK) == self.mark
                if marked and "attnfit" not in " ".join(each.cmdline()):
                    self.sessions.add(session)
                sessions.setdefault(session, []).append(each)
            except (psutil.Error, OSError):
                continue
        return [each for session in self.sessions for each in sessions.get(session, [])]

    def _keepers(self) -> list[int]:
        found = []
        for each in psutil.process_iter():
            try:
                if "attnfit.deploy.keeper" in each.cmdline() and each.environ().get(MARK) == self.mark:
                    found.append(each.pid)
            except (psutil.Error, OSError):
                continue
        return found

    def member(self, words: str) -> psutil.Process:
        for each in self.members():
            if words in each.name() or words in " ".join(each.cmdline()):
                return each
        raise Wrong(f"no process {words!r}: {[(e.name(), e.cmdline()[:4]) for e in self.members()]}")

    def record(self) -> dict[str, Any]:
        (file,) = (self.folder / "state").rglob("record.json")
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    def _shm(self) -> set[str]:
        return {path.name for path in SHM.iterdir()} if SHM.is_dir() else set()

    def left(self) -> Left:
        end = time.monotonic() + 40  # where attnfit was killed its keeper is at work
        while time.monotonic() < end and (self.members() or self._keepers()):
            time.sleep(0.2)
        listening = any(
            each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == self.port
            for each in psutil.net_connections("tcp")
        )
        names = [f"{each.name()} {each.status()}" for each in self.members()]
        files = [str(path.relative_to(self.temp)) for path in self.temp.rglob("*") if not path.is_dir()]
        files = [file for file in files if not file.startswith(OWN)]
        return Left(names, listening, sorted(self._shm() - self.shm - held()), sorted(files))

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for each in self.members():
            each.kill()
        shutil.rmtree(self.temp, ignore_errors=True)


def held() -> set[str]:
    """What of /dev/shm some process holds: of a scene that is over nobody is there, so it is another engine's."""
    found: set[str] = set()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            lines = (place / "maps").read_text(errors="replace").splitlines()
            targets = [*lines, *(os.readlink(link) for link in (place / "fd").iterdir())]
        except OSError:
            continue
        found |= {target.rpartition("/dev/shm/")[2] for target in targets if "/dev/shm/" in target}
    return found


class Wrong(Exception):
    pass


class Late(Exception):
    """The time of --ci is over in the middle of a scene: a machine that others work on shows less, not something
    wrong."""


def expect(what: bool, saying: object) -> None:
    if not what:
        raise Wrong(str(saying))
