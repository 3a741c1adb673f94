"""`attnfit explain`: logs as collectors, supervisors and launchers leave them; archives that are whole, cut or none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from attnfit import cli
from explain_logs import answer, kind, sglang, vllm, zipped

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
MAMBA = "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (524)."
FAILED = ["Main process exited, code=exited, status=1/FAILURE", "Failed with result 'exit-code'."]


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["attnfit", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


# ---- prefixes -----------------------------------------------------------------------------------------------------

PREFIXES = {
    "kubectl with times": "[pod/llm-7d9f8b6c5-x2x4q/server] 2026-11-20T10:00:00.123456789Z {}",
    "stern": "llm-7d9f8b6c5-x2x4q server {}",
    "srun --label": "3: {}",
    "a logger's tabs": "2026-11-20T10:00:00.123Z\tERROR\t{}",
    "Ray, worker": "\x1b[36m(RayWorkerWrapper pid=77, ip=10.0.0.3)\x1b[0m {}",
    "Ray, engine and worker": "(EngineCore_DP0 pid=150) (RayWorkerWrapper pid=77, ip=10.0.0.3) {}",
    "Ray Serve": "(ServeReplica:default:LLMDeployment pid=77, ip=10.0.0.3) {}",
    "torchrun": "[default3]:{}",
    "compose": "llm-1  | {}",
}


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("prints", [vllm, sglang], ids=["vllm", "sglang"])
def test_what_stands_in_front_of_a_line_is_taken_off(prefix: str, prints) -> None:  # type: ignore[no-untyped-def]
    found = answer("".join(PREFIXES[prefix].format(line) + "\n" for line in prints(OOM).splitlines()))
    assert found.cause is not None
    assert found.cause.line == OOM
    assert found.facts["model"] == "org/model"
    assert "dist-packages" in found.cause.where


def test_a_sentence_that_begins_like_a_prefix_is_left_whole() -> None:
    for line in ("worker-0 failed (code 1)", "3: the third step", "node-1 server is gone"):
        found = answer(f"{vllm('OddError: ' + line)}")
        assert found.unknown is not None
        assert found.unknown.chain == (f"OddError: {line}",)


def record(level: str, message: str, **more: str) -> str:
    return json.dumps({"asctime": "2026-11-20 10:00:00", "levelname": level, "message": message, **more}) + "\n"


def test_a_logger_that_writes_json_says_its_level_and_keeps_tracebacks_beside_the_text() -> None:
    start = record("INFO", "non-default args: {'model_tag': 'org/model', 'model': 'org/model'}")
    trace = f'Traceback (most recent call last):\n  File "/x/site-packages/vllm/a.py", line 3, in f\n    g()\n{OOM}'
    found = answer(start + record("ERROR", "EngineCore failed to start.", exc_info=trace))
    assert found.cause is not None
    assert (found.cause.record.kind, found.cause.where) == ("gpu-memory", "/x/site-packages/vllm/a.py:3 in f")
    assert answer(start + record("WARNING", OOM)).cause is None  # it only warns
    asked = record("INFO", f"Received request c-1: prompt: 'help\n{trace}\nEngineCore failed to start.")
    ready = record("INFO", "Application startup complete.")
    assert answer(start + ready + asked + record("INFO", "at work")).verdict == "no failure"
    ended = record("ERROR", "EngineCore encountered a fatal error.", exc_info=trace)
    assert kind(start + ready + asked + ended) == "gpu-memory"


# ---- restarts -----------------------------------------------------------------------------------------------------


def journal(lines: list[str], program: str, form: str) -> str:
    if form == "json":
        unit = "init.scope" if program == "systemd" else "llm.service"
        rows = ({"_HOSTNAME": "g", "_SYSTEMD_UNIT": unit, "PRIORITY": "6", "MESSAGE": line} for line in lines)
        return "".join(json.dumps(row) + "\n" for row in rows)
    return "".join(f"Nov 20 10:00:01 gpu-1 {program}[47]: {line}\n" for line in lines)


@pytest.mark.parametrize("marks", [True, False], ids=["with its first lines", "without"])
@pytest.mark.parametrize("form", ["json", "short"])
def test_a_loop_of_restarts_by_systemd_is_counted(form: str, marks: bool) -> None:
    text = ""
    for count in range(3):
        lines = vllm(OOM if count else MAMBA).splitlines()
        text += journal(["Started llm.service."], "systemd", form) + journal(lines[0 if marks else 2 :], "vllm", form)
        again = f"llm.service: Scheduled restart job, restart counter is at {count + 1}."
        text += journal([*(f"llm.service: {line}" for line in FAILED), again], "systemd", form)
    found = answer(text)
    assert found.cause is not None
    assert found.cause.record.kind == "gpu-memory"
    assert (found.starts, found.start) == (3, 3)
    assert "3 of 3 starts in this log failed, 2 of them in this way" in found.notes[0]


def test_a_start_of_another_engine_is_another_start() -> None:
    both = vllm(MAMBA) + sglang(OOM)
    found = answer(both)
    assert (found.starts, found.start, found.facts["engine"]) == (2, 2, "sglang")
    assert "release" not in found.facts  # that of the other one
    assert found.cause is not None
    assert found.cause.record.kind == "gpu-memory"
    assert kind(sglang(OOM) + vllm(MAMBA)) == "mamba-cache"


def test_what_the_ranks_of_one_start_each_print_is_one_start() -> None:
    mark = "INFO 11-20 10:00:01 [utils.py:233] non-default args: {'model': 'org/m'}\n"
    script = '  File "/usr/lib/python3/dist-packages/vllm/entrypoints/llm.py", line 10, in __init__\n'
    raised = [
        f"[rank{n}]: {line}\n" for n in (0, 1) for line in ("Traceback (most recent call last):", script[:-1], OOM)
    ]
    found = answer(mark * 2 + "".join(raised))
    assert found.starts == 1
    assert found.cause is not None
    assert found.cause.worker == "rank0"


def test_a_start_after_the_end_of_one_that_served_is_seen_without_its_first_lines() -> None:
    """VLLM_LOGGING_LEVEL=WARNING: only the web server's lines and errors are printed."""
    ready = "INFO:     Application startup complete.\n"
    died = "ERROR 11-20 12:00:00 [core.py:710] EngineCore encountered a fatal error.\n"
    found = answer(ready + died + ready)
    assert (found.verdict, found.starts) == ("no failure", 2)


