"""`attnfit explain`: whatever form a log was kept in, the first cause is found, and what to do about it."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnfit import cli
from explain_logs import DATA, PRINTS, answer, kind, rows, sglang, vllm, zipped

TP = "ValueError: Total number of attention heads (52) must be divisible by tensor parallel size (3)."
MAMBA = "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (524)."
LOGS = {file.stem: file.read_bytes() for file in sorted((DATA / "logs").iterdir())}
KINDS = {name: kind(log) for name, log in LOGS.items()}


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["attnfit", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


# ---- forms a log is kept in ---------------------------------------------------------------------------------------

FORMS = {
    "plain": lambda text: text.encode(),
    "gzip": zipped,
    "utf-16": lambda text: text.encode("utf-16"),
    "crlf": lambda text: text.replace("\n", "\r\n").encode(),
    "docker -t": lambda text: "".join(f"2026-11-30T09:00:00.123456789Z {n}\n" for n in text.splitlines()).encode(),
    "kubectl": lambda text: "".join(f"[pod/llm-0/server] {line}\n" for line in text.splitlines()).encode(),
    "compose": lambda text: "".join(f"llm-1  | {line}\n" for line in text.splitlines()).encode(),
    "syslog": lambda text: "".join(f"Nov 30 09:00:00 gpu-1 llm[77]: {line}\n" for line in text.splitlines()).encode(),
    "docker json": lambda text: "".join(
        json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-11-30T09:00:00Z"}) + "\n"
        for line in text.splitlines()
    ).encode(),
    "journald": lambda text: "".join(
        json.dumps({"_HOSTNAME": "gpu-1", "MESSAGE": list(line.encode()) if "ERROR" in line else line}) + "\n"
        for line in text.splitlines()
    ).encode(),
    "ray": lambda text: "".join(f"(RayWorkerProc pid=77, ip=10.0.0.3) {line}\n" for line in text.splitlines()).encode(),
    "torchrun": lambda text: "".join(f"[rank3]: {line}\n" for line in text.splitlines()).encode(),
    "latin-1 in it": lambda text: b"gr\xfc\xdfe \xff\xfe\x00\n" + text.encode() + b"\xe9\n",
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("prints", [vllm, sglang], ids=["vllm", "sglang"])
def test_the_form_a_log_was_kept_in_does_not_matter(form: str, prints) -> None:  # type: ignore[no-untyped-def]
    text = prints("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert kind(FORMS[form](text)) == "gpu-memory"


def test_colours_and_progress_bars_are_not_in_the_way() -> None:
    log = vllm(MAMBA).replace("ERROR", "\x1b[31mERROR\x1b[0m").replace("ValueError", "\x1b[1;35mValueError\x1b[0m")
    bar = "Loading: 10%|#    |\rLoading: 50%|##   |\rLoading: 100%|#####|\n"
    assert kind(bar + log) == "mamba-cache"
    assert kind(log.replace("\n(", "\nLoading: 50%|##   |\r(")) == "mamba-cache"
    pasted = log.replace("\x1b", "").replace(") ", ")[0;0m ").replace("(Worker", "[1;36m(Worker")
    found = answer(pasted)
    assert found.cause is not None
    assert (found.cause.record.kind, found.cause.worker) == ("mamba-cache", "Worker_TP0")


# ---- which cause --------------------------------------------------------------------------------------------------


def test_the_first_of_two_causes_is_the_cause_and_the_other_is_named() -> None:
    found = answer(
        sglang("torch.OutOfMemoryError: CUDA out of memory.") + "\n" + vllm(TP).partition("\n(EngineCore")[2]
    )
    assert found.cause is not None
    assert found.cause.record.kind == "gpu-memory"
    assert found.others == ("AF217",)


def test_consequences_are_no_causes() -> None:
    found = answer(vllm("SomeError: of which nothing is known"))
    assert found.cause is None
    assert found.unknown is not None
    assert found.unknown.chain == ("SomeError: of which nothing is known",)
    said = [text for _, text in found.follows]
    assert any("See root cause above" in text for text in said)
    assert any("See stack trace" in text for text in said)


def test_of_a_chain_the_innermost_exception_is_shown() -> None:
    chain = (
        "FileNotFoundError: no file\n\nThe above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "/x/site-packages/sglang/a.py", line 3, in b\n    raise\n'
        "OddError: cannot go on"
    )
    found = answer(sglang(chain))
    assert found.unknown is not None
    assert found.unknown.chain == ("FileNotFoundError: no file", "OddError: cannot go on")


def test_a_line_of_source_code_is_nothing_that_was_printed() -> None:
    code = '     raise ValueError("CUDA out of memory: max_num_seqs (1) exceeds available Mamba cache blocks (2)")'
    log = vllm("OddError: x").replace("     raise ValueError(", code)
    assert kind(log) is None


def test_a_restart_loop_is_answered_for_its_last_start_that_failed() -> None:
    found = answer(vllm(TP) + vllm(MAMBA) + vllm(MAMBA))
    assert found.cause is not None
    assert found.cause.record.kind == "mamba-cache"
    assert (found.starts, found.start) == (3, 3)
    assert "2 of them in this way" in found.notes[0]
    head = vllm(TP).splitlines()[0] + "\n"
    assert kind(vllm(TP) + head) == "tp-divisibility"  # the last start has not failed yet
    served = answer(vllm(TP) + head + "(APIServer pid=1) INFO:     Application startup complete.\n")
    assert served.verdict == "no failure"
    assert "AF217" in served.notes[0]


def test_a_server_that_served_and_died_has_failed() -> None:
    head = vllm(TP).partition("\n")[0]
    serves = "(APIServer pid=1) INFO:     Application startup complete.\n"
    died = "(EngineCore pid=9) ERROR 11-30 09:00:00 [core.py:1586] EngineCore encountered a fatal error.\n"
    oom = "(EngineCore pid=9) ERROR 11-30 09:00:00 [core.py:1586] torch.OutOfMemoryError: CUDA out of memory.\n"
    assert kind(head + "\n" + serves + died + oom) == "gpu-memory"
    assert answer(head + "\n" + serves + oom).verdict == "no failure"  # a request went wrong, the server did not


def test_what_the_log_tells_is_read() -> None:
    found = answer(LOGS["dsr1-nvfp4-sm120-regression"])
    facts = found.facts
    assert (facts["engine"], facts["release"], facts["model"]) == ("vllm", "0.14.0", "nvidia/DeepSeek-R1-0528-NVFP4")
    assert facts["kv_cache_dtype"] == "fp8_e4m3"
    assert facts["selector"]["head_size"] == "576"
    assert facts["reasons"]["TRITON_MLA"] == ["kv_cache_dtype not supported"]
    assert facts["args"]["tensor_parallel_size"] == 8
    assert answer(LOGS["gptoss-mixed-2080ti-3090"]).facts["gpu"] == [
        "NVIDIA GeForce RTX 2080 Ti",
        "NVIDIA GeForce RTX 3090",
    ]


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ("{A: [kv_cache_dtype not supported], B: [compute capability not supported]}", "kv-cache-dtype"),
        ("{A: [sparse not supported], B: [sparse not supported, compute capability not supported]}", "sparse-mla"),
        ("{A: [compute capability not supported, B.so is not available, likely was not compiled]}", None),
        ("{A: [a reason of the future]}", None),
    ],
)
def test_a_selector_s_refusal_is_what_would_let_a_backend_through(reasons: str, expected: str | None) -> None:
    said = "No valid attention backend found for cuda with AttentionSelectorConfig(head_size=128, use_mla=False)."
    line = f"ValueError: {said} Reasons: {reasons}."
    assert kind(line) == expected
    assert kind(line[: line.index("Reasons")]) is None  # cut off before it says why


def test_a_backend_asked_for_by_name_that_refuses_several_things_is_unknown() -> None:
    line = "ValueError: Selected backend AttentionBackendEnum.A is not valid for this configuration. Reason: {}"
    assert kind(line.format("['kv_cache_dtype not supported']")) == "kv-cache-dtype"
    assert kind(line.format("['compute capability not supported', 'dtype not supported']")) == "flag-arch-mismatch"
    assert kind(line.format("['kv_cache_dtype not supported', 'head_size not supported']")) is None


# ---- what to do ---------------------------------------------------------------------------------------------------


def commands(found) -> list[str]:  # type: ignore[no-untyped-def]
    return [" ".join(way.command) for way in found.ways if way.command]


def test_the_command_is_put_together_from_the_arguments_in_the_log() -> None:
    assert commands(answer(vllm(MAMBA)))[0] == "vllm serve org/model --tensor-parallel-size 2 --max-num-seqs 524"
    found = commands(answer(LOGS["sglang-hybrid-gdn-b300"]))
    assert found[0].startswith(
        "python -m sglang.launch_server --model-path Qwen/Qwen3.5-35B-A3B --attention-backend triton"
    )


def test_a_figure_that_the_engine_prints_is_in_the_command() -> None:
    message = (
        "ValueError: To serve at least one request with the model's max seq len (196608), 23.25 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (22.5 GiB). Based on the available memory, the "
        "estimated maximum model length is 190272. Try increasing `gpu_memory_utilization`."
    )
    assert commands(answer(vllm(message)))[0].endswith("--max-model-len 190272")
    cut = answer(vllm(message.partition(". Based")[0]))  # without the figure there is nothing to set
    assert cut.cause is not None
    assert not any("max-model-len" in command for command in commands(cut))


def test_the_user_s_own_command_is_changed_where_it_stands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text(vllm(TP))
    given_ = ["env", "A=1", "vllm", "serve", "org/model", "-tp", "3", "--api-key", "sk-abcdefghijklmnop1234"]
    code, out, _ = run(monkeypatch, capsys, "explain", str(log), "--", *given_)
    assert code == 0
    assert out.startswith("Cause: AF217 tp-divisibility")
    assert "env A=1 vllm serve org/model -tp 2 --api-key $API_KEY" in out
    assert "sk-abc" not in out


def test_a_variable_is_set_in_front_of_the_command() -> None:
    found = answer(LOGS["deepgemm-sf-sm120-gemma4"])
    assert commands(found)[0].startswith(
        "VLLM_USE_DEEP_GEMM=0 vllm serve RedHatAI/gemma-4-31B-it-FP8-block --max-model-len 65536"
    )


def test_an_unknown_failure_has_a_summary_without_secrets_and_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text(
        sglang(
            "OddError: token=hf_abcdefghijklmnopqrstuvwx at http://10.1.2.3:8000, node=gpu-rack-7, /home/ada/models/x, "
            "gpu-rack-7.cluster.local, ada@example.org"
        )
    )
    code, out, _ = run(monkeypatch, capsys, "explain", str(log))
    assert code == 3
    assert out.startswith("Cause: unknown")
    paste = out.partition("To report it")[2]
    assert "OddError" in paste
    for private in ("hf_abc", "10.1.2.3", "gpu-rack-7", "/home/ada", "ada@"):
        assert private not in paste, private


def test_the_json_answer_has_what_the_text_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text(vllm(MAMBA))
    code, out, _ = run(monkeypatch, capsys, "explain", str(log), "--json")
    body = json.loads(out)
    assert (code, body["schema"], body["kind"], body["hazard"]) == (0, 1, "mamba-cache", "AF215")
    assert body["cause"]["figures"] == {"asked": "1024", "blocks": "524"}
    assert body["remedies"][0]["command"][-1] == "524"
    code, out, _ = run(monkeypatch, capsys, "explain", str(log), "--quiet")
    assert out.count("\n") == 1
    assert out.startswith("Cause: AF215")


def test_a_hazard_is_explained_by_its_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(monkeypatch, capsys, "explain", "af215")
    assert code == 0
    assert out.startswith("AF215 mamba-cache: ")
    for word in ("strikes", "why", "prints", "remedy", "known from", "how sure", "--max-num-seqs"):
        assert word in out
    assert run(monkeypatch, capsys, "explain", "AF999")[0] == 2
    code, out, _ = run(monkeypatch, capsys, "hazards", "--engine", "sglang", "--kind", "hybrid-gdn", "--json")
    assert {record["kind"] for record in json.loads(out)["hazards"]} == {"hybrid-gdn"}
    assert run(monkeypatch, capsys, "hazards", "--kind", "hybrid-gnd")[2].count("did you mean 'hybrid-gdn'") == 1


@pytest.mark.parametrize("name", ["not-there.log", "."])
def test_a_log_that_cannot_be_read_is_said_in_one_sentence(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(monkeypatch, capsys, "explain", name)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1


# ---- whatever a log holds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOGS)
def test_a_log_cut_off_anywhere_never_shows_another_kind(name: str) -> None:
    log = LOGS[name]
    cuts = sorted({*random.Random(7).sample(range(len(log)), 60), *(at for at in range(len(log) - 400, len(log), 7))})
    assert {kind(log[:at]) for at in cuts} <= {None, KINDS[name]}


@given(st.sampled_from(sorted(LOGS)), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_nor_does_one_whose_workers_write_between_each_other(name: str, chance: random.Random) -> None:
    """Lines of a second worker, in its own order, fall anywhere between those of the first."""
    own = LOGS[name].decode().splitlines()
    other = [
        "(Worker_TP7 pid=99) ERROR 11-30 08:00:35 [multiproc_executor.py:751] Traceback (most recent call last):",
        '(Worker_TP7 pid=99) ERROR 11-30 08:00:35 [multiproc_executor.py:751]   File "/x/vllm/a.py", line 3, in b',
        "(Worker_TP7 pid=99) ERROR 11-30 08:00:35 [multiproc_executor.py:751]     c()",
        "(Worker_TP7 pid=99) ERROR 11-30 08:00:35 [multiproc_executor.py:751] BrokenPipeError: [Errno 32] Broken pipe",
    ]
    places = sorted(chance.choices(range(len(own) + 1), k=len(other)), reverse=True)
    for place, line in zip(places, reversed(other), strict=True):
        own.insert(place, line)
    assert kind("\n".join(own)) in (None, KINDS[name])


@given(st.sampled_from(["vllm", "sglang"]), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_two_workers_whole_tracebacks_may_be_interleaved_line_by_line(engine: str, chance: random.Random) -> None:
    message = "ValueError: Weight output_partition_size = 64 is not divisible by weight quantization block_n = 128."
    both = [PRINTS[engine](message).splitlines() for _ in range(2)]
    merged = []
    while any(both):
        merged.append(chance.choice([lines for lines in both if lines]).pop(0))
    assert kind("\n".join(merged)) == "quant-shape"


NOISE = [b"\x1b[31m", b"\x1b[0m", b"\x1b]0;t\x07", b"\x00", b"\xff\xfe", b"\x08", b"\x1b[2K"]
BREAKS = [b"\r", b"\n", b"\n\n", b"\r\n"]


@given(st.sampled_from(sorted(LOGS)), st.lists(st.tuples(st.floats(0, 1), st.sampled_from(NOISE)), max_size=30))
@settings(max_examples=80, deadline=None)
def test_noise_anywhere_in_a_log_never_shows_another_kind(name: str, noise: list[tuple[float, bytes]]) -> None:
    log = LOGS[name]
    for place, what in sorted(noise, reverse=True):
        at = int(place * len(log))
        log = log[:at] + what + log[at:]
    assert kind(log) in (None, KINDS[name])


@given(st.sampled_from(sorted(LOGS)), st.floats(0, 1), st.sampled_from(BREAKS))
@example("gptoss-mixed-2080ti-3090", 0.0625, b"\r")
@example("dsr1-nvfp4-sm120-regression", 0.4765625, b"\n")
@example("dsr1-nvfp4-sm120-regression", 0.46875, b"\r")
@settings(max_examples=80, deadline=None)
def test_a_line_broken_in_two_is_read_as_one_of_its_halves_or_not_at_all(name: str, place: float, what: bytes) -> None:
    """Where the line that tells two causes apart is cut, only what is left of it can be judged."""
    log = LOGS[name]
    at = int(place * (len(log) - 1))
    start, end = log.rfind(b"\n", 0, at) + 1, log.find(b"\n", at)
    end = len(log) if end < 0 else end
    left = (log[:start] + log[end + 1 :], log[:at] + log[end:], log[:start] + log[at:])
    assert kind(log[:at] + what + log[at:]) in (None, KINDS[name], *map(kind, left))


@given(st.binary(max_size=4000))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read_and_nothing_is_claimed_of_them(noise: bytes) -> None:
    assert answer(b" " + noise).cause is None  # the space: no archive that is broken


def test_every_hazard_is_seen_far_into_a_long_log() -> None:
    """Behind the lines that are read whatever they hold, a traceback's own words lead to it."""
    traffic = '(APIServer pid=1) INFO:     10.0.0.7:1 - "POST /v1/completions HTTP/1.1" 200 OK\n' * 3000
    missed = []
    for row in rows("source_lines.jsonl")[::5]:
        log = vllm(f"{row['exception']}: {row['message']}") if row["engine"] == "vllm" else None
        if log is not None and kind(traffic + log) != row["kind"]:
            missed.append(row["message"])
    assert missed == []
