"""`attnfit run` goes another way after a failure that is known, and only then; what it starts is what was offered."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from attnfit.core import Launch as Answered
from attnfit.core import Report
from attnfit.deploy import pivot
from attnfit.deploy.checked import About
from attnfit.deploy.command import Launch, restored
from attnfit.deploy.pivot import Wishes
from attnfit.deploy.watch import Settings
from attnfit.inputs.secrets import hide
from attnfit.steps import Step
from replay import Stage, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what becomes of orphans is Linux's own")

BEGIN = [
    ["say", "(APIServer pid=1) INFO 11-30 08:00:05 [utils.py:233] non-default args: {'model': 'm'}"],
    [
        "say",
        "(EngineCore pid=9) INFO 11-30 08:00:20 [core.py:107] Initializing a V1 LLM engine (v0.33.0) with config: x",
    ],
]
SERVES = [*BEGIN, ["worker", 1], ["serve"]]


def fails(*message: str, code: int = 1) -> list[list[Any]]:
    """As an engine prints what a worker raised."""
    head = "(EngineCore pid=9) ERROR 11-30 08:00:36 [core.py:1132]"
    lines = [
        f"{head} EngineCore failed to start.",
        f"{head} Traceback (most recent call last):",
        f'{head}   File "/usr/lib/python3/dist-packages/vllm/v1/engine/core.py", line 1106, in run',
        f"{head}     raise",
        *(f"{head} {line}" for line in message),
    ]
    return [*BEGIN, ["worker", 1], *(["say", line] for line in lines), ["exit", code]]


TOO_LONG = (
    "ValueError: User-specified max_model_len (65536) is greater than the derived max_model_len "
    "(max_position_embeddings=40960.0 or model_max_length=None in model's config.json)."
)
NO_ROOM = (
    "ValueError: To serve at least one request with the models's max seq len (32768), (4.50 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (1.20 GiB). Based on the available memory, the estimated "
    "maximum model length is 8720."
)
UNKNOWN = "RuntimeError: the flux capacitor is empty"


@pytest.mark.parametrize(
    ("message", "given", "instead"),
    [(TOO_LONG, "65536", "40960"), (NO_ROOM, "32768", "8720")],
)
def test_a_known_failure_is_gone_round_and_the_engine_serves(
    stage: Stage, play: Any, message: str, given: str, instead: str
) -> None:
    stage.scenes(
        {"if": f"--max-model-len {given}", "do": [["env", "ATTNFIT_RUN"], *fails(message)]},
        {"if": f"--max-model-len {instead}", "do": [["env", "ATTNFIT_RUN"], *SERVES]},
    )
    run = play(launch=[*stage.launch, "--max-model-len", given])
    run.event("ready")
    assert run.event("pivot")["command"] == [*stage.launch, "--max-model-len", instead]
    mark = f"ATTNFIT_RUN={stage.runs()[0]['id']}"
    assert run.err.read_text().count(mark) == 2, "by its mark `free` knows what is left of either start"
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    first, second = stage.runs()[0]["attempts"]
    assert (first["outcome"], second["outcome"]) == ("failed", "served")
    assert first["hazard"].startswith("AF")
    until(lambda: not stage.alive())


def test_a_detached_engine_is_gone_round_too_and_its_record_is_the_last_one_s(stage: Stage, play: Any) -> None:
    stage.scenes({"if": "--max-model-len 65536", "do": fails(TOO_LONG)}, {"do": SERVES})
    run = play("--detach", launch=[*stage.launch, "--max-model-len", "65536"])
    assert run.wait() == 0
    assert " serving " in stage.attnfit("runs").stdout
    id = run.event("detached")["id"]
    assert [attempt["outcome"] for attempt in stage.runs()[0]["attempts"]] == ["failed", "serving"]
    assert stage.attnfit("runs", "stop", id).returncode == 0
    assert "attempt 2: served" in stage.attnfit("runs", "show", id).stdout
    until(lambda: not stage.alive())


def test_without_pivot_the_way_is_shown_and_not_gone(stage: Stage, play: Any) -> None:
    stage.scenes({"do": fails(TOO_LONG)})
    run = play("--no-pivot", launch=[*stage.launch, "--max-model-len", "65536"])
    assert run.wait() == 1
    (gave_up,) = run.events("give-up")
    assert gave_up["ways"][0]["command"] == [*stage.launch, "--max-model-len", "40960"]
    assert len(stage.pids("starts.txt")) == 1


def test_an_unknown_failure_is_not_tried_again(stage: Stage, play: Any) -> None:
    stage.scenes({"do": fails(UNKNOWN)})
    run = play("--attempts", "5")
    assert run.wait() == 1
    assert len(stage.pids("starts.txt")) == 1
    assert UNKNOWN in stage.runs()[0]["attempts"][0]["line"]
    assert "not known" in run.event("give-up")["text"]


def test_a_diagnosis_is_shown_and_spends_no_start(stage: Stage, play: Any) -> None:
    stage.scenes({"do": fails("RuntimeError: NCCL error: unhandled system error")})
    run = play(launch=[*stage.launch, "-tp", "2"])
    assert run.wait() == 1
    assert len(stage.pids("starts.txt")) == 1
    (gave_up,) = run.events("give-up")
    assert "no other command is known" in gave_up["text"]
    shown = {way["command"][0] for way in gave_up["ways"] if way["shows"] and way["command"]}
    assert "NCCL_DEBUG=INFO" in shown
    assert [way["shows"] for way in gave_up["ways"]] == sorted(way["shows"] for way in gave_up["ways"])


def test_what_a_failure_names_is_no_diagnosis(stage: Stage, play: Any) -> None:
    names = "RuntimeError: NCCL error: unhandled cuda error: peer access is not supported between these two devices"
    stage.scenes({"if": "-tp 2", "do": [["env", "NCCL_P2P_DISABLE"], *fails(names)]})
    run = play("--attempts", "2", launch=[*stage.launch, "-tp", "2"])
    assert run.wait() == 1
    assert run.event("pivot")["command"][0] == "NCCL_P2P_DISABLE=1"
    assert "NCCL_P2P_DISABLE=1" in run.err.read_text()


def test_no_command_is_tried_twice(stage: Stage, play: Any) -> None:
    """Whatever the remedies are: each failed once."""
    stage.scenes({"do": fails(TOO_LONG)})
    assert play("--attempts", "9", launch=[*stage.launch, "--max-model-len", "65536"]).wait() == 1
    starts = (stage.model / "starts.txt").read_text().splitlines()
    commands = [line.partition(" ")[2] for line in starts]
    assert len(commands) == len(set(commands)) > 1


def test_attempts_are_bounded(stage: Stage, play: Any) -> None:
    stage.scenes({"do": fails(TOO_LONG)})
    run = play("--attempts", "1", launch=[*stage.launch, "--max-model-len", "65536"])
    assert run.wait() == 1
    assert len(stage.pids("starts.txt")) == 1
    assert "--attempts" in run.event("give-up")["text"]


def test_a_failure_after_which_the_engine_stays_is_ended(stage: Stage, play: Any) -> None:
    stays = [*fails(TOO_LONG)[:-1], ["hang"]]
    stage.scenes({"if": "65536", "do": stays}, {"do": SERVES})
    run = play("--timeout", "30", launch=[*stage.launch, "--max-model-len", "65536"])
    assert run.event("failed")["hazard"] == "AF239"
    run.event("ready")


def test_a_hang_whose_log_holds_a_known_failure_is_gone_round(stage: Stage, play: Any) -> None:
    stays = [*fails(TOO_LONG)[:-1], ["hang"]]
    stage.scenes({"if": "65536", "do": stays}, {"do": SERVES})
    run = play("--timeout", "2", launch=[*stage.launch, "--max-model-len", "65536"])
    run.event("ready")
    assert run.event("failed")["outcome"] == "hung"


def test_a_crash_after_it_served_starts_it_again_later_and_later_and_then_no_more(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [*BEGIN, ["serve", 1.5], ["exit", 9]]})
    run = play("--attempts", "3")
    assert run.wait() == 1
    assert [event["seconds"] for event in run.events("again")] == [1.0, 2.0]
    assert [attempt["outcome"] for attempt in stage.runs()[0]["attempts"]] == ["crashed"] * 3


def test_a_server_that_ends_in_good_order_because_its_engine_died_has_crashed(stage: Stage, play: Any) -> None:
    """Its exit status is 0; its log says why it ended."""
    said = [step for step in fails(UNKNOWN) if step[0] == "say"]
    stage.scenes({"do": [*BEGIN, ["serve", 1.5], *said, ["exit", 0]]})
    run = play("--attempts", "1")
    assert run.wait() == 1
    assert run.event("failed")["outcome"] == "crashed"


def test_a_server_that_somebody_else_asks_to_end_has_served(stage: Stage, play: Any) -> None:
    stage.scenes({"do": SERVES})
    run = play()
    run.event("ready")
    os.kill(stage.pids("starts.txt")[0], signal.SIGTERM)
    assert run.wait() == 0
    assert stage.runs()[0]["outcome"] == "served"


@pytest.mark.parametrize("who", ["starts.txt", "workers.txt"])
def test_a_server_or_worker_killed_by_9_is_a_crash_and_the_engine_serves_again(
    stage: Stage, play: Any, who: str
) -> None:
    stage.scenes({"do": [*BEGIN, ["worker", 2], ["serve"], ["exit", 1]]})
    run = play()
    run.event("ready")
    os.kill(stage.pids(who)[0], signal.SIGKILL)
    until(lambda: len(run.events("ready")) == 2)
    assert len(stage.alive()) == 3, "of the first nothing is left"
    failed = run.event("failed")
    assert (failed["outcome"], failed["killed_by"]) == ("crashed", "SIGKILL" if who == "starts.txt" else "")
    assert ("SIGKILL ended its first process" in failed["cause"]) is (who == "starts.txt")


def test_a_signal_while_it_waits_to_start_again_ends_it(stage: Stage, play: Any) -> None:
    stage.scenes({"do": [*BEGIN, ["serve", 1.0], ["exit", 9]]})
    run = play("--attempts", "9")
    until(lambda: len(run.events("again")) == 3)  # four seconds
    run.signal(signal.SIGTERM)
    assert run.wait() == 143
    assert len(stage.pids("starts.txt")) == 3


ENDS = {"stop": ("runs", "stop"), "free": ("free", "--yes", "--run")}


@pytest.mark.parametrize("how", ENDS)
def test_a_server_that_is_ended_by_another_attnfit_is_not_started_again(stage: Stage, play: Any, how: str) -> None:
    """Whatever its exit status is: whoever watches it is told first."""
    stage.scenes({"do": [*BEGIN, ["serve_so", {"exits": 1}]]})
    run = play()
    run.event("ready")
    done = stage.attnfit(*ENDS[how], stage.runs()[0]["id"])
    assert done.returncode == 0, done.stderr
    assert run.wait() == 0
    assert (stage.runs()[0]["outcome"], len(stage.pids("starts.txt"))) == ("served", 1)
    until(lambda: not stage.alive())


@pytest.mark.parametrize("how", ENDS)
def test_a_start_that_is_ended_by_another_attnfit_is_not_gone_round(stage: Stage, play: Any, how: str) -> None:
    """Also where its log holds a failure that could be."""
    stays = [*fails(TOO_LONG)[:-1], ["say", "up"], ["hang"]]
    stage.scenes({"if": "65536", "do": stays}, {"do": SERVES})
    run = play(launch=[*stage.launch, "--max-model-len", "65536"])
    until(lambda: "up" in run.said())
    until(lambda: stage.runs()[0]["process"][0])
    done = stage.attnfit(*ENDS[how], stage.runs()[0]["id"])
    assert done.returncode == 0, done.stderr
    assert run.wait() == 143
    assert (stage.runs()[0]["outcome"], len(stage.pids("starts.txt"))) == ("stopped", 1)


@pytest.mark.parametrize("how", ENDS)
def test_a_run_that_waits_to_start_again_is_ended_too(stage: Stage, play: Any, how: str) -> None:
    stage.scenes({"do": [*BEGIN, ["serve", 1.0], ["exit", 9]]})
    run = play("--attempts", "9")
    until(lambda: len(run.events("again")) == 4)  # eight seconds
    assert " crashed " in stage.attnfit("runs").stdout
    done = stage.attnfit(*ENDS[how], stage.runs()[0]["id"])
    assert done.returncode == 0, done.stderr
    assert run.wait() == 143
    assert (stage.runs()[0]["outcome"], len(stage.pids("starts.txt"))) == ("stopped", 4)


def test_a_run_that_a_program_is_done_with_does_not_end_that_program(stage: Stage, monkeypatch: Any) -> None:
    """`attnfit` may be called from Python: its process goes on."""
    from attnfit.deploy import records

    stage.scenes({"do": [["exit", 1]]})
    checked_run(stage, monkeypatch, [report("unknown")])
    [run] = records.read_all()
    assert run.attnfit[0] == os.getpid()
    assert list(records.stop(run, 1)) == []


def test_a_failure_of_our_own_leaves_a_record_that_is_over(stage: Stage, monkeypatch: Any) -> None:
    monkeypatch.setattr(pivot, "taken", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        checked_run(stage, monkeypatch, [report("unknown")])
    assert (stage.runs()[0]["outcome"], stage.runs()[0]["exit_code"]) == ("failed", 2)


# ---- the check before: what it answers is given here, what is made of it is not ----


class Events(list[dict[str, Any]]):
    def __call__(self, event: Any) -> None:
        self.append(dict(event))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self if event["event"] == name]


def report(verdict: str, *steps: Step, exact: bool = True) -> Report:
    answered = Answered(ok=verdict == "passes", stage="selector", error="ValueError: no")
    return Report(
        verdict=verdict, launch=answered, engine="vllm", release="0.33.0", exact=exact, model="m", gpus=(), steps=steps
    )


def checked_run(stage: Stage, monkeypatch: Any, answers: list[Report], **wishes: Any) -> tuple[int, Events]:
    import attnfit.api

    turn = iter(answers)
    monkeypatch.setattr(attnfit.api, "check", lambda *_, **__: next(turn))
    events = Events()
    settings = Settings(grace=1, out=-1, err=-1)
    monkeypatch.setenv("XDG_STATE_HOME", str(stage.state))
    monkeypatch.setenv("PATH", stage.env["PATH"])
    words = [*stage.launch, "--api-key", "correct-horse-battery"]
    wished = Wishes(about=About(gpu="h200"), settings=settings, **wishes)
    return pivot.run(words, wished, events, stage.env), events


def step_to(stage: Stage, *flags: str) -> Step:
    return Step("drop it", (*stage.launch, "--api-key", "$API_KEY", *flags))


def test_what_the_check_refuses_is_shown_and_not_started(stage: Stage, monkeypatch: Any) -> None:
    stage.scenes({"do": [["exit", 0]]})
    code, events = checked_run(stage, monkeypatch, [report("refused", step_to(stage, "--dtype", "auto"))])
    assert code == 1
    (refused,) = events.named("refused")
    assert refused["ways"][0]["command"][-4:] == ["--api-key", "$API_KEY", "--dtype", "auto"]
    assert stage.pids("starts.txt") == []


def test_with_pivot_the_plan_is_started_with_its_keys_put_back(stage: Stage, monkeypatch: Any) -> None:
    stage.scenes({"do": [["exit", 1]]})
    answers = [report("refused", step_to(stage, "--dtype", "auto"))]
    checked_run(stage, monkeypatch, answers, pivot=True)
    (start,) = (stage.model / "starts.txt").read_text().splitlines()
    assert "--api-key correct-horse-battery --dtype auto" in start
    assert "correct-horse-battery" not in stage.everything_written()


@pytest.mark.parametrize(
    "needs", [{"installs": "attnfit[vllm]"}, {"release": "0.34.0"}, {"engine": "sglang"}, {"gpu": "B200"}]
)
def test_a_plan_that_needs_more_than_is_here_is_not_taken(stage: Stage, monkeypatch: Any, needs: Any) -> None:
    step = Step("do it", (*stage.launch, "--x"), **needs)
    stage.scenes({"do": [["exit", 1]]})
    code, _ = checked_run(stage, monkeypatch, [report("refused", step)], pivot=True)
    assert code == 1
    assert stage.pids("starts.txt") == []


def test_a_remedy_that_the_check_refuses_is_not_started(stage: Stage, monkeypatch: Any) -> None:
    stage.scenes({"if": "65536", "do": fails(TOO_LONG)}, {"do": [["exit", 1]]})
    words = ["vllm", "serve", str(stage.model), "--port", str(stage.port), "--max-model-len", "65536"]
    monkeypatch.setattr(Stage, "launch", words)
    code, events = checked_run(stage, monkeypatch, [report("passes"), *[report("refused")] * 9])
    assert code == 1
    assert len(stage.pids("starts.txt")) == 1
    assert events.named("give-up")[0]["ways"] != []


@pytest.mark.parametrize("answer", [report("unknown"), report("refused", exact=False)])
def test_a_verdict_that_is_unknown_starts_with_a_note(stage: Stage, monkeypatch: Any, answer: Report) -> None:
    stage.scenes({"do": [["exit", 1]]})
    _, events = checked_run(stage, monkeypatch, [answer])
    assert events.named("check")[0]["verdict"] == "unknown"
    assert len(stage.pids("starts.txt")) == 1


def test_gpu_memory_is_waited_for_before_the_next_start(stage: Stage, monkeypatch: Any) -> None:
    from attnfit.deploy import memory

    order: list[str] = []
    monkeypatch.setattr(memory, "used", lambda: memory.Used((10,)))
    monkeypatch.setattr(memory, "wait_free", lambda *_: order.append(f"waited {len(stage.alive())}") or "")
    stage.scenes({"if": "65536", "do": fails(TOO_LONG)}, {"do": [["exit", 1]]})
    monkeypatch.setattr(
        Stage, "launch", ["vllm", "serve", str(stage.model), "--port", str(stage.port), "--max-model-len", "65536"]
    )
    checked_run(stage, monkeypatch, [report("passes")] * 3)
    assert order[0] == "waited 0", "the whole tree had ended"
    assert len(stage.pids("starts.txt")) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["vllm", "serve", "m", "--api-key", "abcdefgh", "--dtype", "half"],
        ["VLLM_API_KEY=abcdefgh", "vllm", "serve", "m", "--dtype", "half"],
        ["env", "HF_TOKEN=hf_abcdefghijklmnopqrst", "vllm", "serve", "m", "--api-key=abcdefgh"],
        ["bash", "-c", "vllm serve m --api-key abcdefgh --dtype half"],
        ["vllm", "serve", "m", "--api-key", "abcdefgh", "ijklmnop", "--dtype", "half"],
        ["vllm", "serve", "m", "--api-key", "$OWN", "--dtype", "half"],
        ["docker", "run", "-e", "HF_TOKEN=hf_abcdefghijklmnopqrst", "vllm/vllm-openai:v0.33.0", "--model", "m"],
    ],
)
def test_secrets_that_were_hidden_are_put_back_where_they_stood(words: list[str]) -> None:
    shown = hide(words)
    assert list(restored(shown, words) or ()) == words
    changed = [word.replace("half", "auto") for word in shown]
    assert list(restored(changed, words) or ()) == [word.replace("half", "auto") for word in words]


def test_keys_that_cannot_be_told_apart_are_not_put_back() -> None:
    words = ["vllm", "serve", "m", "--api-key", "abcdefgh", "ijklmnop"]
    assert restored(hide(words)[:-1], words) is None


def test_every_remedy_of_the_catalogue_that_is_a_matter_of_flags_can_be_started() -> None:
    """From the message of a public report to a command that would be started, key and all."""
    import io

    from attnfit.deploy.checked import cures
    from attnfit.explain import explain, follow, marks
    from attnfit.inputs.log import read_lines

    data = Path(__file__).parent / "data" / "explain" / "field_lines.jsonl"
    started = 0
    for row in map(json.loads, data.read_text("utf-8").splitlines()):
        text = "\n".join(step[1] for step in fails(*row["line"].splitlines()) if step[0] == "say") + "\n"
        words = ["vllm", "serve", "m", "--api-key", "correct-horse-battery", "--max-model-len", "65536"]
        launch = Launch(words, {})
        answer = explain(follow(read_lines(io.BytesIO(text.encode()), marks())), launch.shown)
        for way in cures(launch, answer, About(check=False)):
            if way.shown and not (way.installs or way.shows):
                assert way.launch is not None, way
                assert "correct-horse-battery" in way.launch.words
                started += 1
    assert started > 10


LOGS = sorted((Path(__file__).parent / "data" / "explain" / "logs").glob("*.log"))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_a_recorded_log_of_many_gpus_is_explained_as_it_is_played(tmp_path: Path, log: Path) -> None:
    """What no CPU shows: several workers that fail at once, under either engine."""
    from explain_logs import answer

    program = "sglang" if "sglang" in log.stem else "vllm"
    stage = Stage(tmp_path, program)
    stage.scenes({"do": [["worker", 4], ["log", str(log)], ["exit", 1]]})
    launch = [program, "serve", *(["--model-path"] if program == "sglang" else []), str(stage.model)]
    run = stage.start("--grace", "1", "--no-pivot", launch=[*launch, "--port", str(stage.port)])
    assert run.wait() == 1
    expected = answer(log.read_bytes()).cause
    assert expected is not None
    assert run.event("failed")["hazard"] == expected.record.id
    until(lambda: not stage.alive())


def test_people_read_what_failed_why_and_what_to_run_instead(stage: Stage) -> None:
    stage.scenes({"do": fails(TOO_LONG)})
    key = "correct-horse-battery"
    launch = [*stage.launch, "--api-key", key, "--max-model-len", "65536"]
    done = stage.attnfit("run", "--no-check", "--no-pivot", "--", *launch)
    assert done.returncode == 1
    ours = [line.removeprefix("attnfit: ") for line in done.stderr.splitlines() if line.startswith("attnfit: ")]
    shown = f"vllm serve {stage.model} --port {stage.port} --api-key $API_KEY --max-model-len"
    assert f"attempt 1 of 3: {shown} 65536" in ours
    assert "failed at stage starting, exit code 1" in ours
    assert "cause: AF239 the requested length is above the model's own" in ours
    assert "not tried again: there is another way, and --no-pivot" in ours
    assert f"      {shown} 40960" in ours
    assert key not in "".join(ours)
