"""A launch of SGLang: its verdict with the stage, every candidate, the engine's holes, and the change that helps.

The answers of the release are those of tests/sglang_tiny.py; the real ones are compared in proofs/.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import sglang_tiny as tiny
from attnfit import batch, check, cli, describe
from attnfit.core import Hazard, Status
from attnfit.engines.sglang import answers, hazards, legacy, needs, releases
from attnfit.engines.sglang.answers import Answer, Case

SNAPSHOTS = Path(__file__).parent / "snapshots"
STORY = ["python", "-m", "sglang.launch_server", "--model-path", "./Qwen3.5-397B-A17B-NVFP4", "--tp", "8",
         "--attention-backend", "flashinfer", "--enable-flashinfer-allreduce-fusion"]  # fmt: skip
SM120 = {"gpu": "rtx-pro-6000-server", "count": 8, "engine": "sglang==0.5.9"}


@pytest.fixture(autouse=True)
def asker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tiny.Tiny:
    found = tiny.Tiny()
    monkeypatch.setattr(answers, "choose", lambda version, source=None: found)
    tiny.model(tmp_path / "Qwen3.5-397B-A17B-NVFP4", tiny.HYBRID)
    tiny.model(tmp_path / "dense", tiny.DENSE)
    tiny.model(tmp_path / "sparse", tiny.SPARSE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("NO_COLOR", "TERM", "ATTNFIT_GPU", "ATTNFIT_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    return found


def run(*words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["attnfit", *words])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    return int(exit_.value.code or 0), capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("sglang-story.txt", ["--gpu", "rtx-pro-6000-server", "-n", "8", "--engine", "sglang==0.5.9", "--", *STORY], 1),
        ("sglang-passes.txt", ["sparse", "--gpu", "h200x8", "--engine", "sglang==0.5.9"], 0),
    ],
)
def test_the_text_people_read(
    name: str, words: list[str], code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ATTNFIT_WRITE_SNAPSHOTS=1 writes them anew; read the diff before you commit it."""
    found, text = run("check", *words, capsys=capsys, monkeypatch=monkeypatch)
    if os.environ.get("ATTNFIT_WRITE_SNAPSHOTS"):
        (SNAPSHOTS / name).write_text(text, "utf-8")
    assert text == (SNAPSHOTS / name).read_text("utf-8")
    assert found == code
    assert all(len(line) <= 80 or "sglang.launch_server" in line for line in text.splitlines())


def test_the_story_ends_in_triton_without_the_inert_flag_and_says_why_the_advised_backend_is_not_it() -> None:
    report = check(STORY, **SM120)
    launch = report.launch
    assert (report.verdict, launch.stage, launch.when) == ("refused", "backend-init", "after the weights have loaded")
    assert launch.error == f"AssertionError: {tiny.GDN}"
    assert launch.where == "sglang/srt/layers/attention/attention_registry.py:205"
    codes = {hazard.code: hazard for hazard in launch.hazards}
    assert set(codes) == {"default-refused", "bad-advice", "inert-flag"}
    assert "trtllm_mha" in codes["bad-advice"].text
    assert "triton passes" in codes["bad-advice"].text
    assert codes["inert-flag"].where == "sglang/srt/layers/communicator.py:95"
    first = report.steps[0]
    assert first.argv == (*STORY[:7], "--attention-backend", "triton")
    assert "instead of flashinfer" in first.text
    assert "--enable-flashinfer-allreduce-fusion" in first.text


def test_every_candidate_of_the_release_is_asked_as_the_users_launch_and_keeps_its_order(asker: tiny.Tiny) -> None:
    report = check(STORY, **SM120)
    (choice,) = report.launch.choices
    names = releases.entry("0.5.9").choices["attention_backend"].names
    assert tuple(verdict.backend for verdict in choice.verdicts) == names
    verdicts = {verdict.backend: verdict for verdict in choice.verdicts}
    assert verdicts["triton"].status is Status.ACCEPTS
    late = verdicts["flashmla"].reasons[0]
    assert (late.code, late.observed) == ("backend-init", "after the weights have loaded")
    early = verdicts["trtllm_mha"].reasons[0]
    assert (early.code, early.observed) == ("arg-resolve", "resolution")
    assert early.text == f"ValueError: {tiny.TRTLLM}"
    assert all("--enable-flashinfer-allreduce-fusion" in case["argv"] for case in asker.asked[: len(names)])


