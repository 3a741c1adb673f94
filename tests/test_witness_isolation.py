"""Somebody else's code runs shut in: no network, no files, no environment, bounded time and memory."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

import tiny_engine
from attnfit.engines.vllm.witness.client import Witness as VllmWitness
from attnfit.witness.client import Witness, WitnessError
from tiny_engine import QUESTION

PROBE = '''
"""Jobs that try what a child may not do."""
import os, socket
from attnfit.witness.jobs import job

@job("environment")
def environment(state): return dict(os.environ)

@job("site")
def site(state):
    import sys
    return [path for path in sys.path if "site-packages" in path] + sorted({"msgspec", "click"} & set(sys.modules))

@job("connect")
def connect(state): socket.create_connection(("127.0.0.1", 9), timeout=1)

@job("write")
def write(state, path): open(path, "w").write("x")

@job("read")
def read(state, path): return open(path).read()

@job("start")
def start(state): os.system("true")

@job("burn")
def burn(state):
    while True: pass

@job("eat")
def eat(state): return len(bytearray(1 << 34))

@job("shout")
def shout(state): print("this is not an answer"); return 1

@job("count")
def count(state):
    yield from range(3)
'''


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A copy of the package with one more module of jobs."""
    import shutil

    import attnfit.witness.client as client

    home = tmp_path / "attnfit"
    shutil.copytree(Path(client.WORKER).parent, home / "witness")
    (home / "witness" / "probe.py").write_text(PROBE, "utf-8")
    monkeypatch.setattr(client, "WORKER", home / "witness" / "worker.py")
    return tiny_engine.write(tmp_path / "engine")


def child(root: Path, **limits: float) -> Witness:
    return Witness(root, "0.0.1", {}, modules=["attnfit.witness.probe"], **limits)  # type: ignore[arg-type]


def test_it_answers_from_the_child(tmp_path: Path) -> None:
    with VllmWitness(tiny_engine.write(tmp_path), "0.0.1", {}) as witness:
        assert witness.ask(QUESTION)["chosen"] == "FAST"
        answers = list(witness.ask_many([QUESTION, {**QUESTION, "capability": "8.0"}]))
        assert [answer["chosen"] for answer in answers] == ["FAST", "SLOW"]
        assert witness.call("backends") == ["FAST", "SLOW"]


def test_the_child_sees_no_environment_and_no_packages(probes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    with child(probes) as witness:
        assert "HF_TOKEN" not in witness.call("environment")
        assert witness.call("site") == []


def test_what_engine_code_never_needs_is_refused(probes: Path, tmp_path: Path) -> None:
    with child(probes) as witness:
        (tmp_path / "secret").write_text("x")
        new, secret = str(tmp_path / "x"), str(tmp_path / "secret")
        tried = {"connect": {}, "write": {"path": new}, "read": {"path": secret}, "start": {}}
        for job, arguments in tried.items():
            with pytest.raises(WitnessError, match="refused in the witness"):
                witness.call(job, **arguments)
    assert not (tmp_path / "x").exists()


def test_it_says_which_measures_hold(probes: Path) -> None:
    with child(probes) as witness:
        assert witness.isolation["audit"] is True
        assert witness.isolation["network"] in ("namespace", "audit only")
        if sys.platform == "linux":
            assert {"RLIMIT_CPU", "RLIMIT_AS", "RLIMIT_FSIZE"} <= set(witness.isolation["limits"])


def test_an_endless_job_is_stopped(probes: Path) -> None:
    began = time.monotonic()
    with child(probes, wall_seconds=1.0) as witness, pytest.raises(WitnessError, match="longer than 1 s"):
        witness.call("burn")
    assert time.monotonic() - began < 10


@pytest.mark.skipif(sys.platform != "linux", reason="limits differ elsewhere")
def test_processor_time_and_memory_are_bounded(probes: Path) -> None:
    with child(probes, cpu_seconds=1) as witness, pytest.raises(WitnessError, match=r"CPU time|killed"):
        witness.call("burn")
    with child(probes) as witness, pytest.raises(WitnessError, match="MemoryError"):
        witness.call("eat")


def test_prints_are_not_answers_and_items_come_in_order(probes: Path) -> None:
    with child(probes) as witness:
        assert witness.call("shout") == 1
        assert list(witness.stream("count")) == [0, 1, 2]


def test_nothing_is_left_running(tmp_path: Path) -> None:
    with VllmWitness(tiny_engine.write(tmp_path), "0.0.1", {}) as witness:
        pid = witness._child.pid
    with pytest.raises(OSError):  # noqa: PT011  # ESRCH
        os.kill(pid, 0)
