"""A corrected command is one that starts: in the flags of the log's release, and not refused by `check`."""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from attnfit import cli
from attnfit.api import check
from attnfit.engines.log import Edit, log_words
from attnfit.hazards import catalogue
from attnfit.hazards.figures import divisor
from explain_logs import DATA, answer, vllm

WORDS = {words.engine: words for words in log_words()}
SINKS = (
    "ValueError: Selected backend FLASHINFER is not valid for this configuration. "
    "Reason: ['sink setting not supported']"
)


def commands(log: str | bytes, *given: str) -> list[str]:
    return [" ".join(way.command) for way in answer(log, given).ways if way.command]


def buts(log: str | bytes, *given: str) -> str:
    return "; ".join(way.but for way in answer(log, given).ways if way.but)


def of(release: str, message: str) -> str:
    return f"INFO 11-30 08:00:05 [api_server.py:1] vLLM API server version {release}\n{message}\n"


# ---- what the release has -----------------------------------------------------------------------------------------


def test_before_there_was_a_flag_for_the_backend_the_variable_is_set() -> None:
    new = commands(of("0.13.0", SINKS), "vllm", "serve", "org/model")
    old = commands(of("0.12.0", SINKS), "vllm", "serve", "org/model")
    assert new == ["vllm serve org/model --attention-backend TRITON_ATTN"]
    assert old == ["VLLM_ATTENTION_BACKEND=TRITON_ATTN vllm serve org/model"]
    log = (DATA / "logs" / "vllm-qwen3next-b200-flashinfer.log").read_bytes()  # of 0.10.2
    assert all("--attention-backend" not in command for command in commands(log))
    assert any("VLLM_ATTENTION_BACKEND=FLASH_ATTN" in command for command in commands(log))


def test_a_name_or_a_flag_that_an_older_release_may_not_have_is_not_written() -> None:
    older = of("0.10.2", SINKS)
    assert commands(older, "vllm", "serve", "org/model") == []
    assert "how vLLM 0.10.2 calls TRITON_ATTN is not known here" in buts(older, "vllm", "serve", "org/model")
    encoder = "NotImplementedError: ViT attention hasn't supported AttentionBackendEnum.FLASHINFER backend yet."
    found = commands(of("0.14.0", encoder), "vllm", "serve", "org/model")
    assert not any("--language-model-only" in command for command in found)
    assert "vLLM 0.14.0 has no --language-model-only" in buts(of("0.14.0", encoder), "vllm", "serve", "org/model")
    newer = commands(of("0.17.0", encoder), "vllm", "serve", "org/model")
    assert any("--language-model-only" in command for command in newer)


def test_every_remedy_is_written_in_what_the_oldest_and_the_newest_release_have() -> None:
    """Or it is said why not; whatever is written is a flag of that release's parser."""
    from attnfit.engines.vllm.flags import known_releases, load_table

    for release in (known_releases()[0], known_releases()[-1]):
        options = load_table(release).by_option()
        for record in catalogue().records:
            for remedy in record.remedies:
                if (remedy.engine or record.engine) != "vllm" or not remedy.set:
                    continue
                edit = WORDS["vllm"].spelt(Edit(remedy.set, remedy.drop, remedy.variables), release)
                names = edit.set if isinstance(edit, Edit) else ()
                assert all({flag, flag.partition(".")[0]} & set(options) for flag in names), (record.id, release)


def test_a_value_that_the_release_does_not_take_is_not_written() -> None:
    assert "takes no" in str(WORDS["vllm"].spelt(Edit({"--kv-cache-dtype": "nvfp4"}), "0.12.0"))
    assert isinstance(WORDS["vllm"].spelt(Edit({"--kv-cache-dtype": "bfloat16"}), "0.12.0"), Edit)
    assert "is not known" in str(WORDS["vllm"].spelt(Edit({"--decode-context-parallel-size": "1"}), "0.9.0"))
    assert "takes no" in str(WORDS["sglang"].spelt(Edit({"--attention-backend": "none"}), "0.5.23"))
    assert "has no" in str(WORDS["sglang"].spelt(Edit({"--linear-attn-backend": "triton"}), "0.5.6"))