def test_a_model_in_a_container_keeps_the_path_that_the_server_is_given(asker: tiny.Tiny) -> None:
    command = "docker run lmsysorg/sglang:v0.5.9 python3 -m sglang.launch_server --model-path /models/x"
    report = check(command, gpu="h200", model="dense")
    assert (report.verdict, report.release) == ("passes", "0.5.9")
    assert asker.asked[0]["model"] == "/models/x"
    assert asker.asked[0]["config"]["model_type"] == "llama"


def test_no_launch_is_asked_twice(asker: tiny.Tiny) -> None:
    check(STORY, **SM120)
    argvs = [tuple(case["argv"]) for case in asker.asked]
    assert len(argvs) == len(set(argvs))


def test_candidates_cost_nothing_where_nobody_reads_them(asker: tiny.Tiny) -> None:
    check(STORY, **SM120, planned=False)
    assert len(asker.asked) == 1


def test_split_flags_are_replaced_by_one_base_flag_when_another_backend_is_asked(asker: tiny.Tiny) -> None:
    split = [*STORY[:7], "--prefill-attention-backend", "flashinfer", "--decode-attention-backend", "triton"]
    report = check(split, **SM120)
    assert report.launch.chosen[:2] == (("prefill", "flashinfer"), ("decode", "triton"))
    assert report.steps[0].argv == (*STORY[:7], "--attention-backend", "triton")
    wanted = [case["argv"] for case in asker.asked if "--attention-backend" in case["argv"]]
    assert all("--prefill-attention-backend" not in argv for argv in wanted)


def test_a_backend_that_nothing_checks_is_a_hole_and_not_a_reason() -> None:
    command = ["python", "-m", "sglang.launch_server", "--model-path", "dense", "--attention-backend", "flashmla"]
    launch = check(command, gpu="h200", engine="sglang==0.5.9").launch
    assert launch.error is not None
    assert launch.error.startswith("AttributeError")
    assert [hazard.code for hazard in launch.hazards] == ["no-gate"]


def test_a_default_that_is_refused_is_named_as_the_release_s_own() -> None:
    launch = check(STORY[:7], **SM120).launch
    (found,) = [hazard for hazard in launch.hazards if hazard.code == "default-refused"]
    assert "with no flag at all" in found.text
    assert "flashinfer" in found.text


@pytest.mark.parametrize(
    ("gpu", "unknown"),
    [("quadro-rtx-8000", True), ("a100-sxm4-80gb", True), ("h200", False), ("rtx-pro-6000-server", True)],
)
def test_sparse_attention_passes_the_gates_where_nothing_checks_its_kernel_and_that_is_said(
    gpu: str, unknown: bool
) -> None:
    report = check(model="sparse", gpu=gpu, count=8, engine="sglang==0.5.9")
    assert report.verdict == "passes"
    assert ("kernel-unknown" in [hazard.code for hazard in report.launch.hazards]) is unknown
    assert dict(report.launch.chosen)["sparse decode kernel"] == "fa3"
    assert [choice.flag for choice in report.launch.choices] == [
        "--attention-backend", "--nsa-prefill-backend", "--nsa-decode-backend",
    ]  # fmt: skip


def test_what_the_engine_changes_by_itself_is_shown_with_its_own_words() -> None:
    launch = check(model="sparse", gpu="h200", count=8, engine="sglang==0.5.9").launch
    page = next(change for change in launch.changes if change.field == "page_size")
    assert (page.given, page.resolved) == (None, 64)
    assert page.said == "Setting page size to 64 for DeepSeek DSA."


