"""`attnfit run`: an engine is started, watched until it serves, and ends with nothing left behind."""

from __future__ import annotations

import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest

from replay import HERE, Stage, free_port, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what becomes of orphans is Linux's own")

BEGIN = ["say", "INFO 11-30 12:00:00 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: model='m'"]
SHARDS = ["say", "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00]\r", "err"]
SERVES = [BEGIN, ["worker", 2], SHARDS, ["serve"]]


def clean(stage: Stage) -> bool:
    """Nothing is left: no process, no zombie, no listener, no half-written file."""
    until(lambda: not stage.alive(), f"{stage.alive()} are left")
    assert stage.port_is_free()
    assert [path.name for path in stage.state.rglob(".*")] == []
    return True


def test_ready_is_said_when_health_and_one_real_request_have_been_answered(stage: Stage, play: Any) -> None:
    stage.scenes(
        {
            "do": [
                BEGIN,
                [
                    "serve",
                    600,
                ],
            ]
        }
    )
    run = play()
    ready = run.event("ready")
    assert ready["request"] == "completion"
    assert ready["url"] == f"http://127.0.0.1:{stage.port}"
    assert "served /v1/completions" in run.err.read_text()
    run.signal(signal.SIGINT)
    assert run.wait() == 0
    assert clean(stage)


def test_a_model_that_embeds_is_asked_for_an_embedding(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [BEGIN, ["serve_so", {"answers": "/v1/embeddings"}]]})
    assert play().event("ready")["request"] == "embedding"


def test_health_alone_is_not_ready(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [BEGIN, ["serve_so", {"broken": 10**6}]]})
    run = play("--timeout", "first request=3")
    assert run.wait() == 1
    assert run.events("ready") == []
    assert run.event("failed")["stage"] == "first request"


def test_a_request_that_fails_at_first_is_sent_again(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [BEGIN, ["serve_so", {"broken": 2, "healthy_after": 0.5}]]})
    assert play().event("ready")["request"] == "completion"


def test_stages_and_progress_are_said(stage: Stage, play: Any) -> None:
    stage.scenes({"do": SERVES})
    run = play()
    run.event("ready")
    stages = [(event["stage"], event["done"], event["total"]) for event in run.events("stage")]
    assert stages[:2] == [("starting", 0, 0), ("loading weights", 1, 2)]
    assert stages[-1][0] == "first request"


def test_the_output_passes_through_byte_for_byte(stage: Stage) -> None:
    odd = [*range(256), 13, 10, 255, 254]
    stage.scenes({"do": [["raw", odd], ["say", "to stderr", "err"], ["exit", 3]]})
    words = [sys.executable, "-m", "attnfit", "run", "--no-check", "--", *stage.launch]
    done = subprocess.run(words, env=stage.env, capture_output=True, timeout=60, check=False)
    assert done.stdout == bytes(odd)
    assert b"to stderr\n" in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_loading_ends_the_whole_tree(stage: Stage, play: Any, number: int, code: int) -> None:
    stage.scenes({"do": [BEGIN, ["worker", 3], ["orphan"], SHARDS, ["hang"]]})
    run = play()
    until(lambda: len(stage.alive()) == 5)
    until(lambda: len(run.events("stage")) == 2)
    run.signal(number)
    assert run.wait() == code
    assert stage.runs()[0]["outcome"] == "stopped"
    assert clean(stage)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_what_was_ignored_when_it_was_started_stays_ignored(stage: Stage, play: Any, number: int) -> None:
    """As under `nohup`, or in a shell's background."""
    stage.scenes({"do": SERVES})
    before = signal.signal(number, signal.SIG_IGN)
    try:
        run = play()
    finally:
        signal.signal(number, before)
    run.event("ready")
    run.signal(number)
    os.kill(stage.runs()[0]["keeper"][0], number)
    assert psutil.Process(stage.pids("starts.txt")[0]).is_running()
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    assert [event["signal"] for event in run.events("stopping")] == ["SIGTERM"]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_streams_that_are_closed_are_nowhere_and_no_pipe_of_ours(stage: Stage, closed: str, options: list[str]) -> None:
    stage.scenes({"do": [BEGIN, ["say", "to stderr", "err"], ["exit", 3]]})
    words = [sys.executable, "-m", "attnfit", "run", "--no-check", *options, "--", *stage.launch]
    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *words], env=stage.env, capture_output=True,
                          timeout=60, check=False)  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert stage.runs()[0]["attempts"][0]["code"] == 3
    if "2>" not in closed:
        assert b"to stderr" in done.stderr