def test_what_was_called_otherwise_before_is_called_so() -> None:
    edit = Edit({"--dsa-prefill-backend": "tilelang"})
    assert WORDS["sglang"].spelt(edit, "0.5.9") == Edit({"--nsa-prefill-backend": "tilelang"})
    assert WORDS["sglang"].spelt(edit, "0.5.23") == edit


@pytest.mark.parametrize(
    ("release", "names"),
    [("0.14.0", {"TRITON_PTXAS_PATH"}), ("0.20.2", {"TRITON_PTXAS_BLACKWELL_PATH"}), ("", set())],
)
def test_the_variable_for_ptxas_is_the_one_that_the_release_s_triton_reads(release: str, names: set[str]) -> None:
    """Of a release that is not known, both."""
    line = "ptxas fatal   : Value 'sm_110a' is not defined for option 'gpu-name'"
    command = commands(of(release, line) if release else line, "vllm", "serve", "org/model")[0]
    assert {name for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH") if f"{name}=" in command} == (
        names or {"TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"}
    )


def test_an_image_s_tag_says_the_release_where_the_log_does_not() -> None:
    given = ("docker", "run", "--gpus", "all", "vllm/vllm-openai:v0.12.0", "--model", "org/model")
    found = commands(SINKS, *given)
    assert "-e VLLM_ATTENTION_BACKEND=TRITON_ATTN" in found[0]
    assert "--attention-backend" not in found[0]


# ---- where it stands ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["--attention_backend=FLASHINFER"], ["--attention_backend=TRITON_ATTN"]),
        (["-ac.backend=FLASHINFER"], ["-ac.backend=TRITON_ATTN"]),
        (["--attention-config.backend", "FLASHINFER"], ["--attention-config.backend", "TRITON_ATTN"]),
        (["-ac", '{"backend":"FLASHINFER"}'], ["-ac", '{"backend": "TRITON_ATTN"}']),
        (["-ac", '{"a":3}'], ["-ac", '{"a":3}', "--attention-backend", "TRITON_ATTN"]),
    ],
)
def test_the_backend_is_changed_in_whatever_form_it_was_asked_for(before: list[str], after: list[str]) -> None:
    edit = Edit({"--attention-backend": "TRITON_ATTN"})
    assert WORDS["vllm"].edited(["m", *before], "serve", "0.33.0", edit) == ("m", *after)
    if "TRITON_ATTN" in "".join(after[:2]):
        gone = WORDS["vllm"].edited(["m", *before[:2]], "serve", "0.33.0", Edit(drop=("--attention-backend",)))
        assert gone == ("m",)