def test_an_error_that_no_line_of_the_release_raised_is_never_reported_as_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ours(self: tiny.Tiny, case: Case) -> Answer:
        return Answer(ok=False, stage="backend-init", error_type="KeyError", message="x", where=None)

    monkeypatch.setattr(tiny.Tiny, "ask", ours)
    report = check(STORY, **SM120)
    assert report.verdict == "unknown"
    assert "failed outside of it (KeyError: x)" in report.launch.unknown[0]


# ---- packages ---------------------------------------------------------------------------------------------------


def test_a_package_that_is_stated_to_be_absent_refuses_what_imports_it_and_says_which() -> None:
    command = ["python", "-m", "sglang.launch_server", "--model-path", "dense"]
    there = check(command, gpu="h200", engine="sglang==0.5.9")
    assert (there.verdict, dict(there.launch.chosen)["decode"]) == ("passes", "fa3")
    gone = check(command, gpu="h200", engine="sglang==0.5.9", env={"sgl_kernel": False})
    assert (gone.verdict, gone.launch.when) == ("refused", "after the weights have loaded")
    assert "sgl-kernel" in (gone.launch.error or "")
    assert gone.launch.where == "sglang/srt/layers/attention/flashattention_backend.py:25"


def test_a_kernel_package_that_is_absent_makes_it_unknown_and_one_nobody_spoke_of_is_named() -> None:
    command = [*STORY[:4], "dense", "--attention-backend", "tokenspeed_mla"]
    silent = check(command, gpu="b200", engine="sglang==0.5.23")
    assert silent.verdict == "passes"
    command[-1] = "fa4"
    assert check(command, gpu="b200", engine="sglang==0.5.10.post1", env={"flash_attn_4": False}).verdict == "unknown"
    command[-1] = "hpc_ops"
    (found,) = check(command, gpu="h200", engine="sglang==0.5.23").launch.hazards
    assert found.code == "needs-package"
    assert "--env hpc=yes" in found.text


def test_of_every_need_the_package_is_a_fact_of_the_release_and_the_line_is_known() -> None:
    for need in needs.table():
        assert need.fact in needs.PACKAGES
        for version, where in need.where.items():
            assert need.fact in needs.brought(releases.entry(version))
            path, _, line = where.rpartition(":")
            assert path.endswith(".py")
            assert line.isdecimal()


# ---- holes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "advised"),
    [
        (tiny.GDN, ["triton", "trtllm_mha"]),
        (tiny.GDN_LATER, ["triton", "trtllm_mha", "fa4"]),
        ("triton or trtllm_mha or fa4 backend are the only supported backends on Blackwell GPUs for hybrid GDN models",
         ["triton", "trtllm_mha", "fa4"]),
        (tiny.TRTLLM, []),
        (tiny.FA3, ["flashinfer"]),
        ("trtllm_mla backend can only be used with MLA models.", []),
        ("fa3, aiter, triton, trtllm_mha or intel_xpu is required for Llama4 model but got flashinfer",
         ["fa3", "aiter", "triton", "trtllm_mha", "intel_xpu"]),
        ("Only {'triton', 'trtllm_mha'} backends are supported on Blackwell GPUs for hybrid GDN models. "
         "Got prefill=fa4, decode=fa4.", ["triton", "trtllm_mha"]),
        ("--linear-attn-decode-backend flashinfer on SM100+ requires --mamba-ssm-dtype bfloat16, got None", []),
        ("NemotronHForCausalLM does not support triton attention backend,as the first layer might not be", []),
    ],
)  # fmt: skip
def test_only_what_a_message_recommends_is_taken_for_advice(message: str, advised: list[str]) -> None:
    names = releases.entry("0.5.9").choices["attention_backend"].names
    assert hazards.advice(message, names) == advised


def nvfp4(flags: list[str], quant: dict[str, Any] | None) -> tuple[Case, Answer]:
    case = Case(model="m", config={}, hf_quant=quant, files=None, capability="12.0", gpu_name="", gpu_mem_gb=80.0,
                gpus=1, argv=["--model-path", "m", *flags], variables={}, facts={})  # fmt: skip
    return case, Answer(ok=True, prefill="trtllm_mha", decode="trtllm_mha")