@pytest.mark.parametrize("words", [["runs"], ["free", "--dry-run"]])
def test_the_other_commands_work_with_closed_streams_too(stage: Stage, words: list[str]) -> None:
    words = ["sh", "-c", 'exec "$@" <&- >&-', "sh", sys.executable, "-m", "attnfit", *words]
    done = subprocess.run(words, env=stage.env, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("host", ["a..b", "x" * 300, ".", "a b"])
def test_a_host_that_is_no_name_is_the_engine_s_matter(stage: Stage, play: Any, host: str) -> None:
    stage.scenes({"do": [BEGIN, ["sleep", 1.5], ["exit", 4]]})
    run = play(launch=[*stage.launch, "--host", host])
    assert run.wait() == 1
    assert "Traceback" not in run.said()
    assert stage.runs()[0]["attempts"][0]["code"] == 4


def test_an_answer_that_cannot_be_read_is_none(stage: Stage, play: Any) -> None:
    """And no end of whoever asks."""
    stage.scenes({"do": [BEGIN, ["serve_so", {"deep": True}]]})
    run = play("--timeout", "first request=2")
    assert run.wait() == 1
    assert run.event("failed")["stage"] == "first request"
    assert "Traceback" not in run.said()


def test_a_word_of_several_lines_is_one_line_in_what_is_listed(stage: Stage) -> None:
    stage.scenes({"do": [["exit", 1]]})
    launch = [*stage.launch, "--chat-template", "one\ntwo"]
    said = stage.attnfit("run", "--no-check", "--", *launch).stderr
    assert all(line.startswith("attnfit: ") for line in said.splitlines())
    listed = stage.attnfit("runs").stdout.splitlines()
    assert len(listed) == 2
    assert "one\\ntwo" in listed[1]


def test_an_engine_that_does_not_hear_is_killed_after_its_grace(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [["deaf"], ["worker", 2, True], ["orphan"], ["hang"]]})
    run = play()
    until(lambda: len(stage.alive()) == 4)
    run.signal(signal.SIGTERM)
    assert run.wait() == 143
    assert stage.runs()[0]["attempts"][0]["code"] == -signal.SIGKILL
    assert clean(stage)


def test_a_unit_that_stops_signals_all_at_once_and_the_engine_has_its_grace_all_the_same(
    stage: Stage, play: Any
) -> None:
    stage.scenes({"do": [BEGIN, ["ends_slowly", 2.0], ["say", "up"], ["hang"]]})
    run = play("--grace", "20")
    until(lambda: "up" in run.said())
    keeper = stage.runs()[0]["keeper"][0]
    run.signal(signal.SIGTERM)
    run.event("stopping")
    os.kill(keeper, signal.SIGTERM)
    assert run.wait() == 143
    assert stage.runs()[0]["attempts"][0]["code"] == 0


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_it_ends_also_where_nobody_takes_what_it_prints(stage: Stage, options: list[str]) -> None:
    lines = [["say", f"INFO line {'x' * 4000} {number}"] for number in range(40)]
    stage.scenes({"do": [BEGIN, *lines, ["hang"]]})
    reader, writer = os.pipe()
    words = [sys.executable, "-m", "attnfit", "run", "--no-check", "--grace", "1", *options, "--", *stage.launch]
    run = subprocess.Popen(words, env=stage.env, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer)
    try:
        until(stage.alive)
        until(lambda: not select.select([], [writer], [], 0)[1], "the pipe is not full")
        run.send_signal(signal.SIGTERM)
        assert run.wait(20) == 143
        assert clean(stage)
    finally:
        run.kill()
        run.wait()
        os.close(reader)
        os.close(writer)


def test_a_second_signal_does_not_wait_for_the_grace(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [["deaf"], ["worker", 2, True], ["hang"]]})
    run = play("--grace", "3000")
    until(lambda: len(stage.alive()) == 3)
    run.signal(signal.SIGINT)
    run.event("stopping")
    time.sleep(0.5)  # two at once are one
    run.signal(signal.SIGINT)
    assert run.wait() == 130
    assert clean(stage)