def test_a_key_of_a_group_that_is_given_as_json_goes_into_it() -> None:
    """Beside it, it would take the whole group's place."""
    drafter = ["m", "--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}']
    edit = Edit({"--speculative-config.attention_backend": "FLASH_ATTN"})
    done = WORDS["vllm"].edited(drafter, "serve", "0.33.0", edit)
    assert json.loads(done[2]) == {"method": "mtp", "num_speculative_tokens": 2, "attention_backend": "FLASH_ATTN"}
    assert len(done) == 3
    passes = ["m", '-cc={"mode": 3, "pass_config": {"fuse_allreduce_rms": true}}']
    done = WORDS["vllm"].edited(passes, "serve", "0.33.0", Edit({"-cc.pass_config.fuse_allreduce_rms": "False"}))
    assert json.loads(done[1].partition("=")[2]) == {"mode": 3, "pass_config": {"fuse_allreduce_rms": False}}


@pytest.mark.parametrize(
    ("flag", "phases"),
    [
        ("--attention-backend", ("--prefill-attention-backend", "--decode-attention-backend")),
        ("--linear-attn-backend", tuple(f"--linear-attn-{phase}-backend" for phase in ("prefill", "decode", "verify"))),
    ],
)
def test_what_was_asked_for_of_one_phase_goes_with_what_is_set_for_all(flag: str, phases: tuple[str, ...]) -> None:
    argv = ["--model-path", "m", *(word for phase in phases for word in (phase, "fa3")), "--tp", "2"]
    done = WORDS["sglang"].edited(argv, "module", None, Edit({flag: "triton"}))
    assert done == ("--model-path", "m", "--tp", "2", flag, "triton")
    assert WORDS["sglang"].edited(argv, "module", None, Edit(drop=(flag,))) == ("--model-path", "m", "--tp", "2")
    one = WORDS["sglang"].edited(argv, "module", None, Edit({phases[0]: "flashinfer"}))
    assert [word for word in one if word in phases] == list(phases)  # one phase says nothing of the others


def test_no_sglang_remedy_keeps_the_flag_that_was_refused() -> None:
    refusals = {
        "--prefill-attention-backend trtllm_mha": "ValueError: TRTLLM MHA backend for prefill requires Hopper or newer",
        "--prefill-attention-backend fa3": "AssertionError: FlashAttention v3 Backend requires SM>=80 and SM<=90. ",
        "--linear-attn-prefill-backend flashinfer": "ValueError: --linear-attn-prefill-backend flashinfer on SM100+ "
        "requires CUDA 13+, got CUDA 12.8",
        "--moe-a2a-backend megamoe": "ValueError: --moe-a2a-backend megamoe needs a CUDA SM90 GPU (block-FP8 experts)",
    }
    for flag, line in refusals.items():
        given = ("python", "-m", "sglang.launch_server", "--model-path", "org/model", *flag.split())
        found = commands(line, *given)
        assert found, line
        assert not any(flag.partition(" ")[0] in command for command in found), found
        assert not any("--mamba-ssm-dtype" in command for command in found)


def test_a_script_s_arguments_make_no_server_s_command() -> None:
    """LLM(...) switches the statistics off by itself; its arguments are no flags of a command that there was."""
    log = vllm("ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (524).")
    script = log.replace("'model_tag': 'org/model', ", "'disable_log_stats': True, ")
    assert commands(log)
    assert commands(script) == []
    assert any("--max-num-seqs 524" in way.change for way in answer(script).ways)


# ---- figures and words that fit the line --------------------------------------------------------------------------


@pytest.mark.parametrize(("heads", "size", "fits"), [(28, 8, 4), (40, 16, 8), (12, 8, 4), (64, 3, 2), (9, 4, 1)])
def test_a_tensor_parallel_size_is_a_power_of_two_that_divides_the_heads(heads: int, size: int, fits: int) -> None:
    """The other parts that must be divided are not in the line: 7 divides 28 heads, and not 4 KV heads."""
    assert divisor({"heads": str(heads), "size": str(size)}) == {"fits": str(fits)}


def told(line: str) -> str:
    found = answer(line)
    assert found.cause is not None
    record = found.cause.record
    return "\n".join((record.kind, record.title, record.why, *(f"{way.text} {way.change}" for way in found.ways)))


def test_what_is_said_fits_the_line() -> None:
    no_room = told("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.")
    assert "full length" not in no_room
    assert "--kv-cache-dtype" not in no_room
    more_free = told("AssertionError: Error in memory profiling. Initial free memory 3 GiB, current free memory 9 GiB.")
    assert "less is free" not in more_free
    wrong_value = told("vllm serve: error: argument --kv-cache-dtype: invalid choice: 'x' (choose from auto, fp8)")
    assert "a flag that this release does not have" not in wrong_value
    no_weights = told("RuntimeError: Cannot find any model weights with `/models/x`")
    assert "newer release" not in no_weights
    assert "A name or a size" not in no_weights
    here = told("OSError: /models/x does not appear to have a file named config.json.")
    assert "gated" not in here
    hub = told("OSError: org/model does not appear to have a file named config.json.")
    assert hub.startswith("hub-access")


def test_decode_context_parallelism_that_does_not_divide_is_not_cured_by_fewer_ranks() -> None:
    line = (
        "ValueError: Decode context parallelism for GQA/MQA requires `--tensor-parallel-size` (4) to be greater than "
        "the model's total number of KV heads (8). Increase `--tensor-parallel-size` or set "
        "`--decode-context-parallel-size 1`."
    )
    assert told(line).startswith("dcp\n")
    assert "smaller --tensor-parallel-size" not in told(line)
    assert commands(line, "vllm", "serve", "org/model", "-tp", "4", "-dcp", "2") == [
        "vllm serve org/model -tp 4 -dcp 1"
    ]


def test_a_model_that_takes_no_float16_is_not_given_it() -> None:
    line = "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0."
    assert commands(line, "vllm", "serve", "org/other")[0].endswith("--dtype half")
    gemma = commands(line, "vllm", "serve", "google/gemma-3-27b-it", "--dtype", "bfloat16")
    assert gemma == ["vllm serve google/gemma-3-27b-it --dtype float32"]


# ---- put through check --------------------------------------------------------------------------------------------


def known_config(name: str) -> dict[str, Any]:
    known = json.loads(gzip.decompress((Path(__file__).parent / "data" / "configs.json.gz").read_bytes()))
    return dict(known[name]["config"])


def written(place: Path, name: str, **change: object) -> str:
    place.mkdir()
    (place / "config.json").write_text(json.dumps(known_config(name) | change))
    return str(place)


def remedies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: Path, log: str, *words: str
) -> list[dict[str, Any]]:
    file = place / "log"
    file.write_text(log)
    options, command = ((), words) if words[0] != "--gpu" else (words[:2], words[2:])
    monkeypatch.setattr(sys, "argv", ["attnfit", "explain", str(file), "--json", *options, "--", *command])
    before = dict(os.environ)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    assert dict(os.environ) == before
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["remedies"]
    return found