def test_an_fp8_cache_that_only_the_checkpoint_declares_walks_past_the_gate() -> None:
    declared = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}

    def found(version: str, flags: list[str], quant: dict[str, Any] | None) -> list[Hazard]:
        return list(hazards.recorded(version, *nvfp4(flags, quant)))

    assert [hazard.code for hazard in found("0.5.23", [], declared)] == ["kernel-unknown"]
    assert not found("0.5.23", ["--kv-cache-dtype", "bfloat16"], declared)
    assert not found("0.5.23", [], None)
    assert not found("0.5.9", [], declared)  # that release refuses trtllm_mha there


# ---- in bulk, between releases, sources -------------------------------------------------------------------------


def test_a_line_of_a_batch_answers_in_the_engine_s_own_words(asker: tiny.Tiny) -> None:
    lines = [
        {"engine": "sglang==0.5.9", "model": "Qwen3.5-397B-A17B-NVFP4", "capability": "12.0", "gpus": 8, "id": 7,
         "flags": ["--tp", "8"]},
        {"engine": "sglang==0.5.9", "model": "dense", "capability": "8.9", "gpus": 2, "gpu_name": "RTX 4090",
         "gpu_mem_gb": 24, "flags": []},
        {"engine": "sglang==0.5.9", "model": "dense", "capability": "8.9", "gpus": 0, "flags": []},
    ]  # fmt: skip
    refused, passes, wrong = batch.answers(json.dumps(line).encode() for line in lines)
    keys = ("ok", "stage", "message", "where", "prefill", "decode", "exit_code", "id")
    assert [refused[key] for key in keys] == [
        *(False, "backend-init", tiny.GDN, "srt/layers/attention/attention_registry.py:205"),
        *("flashinfer", "flashinfer", 1, 7),
    ]
    assert (passes["ok"], passes["exit_code"], passes["resolved"]["attention_backend"]) == (True, 0, "flashinfer")
    assert "gpus" in wrong["problem"]
    assert [(case["gpus"], case["gpu_mem_gb"], case["gpu_name"]) for case in asker.asked] == [
        (8, 96.0, ""), (2, 24.0, "RTX 4090"),
    ]  # fmt: skip


def test_two_releases_are_compared_by_what_they_choose_and_accept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["diff", "sglang", "0.5.9", "0.5.10.post1", "dense", "--gpu", "h200"]
    code, text = run(*words, capsys=capsys, monkeypatch=monkeypatch)
    assert code == 0
    assert "nothing else changes" in text
    _, text = run(*words[:2], "0.5.9", "0.5.23", *words[4:], capsys=capsys, monkeypatch=monkeypatch)
    assert "attention backend: dsa is new and accepts" in text
    assert "dual_chunk_flash_attn" in text.partition("are gone")[2]


def test_a_question_for_a_selector_is_no_question_for_sglang() -> None:
    (reply,) = batch.answers([json.dumps({"engine": "sglang==0.5.9", "question": {"head_size": 128}}).encode()])
    assert "give a launch" in reply["problem"]


def test_what_is_installed_where_the_command_runs_is_asked_and_its_packages_are_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None]] = []
    monkeypatch.setattr(answers, "choose", lambda version, source=None: asked.append((version, source)) or tiny.Tiny())
    site = tmp_path / "venv/lib/python3.12/site-packages"
    (site / "sglang/srt").mkdir(parents=True)
    for name in ("sglang-0.5.10.post1", "flashinfer_python-0.6.7", "sglang_kernel-0.4.1"):
        (site / f"{name}.dist-info").mkdir()
        (site / f"{name}.dist-info/METADATA").write_text(f"Name: {name}\nVersion: {name.partition('-')[2]}\n\n")
    python = f"{tmp_path}/venv/bin/python"
    report = check([python, "-m", "sglang.launch_server", "--model-path", "dense", "--attention-backend", "fa4"],
                   gpu="h200")  # fmt: skip
    assert asked[0] == ("0.5.10.post1", f"{tmp_path}/venv")
    assert (report.release, report.verdict) == ("0.5.10.post1", "unknown")
    assert "flash-attn-4" in report.launch.unknown[0]


