"""What did not end a start is no cause: an engine's own end of its processes, what was tried again, what is normal."""

from __future__ import annotations

import warnings

import pytest

from attnfit import cli
from attnfit.engines.log import literal
from explain_logs import answer, kind

SGLANG = "[2026-11-20 10:01:00] server_args=ServerArgs(model_path='x', tp_size=4)\n"
SIGQUIT = "[2026-11-20 10:02:00] Received sigquit from a child process. It usually means the child failed.\n"
BEGUN = "(APIServer pid=1) INFO 11-30 08:00:05 [api_server.py:233] vLLM API server version 0.32.0\n"
RETRIED = (
    "(APIServer pid=1) ERROR 11-30 08:00:06 [repo_utils.py:47] Error retrieving safetensors: 401 Client Error. Access"
    " to model org/m is restricted. You are trying to access a gated repo., retrying 1 of 2\n"
)
NORMAL = (
    "(EngineCore pid=9) ERROR 11-30 08:00:07 [cuda.py:834] NVLink detection failed. This is normal if your machine has"
    " no NVLink equipped.\n"
)
LOADED = "(EngineCore pid=9) INFO 11-30 08:00:36 [gpu_model_runner.py:834] Model loading took 3.4 GiB\n"
FULL = "(EngineCore pid=9) ERROR 11-30 08:00:37 [core.py:34] torch.OutOfMemoryError: CUDA out of memory.\n"


@pytest.mark.parametrize(
    "last",
    [
        "[2026-11-20 10:02:00 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n" + SIGQUIT,
        "[2026-11-20 10:02:00] Subprocess scheduler_0 (pid=77) crashed with exit code -6. Triggering SIGQUIT for"
        " cleanup...\n",
        SIGQUIT,
    ],
)
@pytest.mark.parametrize("word", ["Killed", "/run.sh: line 3:   211 Killed                  python3 -m server"])
def test_an_engine_that_ends_its_own_processes_was_not_killed_for_memory(last: str, word: str) -> None:
    assert answer(f"{SGLANG}{last}{word}\n").verdict == "cause unknown"


def test_a_server_that_is_killed_before_it_said_anything_of_an_end_ran_out_of_memory() -> None:
    found = answer(f"{SGLANG}[2026-11-20 10:01:10 TP0] Load weight begin. avail mem=78.58 GB\nKilled\n")
    assert found.cause is not None
    assert found.cause.record.kind == "host-memory"


def test_a_failure_that_was_found_is_not_said_to_be_one_of_memory_too_because_its_end_was_killed() -> None:
    died = (
        "[2026-11-20 10:02:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/usr/lib/python3/dist-packages/sglang/srt/managers/scheduler.py", line 7, in f\n'
        "    f()\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n\n"
    )
    found = answer(f"{SGLANG}{died}{SIGQUIT}Killed\n")
    assert found.cause is not None
    assert found.cause.record.kind == "gpu-memory"
    assert found.others == ()


@pytest.mark.parametrize(
    "passing", [RETRIED, NORMAL, RETRIED + NORMAL, RETRIED.replace(", retrying 1 of 2", "") + LOADED]
)
def test_an_error_that_ended_nothing_is_no_failure_where_the_log_ends_and_no_cause_of_another(passing: str) -> None:
    assert answer(BEGUN + passing).verdict == "no end"
    assert kind(BEGUN + passing + LOADED + FULL) == "gpu-memory"


def test_an_error_that_the_other_rank_did_not_wait_for_is_the_cause() -> None:
    failed = "(Worker_TP0 pid=9) ERROR 11-30 08:00:30 [core.py:34] torch.OutOfMemoryError: CUDA out of memory.\n"
    other = "(Worker_TP1 pid=8) INFO 11-30 08:00:36 [gpu_model_runner.py:834] Model loading took 3.4 GiB\n"
    assert kind(BEGUN + failed + other) == "gpu-memory"


def test_a_line_that_is_quoted_alone_is_answered_though_it_was_tried_again() -> None:
    assert kind(RETRIED) == "hub-access"


@pytest.mark.parametrize("name", ["", "/dev/null/x", __file__ + "/x"])
def test_a_log_that_cannot_be_there_is_one_error(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["attnfit", "explain", name])
    with pytest.raises(SystemExit) as left:
        cli.main()
    out, err = capsys.readouterr()
    assert (left.value.code, out, err.count("\n")) == (2, "", 1)
    assert "internal" not in err
    assert "give a file" in err


def test_a_path_with_backslashes_is_read_without_a_word_of_python() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert literal(r"{'model': 'D:\models\q'}") == {"model": r"D:\models\q"}
    assert said == []


# ---- an end without a word ------------------------------------------------------------------------------------------


def test_a_worker_that_dies_without_a_word_is_named_and_not_what_waits_for_it() -> None:
    """In the words of vLLM 0.32.0: the engine shuts the queue to the dead worker, which raises in who reads from it."""
    died = "Worker proc VllmWorker-0 died unexpectedly (exit code: -11), shutting down executor."
    head = "(EngineCore pid=9) ERROR 11-30 12:00:09 [core.py:1140]"
    found = answer(
        "(APIServer pid=1) INFO 11-30 12:00:00 [utils.py:233] non-default args: {'model_tag': 'org/model'}\n"
        "(APIServer pid=1) INFO:     Application startup complete.\n"
        f"(EngineCore pid=9) ERROR 11-30 12:00:09 [multiproc_executor.py:315] {died}\n"
        f"{head} EngineCore encountered a fatal error.\n"
        f"{head} Traceback (most recent call last):\n"
        f'{head}   File "/usr/lib/python3/dist-packages/vllm/v1/engine/core.py", line 1131, in run_engine_core\n'
        f"{head}     engine_core.run_busy_loop()\n"
        f'{head}   File "/usr/lib/python3/dist-packages/vllm/distributed/shm_broadcast.py", line 867, in acquire_read\n'
        f'{head}     raise RuntimeError("cancelled")\n'
        f"{head} RuntimeError: cancelled\n"
        "(APIServer pid=1) ERROR 11-30 12:00:10 [async_llm.py:708] vllm.v1.engine.exceptions.EngineDeadError: "
        "EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
    )
    assert found.unknown is not None
    assert (found.unknown.chain, found.unknown.earliest) == ((), died)