def heads(count: int, size: int) -> str:
    return f"ValueError: Total number of attention heads ({count}) must be divisible by tensor parallel size ({size})."


def test_a_command_that_check_refuses_gives_way_to_the_planner_s(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tower = known_config("Qwen__Qwen2.5-VL-7B-Instruct")["vision_config"] | {"num_heads": 20}
    text = {"num_attention_heads": 24, "num_key_value_heads": 8}
    model = written(tmp_path / "m", "Qwen__Qwen2.5-VL-7B-Instruct", vision_config=tower, **text)
    log = of("0.19.1", heads(24, 16))
    found = remedies(monkeypatch, capsys, tmp_path, log, "vllm", "serve", model, "-tp", "16")
    given = [way["command"] for way in found if way["command"]]
    assert given
    for command in given:
        report = check(command, gpu="h200", count=16, engine="vllm==0.19.1", planned=False)
        assert report.verdict == "passes", command
    refused = next(way for way in found if way["but"])
    assert refused["command"] is None
    assert "attnfit check refuses" in refused["but"]


def test_one_that_it_does_not_refuse_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = written(tmp_path / "m", "Qwen__Qwen2.5-VL-7B-Instruct")
    found = remedies(monkeypatch, capsys, tmp_path, of("0.19.1", heads(28, 8)), "vllm", "serve", model, "-tp", "8")
    assert found[0]["command"] == ["vllm", "serve", model, "-tp", "4"]
    assert not any(way["but"] for way in found)


def test_what_the_model_s_own_files_say_decides(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Gemma 3 takes no float16, whatever its directory is called."""
    model = written(tmp_path / "m", "google__gemma-3-27b-it")
    line = (
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla "
        "V100-SXM2-32GB GPU has compute capability 7.0."
    )
    command = ("vllm", "serve", model, "--dtype", "bfloat16")
    for gpu in ((), ("--gpu", "7.0")):
        found = remedies(monkeypatch, capsys, tmp_path, of("0.19.1", line), *gpu, *command)
        given = [way["command"] for way in found if way["command"]]
        assert given
        for each in given:
            report = check(each, gpu="7.0", engine="vllm==0.19.1", planned=False)
            assert report.launch.ok, each
        assert any("does not support float16" in way["but"] for way in found)


def test_what_cannot_be_read_here_is_not_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = remedies(
        monkeypatch, capsys, tmp_path, of("0.19.1", heads(28, 8)), "vllm", "serve", "org/not-here", "-tp", "8"
    )
    assert found[0]["command"] == ["vllm", "serve", "org/not-here", "-tp", "4"]
    assert "KV heads" in found[0]["text"]