def test_what_is_understood_of_a_model_is_what_the_release_s_own_config_says_of_it(
    asker: tiny.Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = describe("dense", engine="sglang==0.5.9", headers=False)
    assert silent.exit_code == 3
    assert "no model config came of it" in silent.traits.unknown[0]

    def said(self: tiny.Tiny, case: Case) -> Answer:
        return Answer(ok=True, traits={"architectures": ["LlamaForCausalLM"], "attention_arch": "MHA", "head_dim": 128})

    monkeypatch.setattr(tiny.Tiny, "ask", said)
    found = describe("dense", engine="sglang==0.5.10.post1", headers=False)
    named = {trait.name: trait.value for trait in found.traits.traits}
    assert (found.exit_code, named) == (0, {"architecture": "LlamaForCausalLM", "attention": "MHA", "head_size": 128})


def test_a_difference_says_what_is_missing_for_each_release() -> None:
    """ "nothing else changes" would hide that neither release could be asked."""
    from attnfit.core import Launch, Report
    from attnfit.report import difference

    def report(release: str, *unknown: str) -> Report:
        launch = Launch(ok=None, stage="unknown", unknown=unknown)
        return Report(
            verdict="unknown", launch=launch, engine="sglang", release=release, exact=True, model="m", gpus=()
        )

    text = difference.render(report("0.5.9", "no source files"), report("0.5.10.post1"))

    assert "unknown for 0.5.9: no source files" in text
    assert "nothing else changes" not in text


def dsa(backend: str, *flags: str) -> list[str]:
    config = {"architectures": ["GlmMoeDsaForCausalLM"], "index_topk": 2048}
    case = Case(model="m", config=config, hf_quant=None, files=None, capability="9.0", gpu_name="", gpu_mem_gb=80.0,
                gpus=1, argv=["--model-path", "m", *flags], variables={}, facts={})  # fmt: skip
    answer = Answer(ok=True, prefill=backend, decode=backend)
    return [hazard.code for hazard in hazards.recorded("0.5.23", case, answer)]


def test_sparse_attention_that_a_backend_leaves_out_is_said() -> None:
    """The indexer asks the backend for metadata; one that has none gets dense attention, and nothing refuses it."""
    assert dsa("triton") == dsa("flashinfer") == ["sparse-unused"]
    assert dsa("dsa") == []


def test_sparse_attention_in_float16_is_unknown() -> None:
    """The indexer's weights are bfloat16 whatever the dtype, and no check looks."""
    assert dsa("dsa", "--dtype", "float16") == ["kernel-unknown"]
    assert dsa("dsa", "--dtype", "bfloat16") == []


@pytest.mark.parametrize(
    ("capability", "serves", "dtype"),
    [("6.1", False, "float16"), ("7.0", False, "float16"), ("7.5", True, "float16"), ("8.0", True, "bfloat16")],
)
def test_below_8_0_it_runs_in_float16_and_below_7_5_not_at_all(capability: str, serves: bool, dtype: str) -> None:
    """Decided while the workers load the model, past every gate that is run for an answer."""
    passes: Answer = {"ok": True, "stage": None, "prefill": "flashinfer", "resolved": {"dtype": "bfloat16"}}
    late: Answer = {"ok": False, "stage": "backend-init", "message": "later", "where": None}
    early: Answer = {"ok": False, "stage": "arg-resolve", "message": "sooner", "where": None}
    case = Case(model="m", config={}, hf_quant=None, files=None, capability=capability, gpu_name="", gpu_mem_gb=32.0,
                gpus=1, argv=["--model-path", "m"], variables={}, facts={})  # fmt: skip
    for version in releases.known():
        found = legacy.on_legacy(version, case, passes)
        assert (found["ok"], found["resolved"]["dtype"]) == (serves, dtype)
        assert ("sm75" in str(legacy.on_legacy(version, case, late)["message"])) is not serves
        assert legacy.on_legacy(version, case, early) is early