def test_one_signal_that_comes_twice_at_once_is_one(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [BEGIN, ["ends_slowly", 2.0], ["say", "up"], ["hang"]]})
    run = play("--grace", "20")
    until(lambda: "up" in run.said())
    run.signal(signal.SIGTERM)
    time.sleep(0.05)
    run.signal(signal.SIGTERM)
    assert run.wait() == 143
    assert [event["hard"] for event in run.events("stopping")] == [False]


def test_a_keeper_that_was_stopped_is_no_reason_not_to_end(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [BEGIN, ["worker", 2], ["hang"]]})
    run = play()
    until(lambda: len(stage.alive()) == 3)
    until(lambda: stage.runs()[0]["process"][0])
    os.kill(stage.runs()[0]["keeper"][0], signal.SIGSTOP)
    run.signal(signal.SIGTERM)
    assert run.wait() == 143
    assert clean(stage)


@pytest.mark.parametrize("scene", [SERVES, [BEGIN, ["worker", 2, True], ["orphan"], ["hang"]]])
def test_the_engine_ends_with_attnfit_killed_by_9(stage: Stage, play: Any, scene: list[Any]) -> None:
    stage.scenes({"do": scene})
    run = play()
    run.event("ready") if scene is SERVES else until(lambda: len(stage.alive()) == 4)
    run.signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    assert clean(stage)
    listed = stage.attnfit("runs")
    assert " lost " in listed.stdout


def test_the_engine_ends_with_its_keeper_killed_by_9(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [BEGIN, ["worker", 2, True], ["orphan"], ["serve"]]})
    run = play("--attempts", "1")
    run.event("ready")
    os.kill(stage.runs()[0]["keeper"][0], signal.SIGKILL)
    assert run.wait() == 1
    assert clean(stage)


def test_a_port_that_is_taken_is_said_before_anything_starts(stage: Stage, play: Any) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", stage.port))
        other.listen()
        stage.scenes({"do": SERVES})
        run = play()
        assert run.wait() == 1
        failed = run.event("failed")
        assert failed["outcome"] == "not started"
        assert f"{os.getpid()} " in failed["cause"]
    assert stage.pids("starts.txt") == []


def test_a_stranger_s_answers_are_not_taken_for_the_engine_s(stage: Stage, play: Any) -> None:
    """Two servers of one user can share a port; the other one was not there when it was looked for."""
    stage.scenes({"do": [BEGIN, ["hang"]]})
    run = play("--timeout", "4")
    until(stage.alive)
    code = f"import replay_engine, time; replay_engine.serve({stage.port}); time.sleep(60)"
    stranger = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, cwd=HERE)
    try:
        assert run.wait() == 1
    finally:
        stranger.kill()
        stranger.wait()
    assert run.events("ready") == []


def test_what_the_engine_leaves_is_ended_and_counted(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [BEGIN, ["worker", 2], ["orphan"], ["exit", 7]]})
    run = play()
    assert run.wait() == 1
    assert stage.runs()[0]["attempts"][0]["left"] == 3
    assert stage.runs()[0]["attempts"][0]["code"] == 7
    assert clean(stage)


def test_a_hang_is_said_with_its_stage_and_ended(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [BEGIN, ["worker", 1], SHARDS, ["hang"]]})
    run = play("--timeout", "loading weights=1")
    assert run.wait() == 1
    assert run.event("hung")["stage"] == "loading weights"
    assert stage.runs()[0]["outcome"] == "hung"
    assert clean(stage)


def test_words_of_waiting_are_no_progress(stage: Stage, play: Any) -> None:
    waits = [["say", "INFO No available shared memory broadcast block found in 60 seconds."], ["sleep", 0.3]]
    stage.scenes({"do": [BEGIN, *waits * 100]})
    run = play("--timeout", "2")
    assert run.wait() == 1
    assert run.events("hung") != []


def test_a_hang_is_kept_where_that_is_wished(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [BEGIN, ["hang"]]})
    run = play("--timeout", "1", "--keep-hung")
    assert run.event("hung")["kept"] is True
    assert until(stage.alive)
    assert run.process.poll() is None