# ---- archives -----------------------------------------------------------------------------------------------------


@pytest.fixture
def whole() -> bytes:
    return zipped(vllm(MAMBA) + "".join(f"line {n} {n * 7919 % 1009}\n" for n in range(4000)))


def test_a_whole_archive_has_no_note(whole: bytes) -> None:
    assert answer(whole).notes == ()


def test_a_cut_off_archive_is_read_as_far_as_it_goes_and_that_is_said(whole: bytes) -> None:
    found = answer(whole[: len(whole) * 2 // 3])
    assert found.cause is not None
    assert found.cause.record.kind == "mamba-cache"
    assert "the gzip file is cut off: what comes after line" in found.notes[0]
    assert answer(whole[:-3]).notes[0].startswith("the gzip file is cut off")


def test_so_is_one_that_is_broken_further_on(whole: bytes) -> None:
    broken = whole[: len(whole) * 2 // 3] + bytes(40) + whole[len(whole) * 2 // 3 + 40 :]
    assert "the gzip file is" in answer(broken).notes[0]
    assert "the gzip file is broken" in answer(whole + b"something else").notes[0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x1f\x8bgarbage", "nothing of it"), (b"\x1f\x8bgarbage, long enough", "broken"), (b"\x1f\x8b", "cut off"),
        (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "cut off"),
        (b"\xfd7zXZ\x00rest", "xzcat"), (b"\x28\xb5\x2f\xfdrest", "zstdcat"), (b"BZh91AY&SYrest", "bzcat"),
        (b"PK\x03\x04rest", "unzip -p"),
    ],
)  # fmt: skip
def test_an_archive_of_which_nothing_can_be_read_is_one_error(
    data: bytes, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "log.gz"
    log.write_bytes(data)
    code, out, err = run(monkeypatch, capsys, "explain", str(log))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


def test_the_note_stands_in_what_is_printed(
    whole: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "log.gz"
    log.write_bytes(whole[: len(whole) // 2])
    code, out, _ = run(monkeypatch, capsys, "explain", str(log))
    assert code == 0
    assert "note        the gzip file is cut off" in out


def test_a_number_with_a_command_is_a_mistake_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(monkeypatch, capsys, "explain", "AF215", "--", "vllm", "serve", "org/m")
    assert (code, out) == (2, "")
    assert "without a command" in err


# ---- progress bars and floods -------------------------------------------------------------------------------------


def test_of_a_progress_bar_the_last_states_are_read_and_the_lines_are_counted_right() -> None:
    bar = "\r".join(f"Loading error shards: {n}%|##  | {n}/10000" for n in range(60_000))
    log = vllm(MAMBA)
    found = answer(f"{bar}\r{log}")
    assert found.cause is not None
    assert found.cause.record.kind == "mamba-cache"
    assert found.cause.number == answer(log).cause.number  # type: ignore[union-attr]
    within = log.replace("WorkerProc failed", f"{bar}\rWorkerProc failed", 1)
    assert kind(within) == "mamba-cache"
    end = log.splitlines()[-20:]
    assert kind("\n".join(log.splitlines()[:-20] + [f"{bar}\r{line}" for line in end])) == "mamba-cache"


def flood(count: int, message: str = "OddError: request {} of {}") -> str:
    one = (
        "(APIServer pid=1) ERROR 11-20 12:00:{:02d} [serving.py:9] Traceback (most recent call last):\n"
        '(APIServer pid=1) ERROR 11-20 12:00:{:02d} [serving.py:9]   File "/x/vllm/serving.py", line 3, in f\n'
        "(APIServer pid=1) ERROR 11-20 12:00:{:02d} [serving.py:9] " + message + "\n"
    )
    return "".join(one.format(n % 60, n % 60, n % 60, n, n * 7) for n in range(count))


HEAD = vllm(MAMBA).partition("\n")[0] + "\n"
READY = "(APIServer pid=1) INFO:     Application startup complete.\n"
OK = '(APIServer pid=1) INFO:     10.0.0.1:5000 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
END = vllm(OOM).partition("\n")[2]


def test_a_flood_of_tracebacks_hides_neither_the_cause_nor_the_end() -> None:
    assert kind(HEAD + flood(3000) + vllm(MAMBA).partition("\n")[2]) == "mamba-cache"
    assert kind(HEAD + READY + flood(3000) + END) == "gpu-memory"
    assert answer(HEAD + READY + flood(3000) + OK * 5).verdict == "no failure"
    assert answer(HEAD + flood(3000) + READY).verdict == "no failure"
    assert answer(HEAD + flood(3000) + HEAD + flood(9)).starts == 2


def test_what_ends_a_server_after_a_flood_is_seen_though_it_was_survived_before() -> None:
    same = flood(500, OOM.replace("2.00", "{}.{}"))
    assert kind(HEAD + READY + same + OK * 9 + END) == "gpu-memory"
    assert kind(HEAD + READY + same + OK * 9 + flood(200) + END) == "gpu-memory"
