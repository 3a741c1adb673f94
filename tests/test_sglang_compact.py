"""The compact form of a release answers without network and without SGLang, and says *unknown* where it was not run."""

from __future__ import annotations

import copy
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attnfit import cli
from attnfit.engines.sglang import answers, compact, hazards, needs, releases
from attnfit.engines.sglang.answers import Answer, Case
from attnfit.engines.sglang.compact import command
from attnfit.engines.sglang.compact.command import Flag

DATA = Path(__file__).parent / "data"
STORY = ["--tp", "8", "--attention-backend", "flashinfer", "--enable-flashinfer-allreduce-fusion"]
HYBRID = "nvidia__Qwen3.5-397B-A17B-NVFP4"
GDN = (
    "triton or trtllm_mha backend are the only supported backends on Blackwell GPUs for hybrid GDN models, "
    "use --attention-backend triton or --attention-backend trtllm_mha to specify the backend."
)


def known(name: str) -> dict[str, Any]:
    with gzip.open(DATA / "configs.json.gz") as packed:
        found: dict[str, Any] = json.load(packed)[name]
    return found


def case(name: str = HYBRID, *flags: str, version: str = "0.5.9", **other: Any) -> Case:
    model = known(name)
    path = f"/models/{name}"
    plain = Case(
        model=path,
        config=model["config"],
        hf_quant=model.get("hf_quant"),
        files=None,
        capability="12.0",
        gpu_name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        gpu_mem_gb=96.0,
        gpus=8,
        argv=["--model-path", path, *flags],
        variables={},
        facts=needs.brought(releases.entry(version)),
    )
    return Case(**{**plain, **other})  # type: ignore[typeddict-item]


def asked(name: str = HYBRID, *flags: str, version: str = "0.5.9", **other: Any) -> Answer:
    return compact.answer(case(name, *flags, version=version, **other), version)


def why(answer: Answer) -> str:
    assert answer["ok"] is None
    (text,) = answer["unknown"]
    return text


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without a network and with nothing cached; the story's model lies in the working directory."""
    folder = tmp_path / "Qwen3.5-397B-A17B-NVFP4"
    folder.mkdir()
    model = known(HYBRID)
    (folder / "config.json").write_text(json.dumps(model["config"]))
    (folder / "hf_quant_config.json").write_text(json.dumps(model["hf_quant"]))
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "ATTNFIT_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    monkeypatch.setenv("ATTNFIT_OFFLINE", "1")
    for name in ("NO_COLOR", "TERM", "ATTNFIT_GPU", "ATTNFIT_ENGINE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    answers.choose.cache_clear()
    return folder


def test_the_first_story_is_answered_out_of_the_box(
    alone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--gpu", "rtx-pro-6000-server", "-n", "8", "--engine", "sglang==0.5.9", "--json", "--", "python", "-m",
             "sglang.launch_server", "--model-path", f"./{alone.name}", *STORY]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["attnfit", "check", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = json.loads(capsys.readouterr().out)
    assert ended.value.code == 1
    reply = printed["launch"]["reply"]
    assert (reply["ok"], reply["stage"], reply["error_type"]) == (False, "backend-init", "AssertionError")
    assert reply["message"] == GDN
    assert reply["where"] == "srt/layers/attention/attention_registry.py:205"
    verdicts = {each["backend"]: each["status"] for each in printed["launch"]["choices"][0]["values"]}
    unknown = {name for name, status in verdicts.items() if status == "unknown"}
    assert unknown <= hazards.FOREIGN, "every candidate of this platform is answered by the form too"
    assert (verdicts["triton"], verdicts["trtllm_mha"]) == ("accepts", "refuses")


@pytest.mark.parametrize("version", compact.releases())
def test_the_shipped_releases_are_known_and_say_where_they_come_from(version: str) -> None:
    form = compact.load(version)
    assert version in releases.known()
    assert form.release == version
    assert {"from", "how", "when", "models"} <= form.made.keys()
    assert form.facts == needs.brought(releases.entry(version))


def test_the_first_covered_and_the_newest_release_are_shipped() -> None:
    assert {"0.5.9", releases.known()[-1]} == set(compact.releases())
    assert releases.known()[-1] == "0.5.23"


@pytest.mark.parametrize("version", compact.releases())
def test_every_number_in_a_form_names_something(version: str) -> None:
    form = compact.load(version)
    assert all(0 <= model.group < len(form.grid) for model in form.models.values())
    assert all(-1 <= row < len(form.rows) for line in form.grid for row in line)
    assert all(-1 <= outcome < len(form.outcomes) for row in form.rows for outcome in row)
    assert all(len(row) <= len(form.profiles) for row in form.rows)
    for outcome in form.outcomes:
        assert len(form.verdicts[outcome.verdict]) == len(compact.VERDICT)
        assert outcome.changed < len(form.changed)
        assert outcome.traits < len(form.traits)
        assert all(0 <= number < len(form.warnings) for number in outcome.warnings)


def test_a_launch_is_answered_the_same_however_it_is_spelt() -> None:
    plain = asked(HYBRID, "--tp-size", "8", "--attention-backend", "triton")
    assert plain["ok"] is True
    for words in (
        ["--attention-backend=triton", "--tp", "8"],
        ["--attention-b", "triton", "--tensor-parallel-size=4"],
        ["--tp", "8", "--attention-backend", "flashinfer", "--attention-backend", "triton", "--host", "0.0.0.0"],
    ):
        assert asked(HYBRID, *words) == plain


def test_the_same_question_twice_gives_the_same_answer() -> None:
    first = json.dumps(asked(HYBRID, *STORY), sort_keys=True)
    compact.load.cache_clear()
    assert json.dumps(asked(HYBRID, *STORY), sort_keys=True) == first


def test_a_model_is_known_by_what_its_config_says_and_by_nothing_else() -> None:
    config = known(HYBRID)["config"]
    renamed = {**config, "_name_or_path": "somebody/else", "transformers_version": "9.9"}
    assert asked(HYBRID, config=renamed) == asked(HYBRID)
    other = copy.deepcopy(config)
    other["text_config"]["num_hidden_layers"] += 1
    assert "this model" in why(asked(HYBRID, config=other))
    assert "this model" in why(asked(HYBRID, hf_quant=None))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--context-length", "4096"], "--context-length"),
        (["--no-such-flag"], "--no-such-flag"),
        (["--attention-backend", "nonsense"], "nonsense"),
        (["--page-size", "3"], "--page-size 3"),
        (["--attention", "triton"], "--attention"),  # the beginning of several
        (["--host"], "--host"),
        (["--port", "no"], "--port no"),
        (["stray"], "stray"),
        (["--tp", "3"], "--tp 3"),
        (["--kv-cache-dtype", "fp8_e5m2", "--page-size", "128"], "--kv-cache-dtype fp8_e5m2 --page-size 128"),
    ],
)
def test_what_was_not_run_is_unknown_and_named(words: list[str], said: str) -> None:
    assert said in why(asked(HYBRID, *words))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"variables": {"SGLANG_ENABLE_SPEC_V2": "1"}}, "SGLANG_ENABLE_SPEC_V2"),
        ({"facts": {"flashinfer": False}}, "flashinfer=no"),
        ({"capability": "13.0"}, "13.0"),
        ({"gpu_mem_gb": 4.0}, "4 GiB"),
        ({"files": ["config.json", "adapter_config.json"]}, "adapter_config.json"),
        ({"argv": []}, "names no model"),
    ],
)
def test_surroundings_that_were_not_run_are_unknown_and_named(other: dict[str, Any], said: str) -> None:
    assert said in why(asked(HYBRID, **other))


