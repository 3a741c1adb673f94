"""`free` ends what an engine left, and nothing else: no other process, whatever its name or number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from attnfit.deploy import free, left, records
from attnfit.deploy.records import MARK, Run
from attnfit.inputs.processes import Process, read_process
from replay import Stage, until
from test_holders import Proc

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="free is for Linux")

QUIET = "import time; print('up', flush=True); time.sleep(600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {QUIET}"
PARENT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {QUIET!r}]); {QUIET}"


class Started:
    """Processes of a test, ended with it."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[bytes]] = []

    def __call__(self, code: str = QUIET, **env: str) -> Process:
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True, env={**os.environ, **env}
        )
        self.all.append(child)
        assert child.stdout is not None
        child.stdout.readline()
        found = read_process(child.pid)
        assert found is not None
        return found

    def ended(self, process: Process) -> int | None:
        [child] = [each for each in self.all if each.pid == process.pid]
        return child.poll()


@pytest.fixture
def start() -> Iterator[Started]:
    started = Started()
    yield started
    for child in started.all:
        for _ in range(2):
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                break
        child.wait()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def record(process: Process, **more: Any) -> Run:
    run = Run(id=more.pop("id", "1130-120000-abcd"), engine="vllm", started=process.started, command=("vllm", "serve"),
              process=(process.pid, process.started), **more)  # fmt: skip
    book = records.Book(run)
    assert book.write() == ""
    return run


def attnfit(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "attnfit", *words], capture_output=True, text=True, timeout=90,
                          stdin=subprocess.DEVNULL, check=False)  # fmt: skip


def test_term_comes_first_and_kill_only_for_those_that_stay(start: Started) -> None:
    soft, deaf = start(), start(DEAF)
    done = {each.process.pid: each.how for each in free.end([soft, deaf], grace=0.5)}
    assert done == {soft.pid: "term", deaf.pid: "kill"}
    assert until(lambda: start.ended(soft)) == -signal.SIGTERM
    assert until(lambda: start.ended(deaf)) == -signal.SIGKILL


def test_a_number_that_another_process_has_by_now_is_left_alone(start: Started) -> None:
    stranger = start()
    before = msgspec.structs.replace(stranger, ticks=stranger.ticks - 1000)
    assert [each.how for each in free.end([before], grace=0.5)] == ["gone"]
    assert start.ended(stranger) is None


def test_what_is_started_while_it_ends_is_ended_too(start: Started) -> None:
    first, late = start(), start()
    done = free.end([first], grace=0.5, again=lambda: [late])
    assert [each.how for each in done] == ["term", "kill"]