def test_a_detached_engine_goes_on_and_is_found_and_stopped(stage: Stage, play: Any) -> None:
    stage.scenes({"do": SERVES})
    run = play("--detach")
    assert run.wait() == 0
    id = run.event("detached")["id"]
    assert len(stage.alive()) == 3
    assert " serving " in stage.attnfit("runs").stdout
    assert "served /v1/completions" in (stage.state / "attnfit/runs" / id / "engine-1.log").read_text()
    stopped = stage.attnfit("runs", "stop", id)
    assert stopped.returncode == 0, stopped.stderr
    assert clean(stage)
    assert " served " in stage.attnfit("runs").stdout


def test_a_detached_engine_outlives_attnfit_killed_by_9(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [BEGIN, ["worker", 2], ["hang"]]})
    run = play("--detach")
    until(lambda: len(stage.alive()) == 3)
    until(stage.runs)
    until(lambda: stage.runs()[0]["process"][0])
    run.signal(signal.SIGKILL)
    run.wait()
    assert len(stage.alive()) == 3
    stopped = stage.attnfit("runs", "stop", stage.runs()[0]["id"], "--grace", "5")
    assert stopped.returncode == 0, stopped.stderr
    assert clean(stage)


def test_a_detached_engine_whose_keeper_is_gone_is_stopped_all_the_same(stage: Stage, play: Any) -> None:
    stage.scenes({"do": SERVES})
    run = play("--detach")
    assert run.wait() == 0
    os.kill(stage.runs()[0]["keeper"][0], signal.SIGKILL)
    assert len(stage.alive()) == 3
    assert stage.attnfit("runs", "stop", stage.runs()[0]["id"], "--grace", "5").returncode == 0
    assert clean(stage)


def test_a_process_that_has_a_run_s_number_by_chance_is_not_touched(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [BEGIN, ["exit", 1]]})
    run = play()
    run.wait()
    import json

    (record,) = stage.state.rglob("record.json")
    body = json.loads(record.read_text())
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        body |= {"keeper": [bystander.pid, 1.0], "process": [bystander.pid, 1.0], "outcome": "serving"}
        record.write_text(json.dumps(body))
        assert " lost " in stage.attnfit("runs").stdout
        assert stage.attnfit("runs", "stop", body["id"]).returncode == 0
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_records_are_private(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [BEGIN, ["serve"]]})
    assert play("--detach").wait() == 0
    for path in (stage.state / "attnfit").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    stage.attnfit("runs", "stop", stage.runs()[0]["id"])


@pytest.mark.parametrize("detach", [False, True])
def test_no_key_reaches_records_events_or_the_log(stage: Stage, play: Any, detach: bool) -> None:
    key, other = "correct-horse-battery", "hf_abcdefghijklmnopqrstuv"
    says = ["say", f"INFO 11-30 12:00:00 [utils.py:1] non-default args: {{'api_key': ['{key}'], 'x': '{other}'}}"]
    stage.scenes({"do": [BEGIN, says, ["env", "HF_TOKEN"], ["serve_so", {"key": key}]]})
    launch = [*stage.launch, "--api-key", key]
    run = play(*(["--detach"] if detach else []), launch=launch, HF_TOKEN=other)
    assert run.event("ready")["request"] == "completion", "the key was used"
    if detach:
        stage.attnfit("runs", "stop", stage.runs()[0]["id"])
    else:
        run.signal(signal.SIGTERM)
    run.wait()
    written = stage.everything_written() + run.out.read_text()
    assert "$API_KEY" in written
    assert key not in written
    assert other not in written


@pytest.mark.parametrize(
    "words",
    [
        ["--kv-transfer-config", '{"kv_connector_extra_config":{"api_key":"EEsecret11","token":"EEsecret11"}}'],
        ["--hf-overrides", '{"text_config":{"password":"EEsecret11"}}'],
        ["--middleware", "x?api_key=EEsecret11"],
    ],
)
def test_no_key_inside_a_value_reaches_records_or_their_list(stage: Stage, play: Any, words: list[str]) -> None:
    stage.scenes({"do": [BEGIN, ["exit", 3]]})
    run = play(launch=[*stage.launch, *words])
    assert run.wait() == 1
    listed = [stage.attnfit("runs", *more).stdout for more in ((), ("--json",), ("show", stage.runs()[0]["id"]))]
    assert all(words[0] in text for text in listed)
    assert "EEsecret11" not in "".join(listed) + stage.everything_written()


