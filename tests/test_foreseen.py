"""Hazards past the gates: what breaks is said, what is not known is named, and what works is left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnfit
from attnfit.api import check
from attnfit.core import Hazard, Report
from attnfit.engines.sglang import compact
from attnfit.engines.sglang.hazards import _PREDICATES
from attnfit.engines.sglang.hazards import table as sglang_table
from attnfit.engines.vllm.flags.table import known_releases, load_table
from attnfit.engines.vllm.foreseen import WHEN
from attnfit.engines.vllm.foreseen.variables import EARLIER, INSTEAD, table, unread
from attnfit.gpus import ptxas
from attnfit.hazards import catalogue, find
from attnfit.hazards.words import remedy_line
from attnfit.report.text import render, verdict_line
from foreseen_cases import CASES, ask, models

SRC = Path(attnfit.__file__).parent
OFFLINE = [c for c in CASES["asked"] if c["engine"] == "vllm" or c["release"] in compact.releases()]
NOT_FORESEEN = 8  # of those, counted once and for all: docs/hazards.md lists each


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return models(tmp_path_factory.mktemp("foreseen"))


def test_what_public_reports_describe_is_foreseen_from_their_inputs(at: dict[str, str]) -> None:
    """At least four of five, for what they are about; none is answered with an error of ours."""
    found = {case["id"]: (ask(case, at), case["kind"]) for case in OFFLINE}
    assert {id: answer for id, (answer, _) in found.items() if answer.verdict.startswith("not answered")} == {}
    missed = [id for id, (answer, kind) in found.items() if not answer.of(kind)]
    assert len(missed) <= NOT_FORESEEN
    assert len(missed) <= 0.2 * len(OFFLINE)


def test_every_report_is_asked_or_says_why_not() -> None:
    asked = {case["id"] for case in CASES["asked"]}
    assert not asked & CASES["left_out"].keys()
    assert all(why for _, why in CASES["left_out"].values())


def launch(model: str, gpu: str, release: str, words: str = "", **more: Any) -> Report:
    return check(f"{words} vllm serve {model}".strip(), gpu=gpu, engine=f"vllm=={release}", planned=False, **more)


def hazards(report: Report) -> dict[str, Hazard]:
    return {hazard.code: hazard for hazard in report.launch.hazards}


def test_a_hazard_that_is_certain_makes_the_launch_break_and_says_what_to_do(at: dict[str, str]) -> None:
    report = check(
        f"vllm serve {at['deepseek-ai__DeepSeek-V4-Flash']} -tp 8", gpu="8.0x8", engine="vllm==0.28.0", count=None
    )
    record = find("AF104")
    hazard = hazards(report)["AF104"]
    assert (report.launch.ok, report.verdict, report.exit_code) == (True, "breaks", 1)
    assert (hazard.strength, hazard.kind, hazard.stage) == ("breaks", record.kind, record.stage)
    assert hazard.text.startswith(record.title)
    assert {*hazard.remedies} <= {remedy_line(remedy) for remedy in record.remedies}
    assert not any("--kv-cache-dtype" in remedy for remedy in hazard.remedies)  # its cache is FP8 whatever is asked
    said, instead = [step.text for step in report.steps[:-1]], report.steps[-1]
    assert said == list(hazard.remedies[: len(said)])
    assert (instead.kind, instead.engine) == ("engine", "sglang")
    assert instead.doubts, "and that is not sure either"
    assert "breaks at warmup" in render(report)
    assert "(AF104)" in verdict_line(report)


@pytest.mark.parametrize("gpu", ["9.0x8", "10.0x8", "12.0x8"])
def test_the_same_model_is_left_alone_where_it_is_made_for(at: dict[str, str], gpu: str) -> None:
    report = check(f"vllm serve {at['deepseek-ai__DeepSeek-V4-Flash']} -tp 8", gpu=gpu, engine="vllm==0.33.0")
    assert report.verdict == "passes"
    assert not {"AF104", "AF112"} & hazards(report).keys()


@pytest.mark.parametrize(("release", "met"), [("0.23.0", True), ("0.24.0", False)])
def test_kernels_that_came_with_a_later_release_are_missed_in_the_one_before(
    at: dict[str, str], release: str, met: bool
) -> None:
    report = launch(f"{at['deepseek-ai__DeepSeek-V4-Flash']} -tp 8", "rtx-pro-6000x8", release)
    assert report.launch.ok
    assert ("AF112" in hazards(report)) == met


def test_a_hazard_that_only_may_strike_names_what_would_make_it_sure(at: dict[str, str]) -> None:
    report = launch(at["Qwen__Qwen3-8B"], "gb10", "0.13.0")
    hazard = hazards(report)["AF102"]
    assert (report.verdict, report.exit_code, report.may_break) == ("passes", 0, True)
    assert "TRITON_PTXAS_PATH" in hazard.needs
    text = " ".join(render(report).split())
    assert "may break at warmup" in text
    assert "not known here: whether TRITON_PTXAS_PATH" in text


def test_what_it_needed_being_said_it_is_gone(at: dict[str, str]) -> None:
    model = at["Qwen__Qwen3-8B"]
    assert "AF102" not in hazards(launch(model, "gb10", "0.13.0", "TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas"))
    assert "AF102" not in hazards(launch(model, "gb10", "0.20.2"))  # its Triton brings a newer ptxas
    assert "AF102" in hazards(launch(model, "11.0", "0.20.2"))  # which still does not know this one
    assert "AF102" not in hazards(launch(model, "rtx-pro-6000", "0.13.0"))


def test_the_indexer_of_a_release_without_deepgemm_is_asked_about(at: dict[str, str]) -> None:
    words = f"{at['deepseek-ai__DeepSeek-V3.2']} -tp 8"
    assert hazards(launch(words, "h200x8", "0.16.0"))["AF224"].may_break
    assert "AF224" not in hazards(launch(words, "h200x8", "0.16.0", env={"deep_gemm": True}))
    assert "AF224" not in hazards(launch(words, "h200x8", "0.33.0"))


@pytest.mark.parametrize(("gpu", "release", "words", "verdict"), [
    ("a100-80g", "0.16.0", "--kv-cache-dtype fp8", "breaks"), ("3090", "0.23.0", "--kv-cache-dtype fp8_e4m3", "breaks"),
    ("a100-80g", "0.28.0", "--kv-cache-dtype fp8", "refused"), ("a100-80g", "0.16.0", "", "passes"),
    ("l40s", "0.16.0", "--kv-cache-dtype fp8", "passes"),
])  # fmt: skip
def test_an_fp8_cache_in_a_triton_kernel_needs_a_gpu_that_has_the_format(
    at: dict[str, str], gpu: str, release: str, words: str, verdict: str
) -> None:
    """gpt-oss is served by TRITON_ATTN there; from 0.24.0 on the engine refuses it by itself."""
    report = launch(f"{at['openai__gpt-oss-20b']} {words}", gpu, release)
    assert report.verdict == verdict
    assert ("AF104" in hazards(report)) == (verdict == "breaks")


@pytest.mark.parametrize(("dcp", "strength"), [(2, "breaks"), (1, None)])
def test_context_parallel_ranks_need_a_backend_that_returns_the_sums(
    at: dict[str, str], dcp: int, strength: str | None
) -> None:
    words = f"{at['deepseek-ai__DeepSeek-V3.2']} -tp 8 -dcp {dcp}"
    found = hazards(launch(words, "rtx-pro-6000x8", "0.26.0")).get("AF207")
    assert (found.strength if found else None) == strength


@pytest.mark.parametrize(("gpu", "release", "words", "strength"), [
    ("a100-80g", "0.33.0", "--mm-encoder-attn-backend TRITON_ATTN", None),
    ("a100-80g", "0.33.0", "--mm-encoder-attn-backend FLEX_ATTENTION", "may break"),
    ("a100-80g", "0.16.0", "--mm-encoder-attn-backend TRITON_ATTN", "may break"),
    ("a100-80g", "0.16.0", "--mm-encoder-attn-backend TORCH_SDPA", None),
    ("t4", "0.33.0", "--dtype half --mm-encoder-attn-backend FLASH_ATTN", "may break"),
    ("t4", "0.33.0", "--dtype half --mm-encoder-attn-backend FLASH_ATTN --language-model-only", None),
])  # fmt: skip
def test_the_vision_encoder_takes_the_backend_asked_for_unseen(
    at: dict[str, str], gpu: str, release: str, words: str, strength: str | None
) -> None:
    report = launch(f"{at['Qwen__Qwen2.5-VL-7B-Instruct']} -tp 4 {words}", f"{gpu}x4", release)
    assert report.verdict == "passes"
    found = hazards(report).get("AF229")
    assert (found.strength if found else None) == strength
    if strength:  # and the planner goes round it
        command = ["vllm", "serve", at["Qwen__Qwen2.5-VL-7B-Instruct"], "-tp", "4", *words.split()]
        steps = check(command, gpu=f"{gpu}x4", engine=f"vllm=={release}").steps
        assert any(step.text.startswith("drop --mm-encoder-attn-backend") for step in steps)


def test_the_remedy_comes_as_the_user_s_own_command(at: dict[str, str]) -> None:
    model = at["deepseek-ai__DeepSeek-V3.2"]
    command = ["vllm", "serve", model, "-tp", "8", "-dcp", "2", "--port", "8001"]
    report = check(command, gpu="rtx-pro-6000x8", engine="vllm==0.26.0")
    assert report.verdict == "breaks"
    (step, *_) = report.steps
    assert step.argv == ("vllm", "serve", model, "-tp", "8", "-dcp", "1", "--port", "8001")
    assert check(step.argv, gpu="rtx-pro-6000x8", engine="vllm==0.26.0").verdict != "breaks"


def test_more_requests_than_there_are_states_for(tmp_path: Path) -> None:
    """With the message that the engine raises, and the number that fits as the way out."""
    import gzip

    known = json.loads(gzip.decompress((Path(__file__).parent / "data/configs.json.gz").read_bytes()))
    (tmp_path / "config.json").write_text(json.dumps(known["Qwen__Qwen3.5-35B-A3B"]["config"]))
    command = f"vllm serve {tmp_path} --max-model-len 4096 --max-num-seqs 4096"
    report = check(command, gpu="h100", engine="vllm==0.33.0")
    fit = report.launch.fit
    assert fit is not None
    assert fit.sequences is not None
    assert "exceeds the Mamba cache blocks" in fit.why
    assert report.may_break or report.verdict == "breaks"
    eager = check(f"{command} --enforce-eager", gpu="h100", engine="vllm==0.33.0").launch.fit
    assert eager is not None
    assert eager.sequences is None  # the check is made for whole CUDA graphs only


@pytest.mark.parametrize(("driver", "release", "met"), [
    ("570.86.15", "0.33.0", True), ("580.65.06", "0.33.0", False), ("570.86.15", "0.16.0", False),
    ("515.43.04", "0.16.0", True),
])  # fmt: skip
def test_the_machine_s_own_driver_is_held_against_the_cuda_of_the_release(
    at: dict[str, str], monkeypatch: pytest.MonkeyPatch, driver: str, release: str, met: bool
) -> None:
    """With --gpu auto only: of another machine the driver is not known."""
    import test_doctor
    from attnfit.inputs import nvml

    fake = type("Nvml", (test_doctor.Nvml,), {"nvmlSystemGetDriverVersion": staticmethod(lambda: driver)})
    monkeypatch.setattr(nvml, "library", lambda: fake)
    report = launch(at["Qwen__Qwen3-8B"], "auto", release)
    assert ("AF117" in hazards(report)) == met
    assert report.verdict == "passes"


@pytest.mark.parametrize("release", ["0.16.0", "0.33.0"])
def test_flashinfer_without_a_compiler_is_asked_about(at: dict[str, str], release: str) -> None:
    words = f"{at['Qwen__Qwen3-8B']} --attention-backend FLASHINFER"
    hazard = hazards(launch(words, "b200", release, env={"ninja": False}))["AF107"]
    assert hazard.may_break
    assert "FLASHINFER was chosen, and there is no ninja" in hazard.text
    assert "AF107" not in hazards(launch(words, "b200", release))
    assert "AF107" not in hazards(launch(at["Qwen__Qwen3-8B"], "h100", release, env={"ninja": False}))


def test_a_fusion_that_the_gpu_has_no_kernel_for_is_said_to_do_nothing(at: dict[str, str]) -> None:
    words = f"{at['Qwen__Qwen3-8B']} -tp 2 -cc.pass_config.fuse_allreduce_rms=True"
    hazard = hazards(launch(words, "rtx-pro-6000x2", "0.33.0"))["inert-flag"]
    assert (hazard.flag, hazard.strength) == ("fuse_allreduce_rms", "")
    assert "inert-flag" not in hazards(launch(words, "h100x2", "0.33.0"))


def test_a_variable_that_the_release_does_not_read_does_nothing(at: dict[str, str]) -> None:
    report = launch(at["Qwen__Qwen3-8B"], "h100", "0.33.0", "VLLM_FLASH_ATTN_VERSION=3 VLLM_USE_DEEP_GEM=1")
    found = {hazard.flag: hazard for hazard in report.launch.hazards if hazard.code == "unread-variable"}
    assert "0.14.1 was the last to, say --attention-config.flash_attn_version" in found["VLLM_FLASH_ATTN_VERSION"].text
    assert "did you mean 'VLLM_USE_DEEP_GEMM'" in found["VLLM_USE_DEEP_GEM"].text
    assert (report.verdict, report.may_break) == ("passes", False)
    kept = launch(at["Qwen__Qwen3-8B"], "h100", "0.14.1", "VLLM_FLASH_ATTN_VERSION=3")
    assert not [hazard for hazard in kept.launch.hazards if hazard.code == "unread-variable"]


@pytest.mark.parametrize("name", EARLIER)
def test_a_variable_of_older_releases_is_said_to_be_gone_and_no_other_is_offered(at: dict[str, str], name: str) -> None:
    assert name not in table().variables
    (said,) = unread("0.33.0", {name: "1"})
    assert "releases before 0.12.0 did" in said.text
    assert "did you mean" not in said.text


@pytest.mark.parametrize("name", ["VLLM_MODEL", "VLLM_USE_CUDA", "VLLM_SPMD", "VLLM_XLA_USE_SPM", "VLLM_ROCM_USE_AITE"])
def test_a_variable_is_offered_only_where_an_nvidia_user_can_mean_it(name: str) -> None:
    (said,) = unread("0.33.0", {name: "1"})
    assert "did you mean" not in said.text


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(table().variables)), st.integers(6, 60))
def test_a_letter_left_out_of_a_variable_is_found_again_but_for_other_hardware(name: str, at: int) -> None:
    if len(name) < 20 or at >= len(name) or "0.33.0" not in _within(name):
        return
    found = list(unread("0.33.0", {name[:at] + name[at + 1 :]: "1"}))
    if found and set(name.split("_")) & {"TPU", "XLA", "ROCM", "AITER", "CPU", "XPU"}:
        assert repr(name) not in found[0].text
    elif found and "no such variable, nor" in found[0].text:
        assert "did you mean 'VLLM_" in found[0].text


def test_what_took_a_variable_s_place_is_a_flag_of_the_releases_after_it() -> None:
    for name, words in INSTEAD.items():
        flag = words.split()[0].partition(".")[0]
        gone = [r for r in known_releases() if r not in _within(name)]
        assert gone, name
        assert all(flag in _options(release) for release in gone if release > "0.23"), name


def _within(name: str) -> list[str]:
    releases = table().releases
    first, last = (releases.index(release) for release in table().variables[name])
    return releases[first : last + 1]


def _options(release: str) -> set[str]:
    return {option for flag in load_table(release).flags for option in flag.options}


def test_records_and_predicates_name_each_other() -> None:
    named = [name for record in catalogue().records for name in record.when]
    sglang = {record.when for record in sglang_table() if record.record}
    assert sorted(named) == sorted([*WHEN, *sglang])
    assert {record.when for record in sglang_table()} == {*_PREDICATES}
    for record in sglang_table():
        assert not record.record or record.when in find(record.record).when


def test_every_torch_that_a_release_brings_has_a_triton_whose_ptxas_is_known() -> None:
    brings = json.loads((SRC / "engines/vllm/foreseen/brings.json").read_text())["releases"]
    assert set(known_releases()) <= brings.keys()
    assert all(ptxas.of_torch(pins["torch"]) for pins in brings.values())
