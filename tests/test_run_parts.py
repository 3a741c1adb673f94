"""The parts of `attnfit run` that need no process: stages, what is kept of a log, memory, records, secrets."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from attnfit.deploy import memory
from attnfit.deploy.command import Launch, secrets_of
from attnfit.deploy.files import write_private
from attnfit.deploy.keptlog import KeptLog
from attnfit.deploy.records import Attempt, Book, Run, find, prune, read_all
from attnfit.deploy.stages import FIRST_REQUEST, Tracker
from attnfit.deploy.stream import HEAD, TAIL, Kept, Lines
from attnfit.engines import ENGINES
from attnfit.engines.serving import serving_of
from attnfit.errors import UsageError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


VLLM_START = (
    ("starting", "INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: compilation_config={...}"),
    ("loading weights", "INFO [gpu_model_runner.py:4979] Starting to load model m..."),
    ("loading weights", "Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03]"),
    ("loading weights", "INFO [default_loader.py:507] Loading weights took 4.10 seconds"),
    ("compiling", "INFO [backends.py:1090] Using cache directory: /x for vLLM's torch.compile"),
    ("compiling", "INFO [monitor.py:35] torch.compile takes 30.1 s in total"),
    ("sizing the KV cache", "INFO [gpu_worker.py:773] Available KV cache memory: 10.2 GiB"),
    ("capturing graphs", "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  10%|#   | 5/51"),
    ("starting the server", "INFO [core.py:396] init engine (profile, create kv cache, warmup model) took 90.0 s"),
)
SGLANG_START = (
    ("starting", "[2026-11-30 08:00:00] server_args=ServerArgs(model_path='m')"),
    ("loading weights", "[2026-11-30 08:00:09 TP0] Load weight begin. avail mem=90.00 GB"),
    ("loading weights", "Multi-thread loading shards:  50% Completed | 2/4 [00:00<00:00]"),
    ("sizing the KV cache", "[2026-11-30 08:00:20 TP0] Memory pool end. avail mem=9.00 GB"),
    ("capturing graphs", "[2026-11-30 08:00:21 TP0] Capture cuda graph begin. This can take up to several minutes."),
    ("starting the server", "[2026-11-30 08:00:40] The server is fired up and ready to roll!"),
)


@pytest.mark.parametrize(("engine", "start"), [("vllm", VLLM_START), ("sglang", SGLANG_START)])
def test_a_start_goes_through_its_stages(engine: str, start: Any) -> None:
    tracker = Tracker(serving_of(engine))
    for stage, line in start:
        tracker.feed(line)
        assert tracker.stage.name == stage, line


def test_a_line_that_says_that_nothing_is_compiled_opens_no_stage() -> None:
    tracker = Tracker(serving_of("vllm"))
    tracker.feed(
        "WARNING [vllm.py:1703] Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup."
    )
    assert tracker.stage.name == "starting"


def test_counts_are_those_of_the_stage() -> None:
    tracker = Tracker(serving_of("vllm"))
    tracker.feed("Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03]")
    assert (tracker.done, tracker.total) == (1, 4)
    tracker.feed("Capturing CUDA graphs (decode, FULL):   0%|          | 0/51 [00:00<?, ?it/s]")
    assert (tracker.done, tracker.total) == (0, 51)


def test_a_stage_never_goes_back() -> None:
    tracker = Tracker(serving_of("vllm"))
    tracker.feed("INFO init engine (profile, create kv cache, warmup model) took 90.0 s")
    assert tracker.feed("INFO Loading weights took 1 seconds") is False
    assert tracker.stage.name == "starting the server"


def test_only_what_is_new_is_progress(clock: Clock) -> None:
    tracker = Tracker(serving_of("vllm"), {"": 10.0}, clock)
    for text in ("one", "one", "No available shared memory broadcast block found in 60 seconds", "one"):
        clock.now += 3
        tracker.feed(text)
    assert tracker.silent == 9
    clock.now += 2
    assert tracker.hung
    tracker.feed("two")
    assert not tracker.hung


def test_the_patience_is_the_stage_s_own_or_what_is_wished_for_it() -> None:
    tracker = Tracker(serving_of("vllm"), {"loading weights": 7.0})
    assert tracker.patience == serving_of("vllm").stages[0].patience
    tracker.feed("Starting to load model m...")
    assert tracker.patience == 7.0
    assert Tracker(serving_of("vllm"), {"": 5.0}).patience == 5.0


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_says_how_its_server_is_watched(engine: str) -> None:
    serving = serving_of(engine)
    assert serving.engine == engine
    names = [stage.name for stage in serving.stages]
    assert len(set(names)) == len(names) > 3
    assert FIRST_REQUEST.name not in names
    assert all(stage.patience > 0 and stage.words for stage in serving.stages)
    assert all(ask.body("m")["model"] == "m" for ask in serving.asks)


def test_lines_are_whole_also_where_they_come_in_pieces_and_bars_overwrite_themselves() -> None:
    lines = Lines()
    assert list(lines.feed(b"one\ntw")) == ["one"]
    assert list(lines.feed(b"o\r 10%\r 20%")) == ["two", " 10%"]
    assert list(lines.feed(b"\n\xff\n")) == [" 20%", "�"]


def test_two_streams_do_not_run_into_each_other() -> None:
    kept = Kept()
    kept.add(b"ValueError: to", 0)
    kept.add(b"Loading 10%\n", 1)
    kept.add(b"o long\n", 0)
    assert kept.bytes().splitlines() == [b"Loading 10%", b"ValueError: too long"]


def test_what_is_kept_of_a_log_is_bounded_head_and_tail() -> None:
    kept = Kept()
    kept.add(b"the first line\n")
    line = b"x" * 1023 + b"\n"
    for _ in range(2 * (HEAD + TAIL) // len(line)):
        kept.add(line)
    kept.add(b"the last line\n")
    text = kept.bytes()
    assert text.startswith(b"the first line\n")
    assert text.endswith(b"the last line\n")
    assert len(text) < HEAD + TAIL + 4096


def test_a_key_is_hidden_also_where_it_comes_in_two_pieces(tmp_path: Path) -> None:
    log = KeptLog(str(tmp_path / "log"), {"correct-horse": "$API_KEY"})
    for piece in (b"key=corre", b"ct-ho", b"rse and more", b"\nlast correct-horse"):
        log.write(piece)
    log.close()
    assert (tmp_path / "log").read_bytes() == b"key=$API_KEY and more\nlast $API_KEY"


def test_a_kept_log_is_bounded(tmp_path: Path) -> None:
    log = KeptLog(str(tmp_path / "log"), {}, most=1000)
    for number in range(100):
        log.write(b"%099d\n" % number)
    log.close()
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= 1000
    assert (tmp_path / "log").read_bytes().endswith(b"99\n")


class Gpus:
    """As pynvml, with memory that is given back after a while."""

    class NVMLError(Exception):
        pass

    def __init__(self, *mib: int) -> None:
        self.turns = list(mib)

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        from types import SimpleNamespace

        return SimpleNamespace(used=(self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]) << 20)


def test_gpu_memory_is_waited_for_until_it_is_as_before() -> None:
    gpus = Gpus(90_000, 40_000, 500)
    assert memory.wait_free(memory.Used((400,)), library=lambda: gpus) == ""
    assert gpus.turns == [500]


def test_gpu_memory_that_stays_taken_is_said() -> None:
    said = memory.wait_free(memory.Used((400,)), library=lambda: Gpus(9_400), seconds=0.1)
    assert "GPU 0: 9000 MiB more" in said


def test_without_a_driver_nothing_is_waited_for() -> None:
    def none() -> Any:
        raise UsageError("no library")

    before = memory.used(none)
    assert "no NVIDIA driver" in memory.wait_free(before, library=none)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "attnfit" / "runs"


def run_of(id: str, started: float = 0.0) -> Run:
    return Run(id=id, engine="vllm", started=started, command=("vllm", "serve", "m"), outcome="failed", exit_code=1)


def test_a_record_is_whole_or_the_old_one(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book(run_of("one"))
    assert book.write() == ""
    old = (state / "one" / "record.json").read_text()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    book.run.outcome = "served"
    assert "No space left" in book.write()
    assert book.write() == "", "said once"
    assert (state / "one" / "record.json").read_text() == old
    assert [path.name for path in (state / "one").iterdir()] == ["record.json"]


def test_a_record_that_is_no_record_hides_no_other(state: Path) -> None:
    Book(run_of("one")).write()
    (state / "two").mkdir()
    (state / "two" / "record.json").write_text("{")
    (state / "three").write_text("a file")
    assert [run.id for run in read_all()] == ["one"]


def test_a_run_is_found_by_the_end_of_its_number(state: Path) -> None:
    Book(run_of("1130-aa11")).write()
    Book(run_of("1130-bb11")).write()
    assert find("aa11").id == "1130-aa11"
    with pytest.raises(UsageError, match="may be"):
        find("11")
    with pytest.raises(UsageError, match="no run"):
        find("cc")


def test_an_empty_number_is_no_run_s(state: Path) -> None:
    recorded_one = Run(id="1130-aa11", engine="vllm", started=1, command=())
    Book(recorded_one).write()
    with pytest.raises(UsageError, match="empty"):
        find("")


def test_old_runs_are_forgotten(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnfit.deploy.records.MOST", 2)
    for number in range(4):
        Book(run_of(str(number), float(number))).write()
    prune()
    assert [run.id for run in read_all()] == ["2", "3"]


def test_only_folders_of_runs_are_forgotten_whatever_their_records_say(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnfit.deploy.records.MOST", 1)
    victim = state.parent.parent / "victim"
    victim.mkdir()
    Book(run_of("0")).write()
    record = state / "0" / "record.json"
    record.write_text(record.read_text().replace('"0"', '"../../../victim"'))
    os.utime(state / "0", (0, 0))
    (state / "link").symlink_to(victim)
    Book(run_of("1", 1.0)).write()
    assert [run.id for run in read_all()] == ["1"]
    prune()
    assert victim.is_dir()
    assert sorted(path.name for path in state.iterdir()) == ["1", "link"]


@pytest.mark.parametrize("text", ["{}", "[]", "null", '{"ended": 1.0, "code": 0}', '{"ended":"x","code":0,"left":3}'])
def test_an_end_that_is_none_leaves_the_record_as_it_is(state: Path, text: str) -> None:
    book = Book(run_of("one"))
    book.run.attempts.append(Attempt(command=("vllm",), started=1.0))
    book.write()
    (state / "one" / "ended-1.json").write_text(text)
    assert [run.outcome for run in read_all()] == ["failed"]


@pytest.mark.parametrize(
    ("what", "value"),
    [("started", 1e18), ("started", -1e18), ("process", [-1, 5.0]), ("keeper", [1e30, 5.0]), ("attnfit", [1, 1e30])],
)
def test_a_record_with_impossible_numbers_is_none(state: Path, what: str, value: Any) -> None:
    Book(run_of("one")).write()
    record = state / "one" / "record.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {what: value}))
    assert read_all() == []


def test_a_record_that_is_no_plain_file_is_not_read(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pipe", "link", "large"):
        (state / name).mkdir(parents=True)
    os.mkfifo(state / "pipe" / "record.json")
    (state / "link" / "record.json").symlink_to("/dev/zero")
    Book(run_of("large")).write()
    assert [run.id for run in read_all()] == ["large"]
    monkeypatch.setattr("attnfit.deploy.files.MOST", 10)
    assert read_all() == []


def test_private_files_are_private_whatever_the_mask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_private(tmp_path / "x", {})
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600


def test_secrets_are_those_of_the_command_and_of_variables_that_say_so() -> None:
    words = ["vllm", "serve", "m", "--api-key", "correct-horse"]
    found = secrets_of(words, {"HF_TOKEN": "hf_0123456789", "HOME": "/home/someone", "API_KEY": "short"})
    assert found == {"correct-horse": "$API_KEY", "hf_0123456789": "$HF_TOKEN"}
    assert Launch(words, {}).clean("got correct-horse") == "got $API_KEY"


def test_what_was_removed_is_said_also_where_no_process_was_left() -> None:
    from attnfit.report.run import render

    left = {"event": "left", "stuck": 0, "processes": [], "removed": ["/dev/shm/psm_1", "/tmp/a"]}
    assert render(left).endswith(" left by the engine: /dev/shm/psm_1, /tmp/a; removed\n")
    assert len(render({**left, "processes": ["7 python"]}).splitlines()) == 2