def test_a_full_disk_costs_the_record_and_nothing_else(stage: Stage, play: Any) -> None:
    stage.scenes({"do": SERVES})
    (stage.state).write_text("a file where a folder should be")
    run = play()
    assert "not recorded" in run.event("note")["text"]
    run.event("ready")
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    until(lambda: not stage.alive())


def test_what_could_not_be_found_again_is_not_detached(stage: Stage, play: Any) -> None:
    stage.scenes({"do": SERVES})
    (stage.state).write_text("a file where a folder should be")
    run = play("--detach")
    assert run.wait() == 2
    assert "nothing was started" in run.err.read_text()
    assert stage.pids("starts.txt") == []


def test_a_detached_engine_whose_record_was_lost_later_is_said_by_number(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [BEGIN, ["sleep", 3.0], ["serve"]]})
    run = play("--detach")
    until(lambda: stage.runs() and stage.runs()[0]["process"][0])
    keeper = stage.runs()[0]["keeper"][0]
    shutil.rmtree(stage.state)
    stage.state.write_text("a file where a folder should be")
    said = run.event("detached")
    assert (said["keeper"], said["recorded"]) == (keeper, False)
    assert run.wait() == 0
    os.kill(keeper, signal.SIGTERM)
    until(lambda: not stage.alive())


def test_an_engine_that_was_stopped_has_hung_and_our_own_kill_is_no_cause(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [BEGIN, ["killed", int(signal.SIGSTOP)]]})
    run = play("--timeout", "1")
    assert run.wait() == 1
    failed = run.event("failed")
    assert (failed["outcome"], failed["killed_by"]) == ("hung", "")
    assert "no progress" in failed["cause"]
    assert clean(stage)


def test_an_engine_that_goes_into_the_background_has_not_been_ended_as_asked(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [BEGIN, ["background", "go"], ["serve"]]})
    run = play()
    run.event("ready")
    (stage.model / "go").touch()
    assert run.wait() == 1
    assert "in the foreground" in run.event("failed")["cause"]
    assert clean(stage)


def test_a_dry_run_starts_and_writes_nothing(stage: Stage) -> None:
    stage.scenes({"do": SERVES})
    done = stage.attnfit("run", "--dry-run", "--no-check", "--", *stage.launch)
    assert done.returncode == 0
    assert f"would start: vllm serve {stage.model}" in done.stderr
    assert stage.pids("starts.txt") == []
    assert not stage.state.exists()


def test_variables_in_front_of_the_command_reach_the_engine(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [["env", "VLLM_USE_X"], ["exit", 1]]})
    run = play(launch=["VLLM_USE_X=a b", *stage.launch])
    run.wait()
    assert "VLLM_USE_X=a b" in run.err.read_text()


def test_no_shell_reads_the_command(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [["exit", 1]]})
    run = play(launch=[*stage.launch, "--served-model-name", "$(touch pwned); `touch pwned`"])
    run.wait()
    assert "$(touch pwned); `touch pwned`" in (stage.model / "starts.txt").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "give the launch behind --"),
        (["--", "vllm serve m"], "as words"),
        (["--", "nosuchprogram", "serve", "m"], "no server is started"),
        (["--", "./nothere/vllm", "serve", "m"], "no program that can be started"),
        (["--", "ssh", "host", "vllm", "serve", "m"], "another machine"),
        (["--timeout", "x", "--", "vllm", "serve", "m"], "SECONDS"),
        (["--timeout", "loading wieghts=3", "--", "vllm", "serve", "m"], "did you mean 'loading weights'"),
    ],
)
def test_what_cannot_be_started_is_said_in_one_sentence(stage: Stage, words: list[str], says: str) -> None:
    done = stage.attnfit("run", "--no-check", *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_start_and_kill_again_and_again_leaves_nothing(stage: Stage) -> None:
    """Fifty of them: proofs/run.py --soak."""
    temporary = stage.folder / "tmp"
    temporary.mkdir()
    descriptors = psutil.Process().num_fds()
    for turn in range(4):
        stage.port = free_port()
        stage.scenes({"do": [BEGIN, ["worker", 2], ["orphan"], ["serve"]]})
        run = stage.start("--grace", "1", TMPDIR=str(temporary))
        run.event("ready") if turn % 2 else until(lambda: len(stage.alive()) == 4)
        run.signal((signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGKILL)[turn])
        run.wait()
        assert clean(stage)
    assert psutil.Process().num_fds() == descriptors
    assert list(temporary.iterdir()) == []


def test_an_engine_that_silently_downloads_does_not_hang(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [BEGIN, ["writes", 9.0], ["serve"]]})
    run = play("--timeout", "4")
    run.event("ready")
    assert run.events("hung") == []


