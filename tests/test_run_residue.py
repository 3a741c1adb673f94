"""What a killed engine leaves in the file system goes, and nobody else's file does."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnfit.deploy.residue import Residue
from replay import Stage, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")


def bound(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    made.listen()
    return made


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Paths of Unix sockets are short."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="r") as name:
        yield Path(name)


def test_a_socket_that_was_seen_and_is_nobody_s_any_more_is_removed(short: Path) -> None:
    residue = Residue()
    one = bound(short / "one")
    residue.look([os.getpid()])
    one.close()
    assert (short / "one").exists()
    assert residue.clear() == [str(short / "one")]
    assert not (short / "one").exists()


def test_one_that_is_still_bound_stays(short: Path) -> None:
    residue = Residue()
    with bound(short / "one"):
        residue.look([os.getpid()])
        assert residue.clear() == []
    assert (short / "one").exists()


def test_one_that_was_not_seen_stays(short: Path) -> None:
    residue = Residue()
    residue.look([os.getpid()])
    bound(short / "one").close()
    assert residue.clear() == []


def test_a_file_of_another_kind_that_took_the_name_stays(short: Path) -> None:
    residue = Residue()
    one = bound(short / "one")
    residue.look([os.getpid()])
    one.close()
    (short / "one").unlink()
    (short / "one").write_text("somebody's")
    assert residue.clear() == []
    assert (short / "one").read_text() == "somebody's"


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm")
def test_shared_memory_that_nobody_holds_is_removed() -> None:
    residue = Residue()
    path = Path(f"/dev/shm/attnfit-test-{os.getpid()}")
    with path.open("w"):
        residue.look([os.getpid()])
        assert residue.clear() == []
    assert residue.clear() == [str(path)]


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm")
def test_weights_in_shared_memory_are_somebody_s() -> None:
    """People copy checkpoints to /dev/shm; an engine maps them, and they are not its own."""
    old = Path(f"/dev/shm/attnfit-old-{os.getpid()}")
    folder = Path(f"/dev/shm/attnfit-folder-{os.getpid()}")
    folder.mkdir()
    weights = folder / "model.safetensors"
    try:
        old.write_text("x")
        time.sleep(1.2)
        residue = Residue()
        weights.write_text("x")
        with old.open(), weights.open():
            residue.look([os.getpid()])
        assert residue.clear() == []
        assert old.exists()
        assert weights.exists()
    finally:
        old.unlink()
        weights.unlink()
        folder.rmdir()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_engine_s_socket_goes_with_it(tmp_path: Path, short: Path, number: int) -> None:
    """Also where attnfit is killed: the keeper does it."""
    stage = Stage(tmp_path)
    socket_ = short / "ipc"
    stage.scenes({"do": [["socket", str(socket_)], ["deaf"], ["hang"]]})
    run = stage.start("--grace", "1")
    until(socket_.exists)
    run.signal(number)
    run.wait()
    until(lambda: not stage.alive())
    until(lambda: not socket_.exists())


def test_a_socket_of_a_process_that_soon_failed_goes_too(tmp_path: Path, short: Path) -> None:
    """Opened after one look (2 s after the start) and gone before the next (7 s): a new socket is met as it comes."""
    stage = Stage(tmp_path)
    socket_ = short / "ipc"
    stage.scenes({"do": [["sleep", 2.5], ["socket", str(socket_)], ["sleep", 1.5], ["say", "RuntimeError: no"],
                         ["exit", 1]]})  # fmt: skip
    run = stage.start("--grace", "1")
    until(socket_.exists)
    assert run.wait() == 1
    assert not socket_.exists()


def test_an_engine_s_socket_goes_also_where_the_keeper_is_killed(tmp_path: Path, short: Path) -> None:
    """Else the next start would find its address in use."""
    stage = Stage(tmp_path)
    socket_ = short / "ipc"
    stage.scenes({"do": [["socket", str(socket_)], ["serve"]]})
    run = stage.start("--grace", "1", "--attempts", "2")
    run.event("ready")
    keeper = stage.runs()[0]["keeper"][0]
    time.sleep(1.5)  # it meets a new socket within half a second
    os.kill(keeper, signal.SIGKILL)
    until(lambda: len(run.events("ready")) == 2, run.said())
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    assert not socket_.exists()