def test_what_is_not_ours_to_end_is_said(start: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start()

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(free.signal, "pidfd_send_signal", refuse)
    done = free.end([process], grace=0.2)
    assert [(each.how, each.over) for each in done] == [("refused", False)]


def test_of_a_run_its_processes_and_their_descendants_are_found_and_no_others(start: Started, home: Path) -> None:
    stranger, root = start(), start(PARENT)
    run = record(root)
    until(lambda: len(left.of_run(run).processes) == 2)
    found = left.of_run(run).processes
    assert {each.pid for each in found} >= {root.pid}
    assert all(each.session == root.pid for each in found)
    assert stranger.pid not in {each.pid for each in found}


def test_workers_whose_first_process_was_killed_are_found_by_session_and_mark(start: Started, home: Path) -> None:
    root = start(PARENT, **{MARK: "1130-120000-abcd"})
    run = record(root)
    until(lambda: len(left.of_run(run).processes) == 2)
    os.kill(root.pid, signal.SIGKILL)
    until(lambda: start.ended(root))
    [worker] = left.of_run(run).processes
    assert worker.session == root.pid
    done = attnfit("free", "--yes", "--grace", "5")
    assert done.returncode == 0, done.stderr
    assert "ended: 1" in done.stdout
    until(lambda: read_process(worker.pid) is None or read_process(worker.pid).zombie)  # type: ignore[union-attr]
    assert "nothing is left" in attnfit("free").stdout


@pytest.mark.parametrize(
    ("environ", "ours"),
    [(f"PATH=/bin\0{MARK}=R1\0".encode(), True), (f"PATH=/bin\0{MARK}=R2\0".encode(), False), (b"PATH=/bin\0", False),
     (b"\0\0\0\0", True)],
)  # fmt: skip
def test_a_session_whose_number_was_used_again_is_told_by_the_mark(
    tmp_path: Path, environ: bytes, ours: bool, home: Path
) -> None:
    proc = Proc(tmp_path)
    proc.add(50, "worker", ticks=200, session=40, environ=environ)
    run = Run(id="R1", engine="vllm", started=0, command=(), process=(40, 1700000001.0))
    assert [each.pid for each in left.of_run(run, proc.folder).processes] == ([50] if ours else [])


def test_a_first_process_that_is_another_now_has_no_descendants_of_ours(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    proc.add(40, "stranger", ticks=90000)
    proc.add(50, "its child", ticks=90100, session=40, parent=40, environ=b"\0\0\0")
    run = Run(id="R1", engine="vllm", started=0, command=(), process=(40, 1700000001.0))
    assert left.of_run(run, proc.folder).processes == ()


def test_of_a_unit_it_is_its_cgroup_alone(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    proc.add(10, "a", cgroup="0::/system.slice/serve.service")
    proc.add(11, "b", cgroup="12:cpu:/\n1:name=systemd:/system.slice/serve.service/sub")
    proc.add(12, "serve.service", cgroup="0::/system.slice/other-serve.service")
    proc.add(13, "z", cgroup="0::/system.slice/serve.service", state="Z")
    found = left.of_unit("serve.service", user=False, proc=proc.folder)
    assert [each.pid for each in found.processes] == [10, 11]


def test_it_shows_first_and_does_nothing_without_yes(start: Started, home: Path) -> None:
    process = start()
    record(process)
    shown = attnfit("free")
    assert shown.returncode == 2
    assert "--yes" in shown.stderr
    assert str(process.pid) in shown.stdout
    dry = attnfit("free", "--dry-run")
    assert (dry.returncode, dry.stdout) == (0, shown.stdout)
    assert start.ended(process) is None


def test_a_run_that_is_watched_or_detached_stays_unless_it_is_named(start: Started, home: Path) -> None:
    watched, detached = start(), start()
    me = read_process(os.getpid())
    assert me is not None
    record(watched, id="1130-120000-aaaa", attnfit=(me.pid, me.started))
    record(detached, id="1130-120000-bbbb", detached=True)
    done = attnfit("free", "--yes")
    assert "nothing is left" in done.stdout
    assert "1130-120000-aaaa is watched by attnfit and stays" in done.stderr
    assert "1130-120000-bbbb was detached and stays" in done.stderr
    assert attnfit("free", "--run", "bbbb", "--yes").returncode == 0
    assert until(lambda: start.ended(detached)) == -signal.SIGTERM
    assert start.ended(watched) is None


def test_no_command_line_and_no_key_of_a_process_is_shown(start: Started, home: Path) -> None:
    process = start(f"KEY='sk-a1b2c3d4e5f6a7b8'; {QUIET}", API_KEY="sk-a1b2c3d4e5f6a7b8")
    record(process)
    assert "sk-a1b2" not in attnfit("free", "--dry-run").stdout


@pytest.mark.parametrize("words", [("--run", "x", "--unit", "y"), ("--unit", "a/b"), ("--run", "none"),
                                   ("--run", "", "--yes"), ("--unit", "", "--yes")])  # fmt: skip
def test_a_wrong_request_is_one_error(words: tuple[str, ...], home: Path) -> None:
    done = attnfit("free", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_a_process_with_the_mark_is_found_in_whatever_session(tmp_path: Path) -> None:
    proc = Proc(tmp_path)
    proc.add(50, "tracker", ticks=200, environ=f"{MARK}=R1\0".encode())
    proc.add(51, "older", ticks=20, environ=f"{MARK}=R1\0".encode())
    proc.add(52, "titled", ticks=200, environ=b"\0\0\0")
    run = Run(id="R1", engine="vllm", started=0, command=(), process=(40, 1700000001.0))
    assert [each.pid for each in left.of_run(run, proc.folder).processes] == [50]


def test_workers_of_a_run_whose_attnfit_and_keeper_were_killed_are_ended(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.scenes({"do": [["worker", 2], ["serve"]]})
    played = stage.start()
    try:
        played.event("ready")
        [record] = stage.runs()
        keeper, first = record["keeper"][0], record["process"][0]
        workers = stage.pids("workers.txt")
        for pid in (keeper, played.process.pid):
            os.kill(pid, signal.SIGKILL)
        played.wait()
        until(lambda: not psutil.pid_exists(first) or psutil.Process(first).status() == psutil.STATUS_ZOMBIE)
        assert all(psutil.pid_exists(pid) for pid in workers), "nobody is there to end them"
        done = stage.attnfit("free", "--yes", "--grace", "5")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "ended: 2" in done.stdout
        until(lambda: not any(_lives(pid) for pid in workers))
    finally:
        played.close()
        for pid in stage.pids("workers.txt"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _lives(pid: int) -> bool:
    found = read_process(pid)
    return found is not None and not found.zombie