def test_a_port_that_only_a_file_names_is_found_when_the_log_says_that_it_serves(stage: Stage, play: Any) -> None:
    """As with `--config FILE`: the command says nothing of it."""
    other = free_port()
    says = ["say", "INFO:     Application startup complete."]
    stage.scenes({"do": [BEGIN, says, ["serve_so", {"port": other}]]})
    assert play().event("ready")["url"] == f"http://127.0.0.1:{other}"


def test_without_an_http_server_the_log_says_that_it_serves(stage: Stage, play: Any) -> None:
    says = ["say", "INFO:     Application startup complete."]
    stage.scenes({"do": [BEGIN, says, ["hang"]]})
    run = play("--timeout", "2", launch=[*stage.launch, "--headless"])
    assert run.event("ready")["note"] == "its log says so"
    time.sleep(3)  # longer than its patience
    assert run.events("hung") == []
    run.signal(signal.SIGTERM)
    assert run.wait() == 0


@pytest.mark.parametrize(
    ("words", "url"),
    [
        ("vllm serve m", "http://127.0.0.1:8000"),
        ("vllm serve m --host 0.0.0.0 --port=81 --ssl-certfile c", "https://127.0.0.1:81"),
        ("vllm serve m --host ::1 --port 81", "http://[::1]:81"),
        ("vllm serve m --uds /tmp/s", "unix:/tmp/s"),
        ("python -m sglang.launch_server --model-path m", "http://127.0.0.1:30000"),
        ("docker run -p 9000:8000 vllm/vllm-openai:v0.33.0 --model m", "http://127.0.0.1:9000"),
        ("docker run --network=host vllm/vllm-openai:v0.33.0 --model m --port 7", "http://127.0.0.1:7"),
        ("docker run -p 127.0.0.1:9000:7/tcp vllm/vllm-openai:v0.33.0 --model m --port 7", "http://127.0.0.1:9000"),
        ("docker run vllm/vllm-openai:v0.33.0 --model m", ""),
        ("python -m sglang.launch_server --model-path m --nnodes 2 --node-rank 1", ""),
        ("vllm serve m --headless", ""),
    ],
)
def test_the_command_says_where_the_server_listens(words: str, url: str) -> None:
    from attnfit.deploy.pivot import Wishes, _Runner
    from attnfit.deploy.signals import Signals

    address = _Runner(words.split(), Wishes(), lambda _: None, {}, Signals()).address
    assert (address.url if not address.nothing else "") == url


@pytest.mark.parametrize(
    ("words", "environ", "key"),
    [
        ("vllm serve m --api-key one two", {}, "one"),
        ("vllm serve m", {"VLLM_API_KEY": "three"}, "three"),
        ("VLLM_API_KEY=four vllm serve m", {"VLLM_API_KEY": "three"}, "four"),
        ("vllm serve m", {}, ""),
        ("python -m sglang.launch_server --model-path m --api-key five", {}, "five"),
    ],
)
def test_the_key_is_the_server_s_own(words: str, environ: dict[str, str], key: str) -> None:
    from attnfit.deploy.pivot import Wishes, _Runner
    from attnfit.deploy.signals import Signals

    assert _Runner(words.split(), Wishes(), lambda _: None, environ, Signals()).address.key == key


def test_a_container_that_is_left_to_itself_is_not_watched(stage: Stage) -> None:
    done = stage.attnfit("run", "--", "docker", "run", "-d", "vllm/vllm-openai:v0.33.0", "--model", "m")
    assert done.returncode == 2
    assert "leave -d away" in done.stderr


def test_the_first_process_ends_even_where_attnfit_and_the_keeper_are_killed_at_once(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [BEGIN, ["deaf"], ["hang"]]})
    run = play()
    until(lambda: stage.runs() and stage.runs()[0]["process"][0])
    run.signal(signal.SIGSTOP)  # so that it cannot see its keeper go
    os.kill(stage.runs()[0]["keeper"][0], signal.SIGKILL)
    run.signal(signal.SIGKILL)
    run.wait()
    until(lambda: not stage.alive())
