"""What a killed engine leaves in the file system goes, and nobody else's file does."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
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


@pytest.fixture
def shm() -> Iterator[Callable[[str], Path]]:
    """Names in shared memory that are this test's own."""
    made: list[Path] = []

    def name(of: str) -> Path:
        made.append(Path(f"/dev/shm/attnfit-{of}-{os.getpid()}"))
        return made[-1]

    yield name
    for path in made:
        path.unlink(missing_ok=True)


Shm = Callable[[str], Path]
in_memory = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm")


def mapped(path: Path, access: int = mmap.ACCESS_WRITE) -> mmap.mmap:
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0, access=access)


@in_memory
def test_shared_memory_that_nobody_holds_is_removed(shm: Shm) -> None:
    residue, path = Residue(), shm("new")
    path.write_bytes(b"x")
    with mapped(path):
        residue.look([os.getpid()])
        assert residue.clear() == []
    assert residue.clear() == [str(path)]


@in_memory
def test_what_was_there_before_is_somebody_s_whatever_is_done_to_it(shm: Shm) -> None:
    path, moved, replaced = shm("old"), shm("moved"), shm("replaced")
    for each in (path, moved, replaced):
        each.write_bytes(b"x")
    residue = Residue()
    path.write_bytes(b"more")
    path.chmod(0o600)
    moved = moved.rename(shm("elsewhere"))
    replaced.unlink()
    replaced.write_bytes(b"another")
    with mapped(path), mapped(moved), mapped(replaced):
        residue.look([os.getpid()])
    assert residue.clear() == []
    assert path.read_bytes() == b"more"


@in_memory
def test_a_new_file_that_is_no_shared_memory_is_somebody_s(shm: Shm) -> None:
    """A log that is written, weights that are mapped to be read, a copy that is mapped for oneself."""
    residue = Residue()
    log, weights, copy = shm("log"), shm("weights"), shm("copy")
    for each in (log, weights, copy):
        each.write_bytes(b"x")
    with log.open("a"), mapped(weights, mmap.ACCESS_READ), mapped(copy, mmap.ACCESS_COPY):
        residue.look([os.getpid()])
    assert residue.clear() == []


@in_memory
def test_what_the_command_or_its_environment_names_is_the_user_s(shm: Shm) -> None:
    cache, other = shm("cache"), shm("other")
    residue = Residue([f"--cache={cache}", other.name])
    for each in (cache, other):
        each.write_bytes(b"x")
    with mapped(cache), mapped(other):
        residue.look([os.getpid()])
    assert residue.clear() == []


@in_memory
def test_another_file_that_took_the_name_of_shared_memory_stays(shm: Shm) -> None:
    residue, path = Residue(), shm("new")
    path.write_bytes(b"x")
    with mapped(path):
        residue.look([os.getpid()])
        path.unlink()
        path.write_bytes(b"somebody's")
    assert residue.clear() == []


@in_memory
def test_weights_in_a_folder_there_are_somebody_s(shm: Shm) -> None:
    """People copy checkpoints to /dev/shm; an engine maps them, and they are not its own."""
    residue = Residue()
    folder = Path(f"/dev/shm/attnfit-folder-{os.getpid()}")
    folder.mkdir()
    weights = folder / "model.safetensors"
    try:
        weights.write_text("x")
        with mapped(weights):
            residue.look([os.getpid()])
        assert residue.clear() == []
    finally:
        weights.unlink()
        folder.rmdir()


@in_memory
def test_an_engine_s_shared_memory_goes_and_is_said_and_a_user_s_log_there_stays(tmp_path: Path, shm: Shm) -> None:
    stage = Stage(tmp_path)
    own, old, log = shm("own"), shm("old"), shm("log")
    old.write_text("data\n")
    stage.scenes({"do": [["shared", str(own)], ["append", str(old)], ["append", str(log)], ["say", "up"], ["hang"]]})
    run = stage.start("--grace", "2")
    until(lambda: "up" in run.said())
    run.signal(signal.SIGTERM)
    assert run.wait() == 143
    assert run.event("left")["removed"] == [str(own)]
    assert stage.runs()[0]["attempts"][0]["removed"] == [str(own)]
    assert f"removed: {own}" in stage.attnfit("runs", "show", stage.runs()[0]["id"]).stdout
    assert (own.exists(), old.read_text(), log.read_text()) == (False, "data\nmore\n", "more\n")


@in_memory
def test_shared_memory_of_a_worker_that_outlived_its_engine_goes_too(tmp_path: Path, shm: Shm) -> None:
    """Made since the keeper last looked: it looks when the first process has ended."""
    stage = Stage(tmp_path)
    own = shm("worker")
    stage.scenes({"do": [["sleep", 2.6], ["worker_with", str(own)], ["exit", 1]]})
    run = stage.start("--grace", "1")
    assert run.wait() == 1
    assert run.event("left")["removed"] == [str(own)]
    assert not own.exists()


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