def test_a_path_the_release_looks_into_is_unknown() -> None:
    for path in ("/models/mistral-large-3", "dummy"):
        assert "path" in why(asked(HYBRID, model=path, argv=["--model-path", path]))


def test_a_flag_that_only_decides_itself_takes_its_own_field_out_of_the_answer() -> None:
    field = "enable_flashinfer_allreduce_fusion"
    plain, given = (
        asked(HYBRID, "--attention-backend", "triton"),
        asked(HYBRID, "--attention-backend", "triton", STORY[-1]),
    )
    assert field in plain["resolved"]
    assert field not in given["resolved"]
    assert given["prefill"] == plain["prefill"]


def test_what_a_gpu_s_name_decides_is_not_given_for_that_gpu() -> None:
    field = "enable_flashinfer_allreduce_fusion"  # 0.5.9 turns it on by itself on SM90, but not on an H20
    hopper = {"capability": "9.0", "gpu_mem_gb": 141.0}
    assert field in asked(HYBRID, **hopper, gpu_name="NVIDIA H200")["resolved"]
    assert field not in asked(HYBRID, **hopper, gpu_name="NVIDIA H20")["resolved"]


def test_the_words_of_a_command_are_read_as_argparse_reads_them() -> None:
    options = {"--page-size": "page_size", "--page-first": "first", "--port": "port", "-h": "help"}
    flags = {"page_size": Flag("profile", "list", [1, 64]), "port": Flag("inert", "whole", [1, 9])}
    assert command.read(options, flags, ["--page-s=64", "--port", "5"]).profile == (("page_size", 64),)
    for words, odd in (
        (["--page", "1"], "--page"),
        (["-h"], "-h"),
        (["--port", "-5"], "--port"),
        (["--port=10"], "--port"),
    ):
        assert command.read(options, flags, words).odd.startswith(odd)


def test_a_form_that_is_not_whole_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0.0.1.json").write_text('{"release": "0.0.1"}')
    monkeypatch.setattr(compact, "FOLDER", tmp_path)
    with pytest.raises(msgspec.ValidationError):
        compact.load("0.0.1")


def test_answering_imports_nothing_heavy_and_no_builder() -> None:
    code = (
        "import sys, attnfit.engines.sglang.compact as form; form.load('0.5.9');"
        "print([name for name in sys.modules if name.partition('.')[0] in ('torch', 'sglang', 'multiprocessing')"
        " or '.sglang.learn' in name or '.witness' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
