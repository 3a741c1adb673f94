"""`attnfit check` knows attnfit's own backend for vLLM: what it serves, where it is the way out, where it is not."""

from __future__ import annotations

import ast
import gzip
import json
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import attnfit
from attnfit import check, cli
from attnfit.core import Question, Report, Status, Verdict
from attnfit.engines import engine
from attnfit.engines.vllm import ours
from attnfit.engines.vllm.plugin import indexers, serves, settings
from attnfit.inputs import environment
from attnfit.inputs.command import parse_command
from attnfit.report.json import as_dict

ROOT = Path(__file__).parent.parent
SRC = Path(attnfit.__file__).parent
MODELS = {
    "glm": "zai-org__GLM-5", "v32": "deepseek-ai__DeepSeek-V3.2", "flash": "zai-org__GLM-5.3-Flash",
    "v4": "deepseek-ai__DeepSeek-V4-Flash", "dense": "deepseek-ai__DeepSeek-V3", "plain": "Qwen__Qwen3-8B",
}  # fmt: skip
NAMED = ("0.32.0", "0.33.0")
BACKEND, INDEXER = "--attention-backend TRITON_MLA_SPARSE", f"{settings.INDEXER}=1"


@pytest.fixture(autouse=True)
def _in_a_folder_of_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    configs = json.loads(gzip.decompress((ROOT / "tests" / "data" / "configs.json.gz").read_bytes()))
    for name, model in MODELS.items():
        write(name, configs[model]["config"])
    write("wide", {**configs[MODELS["glm"]]["config"], "index_topk": 8192})
    write("odd", {**configs[MODELS["glm"]]["config"], "kv_lora_rank": 256})


def write(name: str, config: dict[str, Any]) -> None:
    Path(name).mkdir()
    Path(name, "config.json").write_text(json.dumps(config), "utf-8")


def answer(command: str, gpu: str = "12.0", release: str = "0.33.0", there: bool | None = None) -> Report:
    env = None if there is None else {ours.FACT: there}
    return check(shlex.split(command), gpu=gpu, count=8, engine=f"vllm=={release}", env=env)


def mine(report: Report) -> Verdict:
    """Our backend's verdict on the model's sparse layers."""
    (found,) = [v for v in report.launch.layers[0].selection.verdicts if v.brought_by]
    return found


def offers(report: Report) -> list[str]:
    """The commands of the steps that install our backend."""
    return [shlex.join(step.argv or ()) for step in report.steps if step.kind == "plugin"]


def test_story_2_the_float16_that_no_backend_takes_is_served_by_ours() -> None:
    report = answer("vllm serve glm -tp 8 --dtype float16")
    assert (report.verdict, report.exit_code) == ("refused", 1)
    without, with_ours = report.steps
    assert (without.installs, without.argv) == ("", ("vllm", "serve", "glm", "-tp", "8"))
    assert with_ours.installs == "attnfit[vllm]"
    assert with_ours.text.startswith(
        "pip install 'attnfit[vllm]' where it runs, and --attention-backend TRITON_MLA_SPARSE"
    )
    assert "tried" in with_ours.gives_up, "it says that no GPU has run it"
    assert offers(report) == [f"vllm serve glm -tp 8 --dtype float16 {BACKEND}"]


@pytest.mark.parametrize("release", serves.RELEASES)
@pytest.mark.parametrize("gpu", ["8.0", "8.6", "8.9", "11.0", "12.0", "12.1"])
def test_what_is_offered_passes_where_it_is_installed(gpu: str, release: str) -> None:
    """Where a release has no kernels for the indexer either, ours is switched on in front of the command."""
    for dtype in ("float16", "bfloat16"):
        report = answer(f"vllm serve v32 -tp 8 --dtype {dtype}", gpu, release)
        if report.verdict == "passes":
            assert (gpu[:2], dtype) == ("12", "bfloat16")
            continue
        (command,) = offers(report)
        deep_gemm = gpu.startswith("12.") and release not in ("0.16.0", "0.23.0")
        assert command.startswith(INDEXER) is not deep_gemm
        assert f"--attention-backend {serves.NAME if release in NAMED else serves.CUSTOM}" in command
        after = answer(command, gpu, release, there=True)
        assert after.verdict == "passes", after.launch.error
        assert after.launch.layers[0].selection.chosen == mine(after).backend
        without = answer(command, gpu, release).verdict
        assert without == ("refused" if release in NAMED else "unknown"), "CUSTOM may be another plug-in's"


@pytest.mark.parametrize("release", ["0.12.0", "0.31.0", "0.33.1", "0.34.0"])
def test_a_release_the_plug_in_does_not_know_is_named_and_never_guessed(release: str) -> None:
    report = answer("vllm serve v32 -tp 8", "8.9", release, there=True)
    verdict = mine(report)
    assert verdict.status is Status.REFUSES
    assert [reason.code for reason in verdict.reasons] == ["release"]
    assert "knows vLLM 0.16.0" in verdict.reasons[0].text
    assert offers(report) == []
    assert any("not loaded" in note for note in report.launch.notes)
    named = answer(f"vllm serve v32 -tp 8 {BACKEND}", "8.9", release, there=True)
    assert named.verdict != "passes"


def test_a_build_of_a_known_release_is_that_release() -> None:
    assert ours.of("0.33.0+cu129", {ours.FACT: True}, {}).loaded
    assert not ours.of("0.33.0rc1", {ours.FACT: True}, {}).loaded


@pytest.mark.parametrize("release", serves.RELEASES)
def test_a_name_that_nothing_registers_is_refused_where_the_engine_refuses_it(release: str) -> None:
    by_name = answer(f"vllm serve v32 -tp 8 {BACKEND}", "9.0", release)
    assert by_name.launch.stage == "create_engine_config"
    assert "Unknown attention backend: 'TRITON_MLA_SPARSE'" in (by_name.launch.error or "")
    assert any("attnfit's own backend" in note for note in by_name.launch.notes)
    assert any(" ".join(step.argv or ()) == "vllm serve v32 -tp 8" for step in by_name.steps), "or without it"
    assert [step.installs for step in by_name.steps] == ["", "attnfit[vllm]"]


@pytest.mark.parametrize("release", serves.RELEASES)
@pytest.mark.parametrize("model", ["v32", "plain"])
def test_custom_may_be_another_plug_in_s_and_is_unknown_where_ours_is_not_there(release: str, model: str) -> None:
    report = answer(f"vllm serve {model} -tp 8 --attention-backend CUSTOM", "9.0", release)
    assert (report.verdict, report.launch.error) == ("unknown", None)
    assert any("registers as CUSTOM" in text for text in report.launch.unknown)
    offered = any("pip install 'attnfit[vllm]'" in note for note in report.launch.notes)
    assert offered == (model == "v32"), "for layers that ours could serve, how to have it"


def test_workers_that_do_not_see_the_settings_are_told_of() -> None:
    launch = f"{INDEXER} vllm serve glm -tp 8 --distributed-executor-backend {{}} {BACKEND}"
    assert any(settings.RAY in note for note in answer(launch.format("ray"), "8.0", there=True).launch.notes)
    assert not any(settings.RAY in note for note in answer(launch.format("mp"), "8.0", there=True).launch.notes)


def test_a_name_of_newer_releases_is_no_name_of_older_ones_even_where_it_is_installed() -> None:
    report = answer(f"vllm serve v32 -tp 8 {BACKEND}", "9.0", "0.30.0", there=True)
    assert report.launch.stage == "create_engine_config"
    assert any("--attention-backend CUSTOM" in note for note in report.launch.notes)


def test_custom_reaches_it_in_every_release_it_knows() -> None:
    for release in serves.RELEASES:
        report = answer("vllm serve v32 -tp 8 --attention-backend custom", "9.0", release, there=True)
        assert report.verdict == "passes", release
        assert report.launch.layers[0].selection.chosen == "CUSTOM"


@pytest.mark.parametrize(
    ("command", "gpu", "says"),
    [
        ("vllm serve wide -tp 8", "9.0", ["index_topk: 1 to 4096 required but got 8192"]),
        ("vllm serve odd -tp 8", "9.0", ["head_size not supported"]),
        ("vllm serve v32 -tp 8 --kv-cache-dtype fp8", "9.0", ["kv_cache_dtype not supported"]),
        ("vllm serve v32 -tp 8 --kv-cache-dtype fp8_e4m3", "12.0", ["kv_cache_dtype not supported"]),
        ("vllm serve v32 -tp 8", "7.5", ["compute capability not supported"]),
        ("vllm serve flash -tp 8 --kv-cache-dtype fp8_ds_mla", "12.0", ["head_size 576 for fp8_ds_mla"]),
        ("vllm serve glm -tp 8", "10.0", ["kv_cache_dtype not supported"]),  # GLM-5 on 10.x: auto becomes fp8_e4m3
        ("env VLLM_BATCH_INVARIANT=1 vllm serve v32 -tp 8", "9.0", ["batch invariance not supported"]),
        ("vllm serve dense -tp 8", "9.0", ["non-sparse not supported"]),
        ("vllm serve plain -tp 8", "9.0", ["non-MLA not supported", "non-sparse not supported"]),
    ],
)
def test_asked_for_by_name_it_refuses_as_the_engine_prints_it(command: str, gpu: str, says: list[str]) -> None:
    report = answer(f"{command} {BACKEND}", gpu, there=True)
    assert (report.verdict, report.launch.stage) == ("refused", "selector")
    error = report.launch.error or ""
    assert error.startswith("ValueError: Selected backend AttentionBackendEnum.TRITON_MLA_SPARSE is not valid")
    assert all(word in error for word in says), error
    for reason in mine(report).reasons:
        assert reason.text in error


@pytest.mark.parametrize("kv", ["auto", "bfloat16", "fp8_ds_mla"])
def test_the_caches_it_reads_are_measured_as_in_tree(kv: str) -> None:
    """The same latent rows in the same pages: bytes per token are those of a backend of the release."""
    ours_, theirs = (
        answer(f"vllm serve glm -tp 8 --kv-cache-dtype {kv} --attention-backend {name}", "9.0", there=True)
        for name in ("TRITON_MLA_SPARSE", "FLASHMLA_SPARSE")
    )
    assert (ours_.verdict, theirs.verdict) == ("passes", "passes")
    assert ours_.launch.block_size_after_load == theirs.launch.block_size_after_load == 64
    assert ours_.launch.fit is not None
    assert theirs.launch.fit is not None
    assert ours_.launch.fit.token_bytes == theirs.launch.fit.token_bytes


def test_the_cache_that_an_architecture_asks_for_can_be_given_back() -> None:
    report = answer(f"vllm serve glm -tp 8 {BACKEND}", "10.0", there=True)
    assert any("--kv-cache-dtype fp8_ds_mla" in " ".join(step.argv or ()) for step in report.steps)


@pytest.mark.parametrize("gpu", ["8.0", "8.6", "8.9", "11.0"])
def test_without_kernels_for_its_indexer_the_launch_is_refused_before_the_weights(gpu: str) -> None:
    report = answer(f"vllm serve glm -tp 8 {BACKEND}", gpu, there=True)
    assert (report.verdict, report.launch.stage) == ("refused", "model_init")
    assert "DeepGEMM, which has no kernels for compute capability" in (report.launch.error or "")
    assert [" ".join(step.argv or ()) for step in report.steps] == [f"{INDEXER} vllm serve glm -tp 8 {BACKEND}"]
    assert answer(f"{INDEXER} vllm serve glm -tp 8 {BACKEND}", gpu, there=True).verdict == "passes"
    assert answer(f"{settings.INDEXER}=0 vllm serve glm -tp 8 {BACKEND}", gpu, there=True).verdict == "refused"


@pytest.mark.parametrize("gpu", ["8.0", "8.9", "11.0"])
def test_a_model_with_an_indexer_of_its_own_is_not_served_there_and_the_answer_says_why(gpu: str) -> None:
    report = answer("vllm serve flash -tp 8", gpu)
    assert offers(report) == []
    assert mine(report).status is Status.REFUSES
    (reason,) = mine(report).reasons
    assert reason.code == "indexer"
    assert "attnfit's own indexer is for DeepseekV32ForCausalLM and GlmMoeDsaForCausalLM" in reason.text
    named = answer(f"{INDEXER} vllm serve flash -tp 8 {BACKEND}", gpu, there=True)
    assert (named.verdict, named.launch.stage) == ("refused", "model_init")


def test_a_model_without_rope_is_served_where_the_engine_s_indexer_runs() -> None:
    (command,) = offers(answer("vllm serve flash -tp 8 --kv-cache-dtype bfloat16"))
    assert answer(command, there=True).verdict == "passes"


def test_a_model_whose_indexer_keeps_a_bfloat16_weight_is_not_offered_in_float16() -> None:
    """It can be constructed, and would stop at the first batch."""
    report = answer("vllm serve flash -tp 8 --dtype float16")
    assert offers(report) == []
    assert "give --dtype bfloat16" in mine(report).reasons[0].text
    named = answer(f"vllm serve flash -tp 8 --dtype float16 {BACKEND}", there=True)
    assert (named.verdict, named.launch.stage) == ("refused", "model_init")


def test_the_indexer_does_not_serve_context_parallelism() -> None:
    report = answer(f"{INDEXER} vllm serve glm -tp 8 -dcp 2 {BACKEND}", "8.9", there=True)
    assert (
        report.launch.error == "NotImplementedError: attnfit's indexer does not serve decode_context_parallel_size > 1"
    )
    assert answer(f"vllm serve glm -tp 8 -dcp 2 {BACKEND}", "9.0", there=True).verdict == "passes"


@pytest.mark.parametrize("release", serves.RELEASES)
def test_ranks_whose_picks_no_release_merges_are_refused_before_the_weights(release: str) -> None:
    name = serves.NAME if release in NAMED else serves.CUSTOM
    command = f"vllm serve v32 -tp 8 --decode-context-parallel-size 8 --attention-backend {name}"
    report = answer(command, gpu="9.0", release=release, there=True)
    refused = "picks among the keys of its own rank only" in (report.launch.error or "")
    assert refused == (release in serves.NO_DCP), report.launch.error


def test_a_model_that_asks_no_selector_is_told_that_the_flag_does_nothing() -> None:
    report = answer(f"vllm serve v4 -tp 8 {BACKEND}", "9.0", there=True)
    assert report.launch.layers == ()
    assert any("TRITON_MLA_SPARSE does nothing" in note for note in report.launch.notes)


def test_a_sparse_model_it_was_not_written_for_is_unknown() -> None:
    config = json.loads(Path("glm", "config.json").read_text("utf-8"))
    write("other", {**config, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"})
    report = answer("vllm serve other -tp 8", "9.0")
    assert mine(report).status is Status.UNKNOWN
    named = answer(f"vllm serve other -tp 8 {BACKEND}", "9.0", there=True)
    assert named.verdict == "unknown"
    assert "was written for" in named.launch.unknown[0]


def test_where_the_engine_serves_the_model_ours_stands_in_the_list_and_changes_nothing() -> None:
    for there in (None, True):
        report = answer("vllm serve v32 -tp 8", "9.0", there=there)
        assert (report.verdict, report.steps) == ("passes", ())
        assert report.launch.layers[0].selection.chosen == "FLASH_ATTN_MLA_SPARSE"
        assert mine(report).status is Status.ACCEPTS
        assert mine(report).candidate is False
    for model in ("dense", "plain"):
        verdicts = answer(f"vllm serve {model} -tp 8", "9.0", there=True).launch.layers[0].selection.verdicts
        assert not any(verdict.brought_by for verdict in verdicts), "it is no candidate for them"


def test_by_itself_it_is_chosen_only_on_request_and_only_where_nothing_else_accepts() -> None:
    auto = f"{settings.AUTO}=1"
    float16 = "vllm serve glm -tp 8 --dtype float16"
    assert answer(float16, there=True).verdict == "refused"
    found = answer(f"{auto} {float16}", there=True)
    assert (found.verdict, found.launch.layers[0].selection.chosen) == ("passes", "TRITON_MLA_SPARSE")
    assert answer(f"{auto} {float16}").verdict == "refused", "it is not installed"
    other = answer(f"{auto} vllm serve glm -tp 8", there=True)
    assert other.launch.layers[0].selection.chosen == "FLASHINFER_MLA_SPARSE_SM120"
    refused = answer(f"{auto} vllm serve wide -tp 8 --dtype float16", there=True)
    assert (refused.launch.error or "").endswith(
        ", TRITON_MLA_SPARSE: [index_topk: 1 to 4096 required but got 8192]}."
    ), "last of those that were tried"
    dense = answer(f"{auto} vllm serve dense -tp 8 --dtype float16", "9.0", there=True)
    assert dense.verdict == "passes"
    assert dense.launch.layers[0].selection.chosen not in ours.NAMES


def test_plug_ins_that_the_environment_keeps_away_are_not_loaded() -> None:
    for allowed, loaded in (("other", False), ("", False), ("other,attnfit", True)):
        report = answer(f"env VLLM_PLUGINS={allowed} vllm serve v32 -tp 8 {BACKEND}", "9.0", there=True)
        assert (report.verdict == "passes") is loaded
        assert any("VLLM_PLUGINS" in note for note in report.launch.notes) is not loaded
        assert offers(report) == [], "installing it again does not help"
    names = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    assert ours.ENTRY_POINT in names["vllm.general_plugins"]


def test_the_draft_model_s_own_choice_is_changed_with_it() -> None:
    """Drafts ask for themselves, so ours is named twice; else the launch stops at the draft."""
    spec = '{"method":"mtp","num_speculative_tokens":1}'
    command = f"vllm serve v32 -tp 8 --dtype float16 --speculative-config '{spec}'"
    named = answer(f"{command} {BACKEND}", there=True)
    assert named.verdict == "refused"
    (step,) = [step for step in answer(command).steps if step.kind == "plugin"]
    assert step.argv is not None
    given = json.loads(step.argv[step.argv.index("--speculative-config") + 1])
    assert given["attention_backend"] == "TRITON_MLA_SPARSE"
    assert given["method"] == "mtp"


def test_programs_are_told_who_brings_it_and_what_to_install() -> None:
    shown = as_dict(answer("docker run vllm/vllm-openai:v0.33.0 glm -tp 8", "8.9"))
    (backend,) = [b for b in shown["launch"]["selector_configs"][0]["backends"] if b["brought_by"]]
    assert (backend["backend"], backend["status"], backend["brought_by"]) == (
        "TRITON_MLA_SPARSE", "accepts", "attnfit[vllm]",
    )  # fmt: skip
    (step,) = [step for step in shown["steps"] if step["kind"] == "plugin"]
    assert step["installs"] == "attnfit[vllm]"
    assert step["command"] is None, "what is installed in a container that is started so is gone with it"
    assert "an image of your own, made from vllm/vllm-openai:v0.33.0 with pip install 'attnfit[vllm]'" in step["text"]
    shown = as_dict(answer("env A=1 vllm serve glm -tp 8", "8.9"))
    (step,) = [step for step in shown["steps"] if step["kind"] == "plugin"]
    assert (step["installs"], step["command"][0]) == ("attnfit[vllm]", INDEXER)


def test_fix_prints_the_command_and_says_aside_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "attnfit check --gpu 8.9 -n 8 --engine vllm==0.33.0 --fix -- vllm serve glm -tp 8"
    monkeypatch.setattr(sys, "argv", words.split())
    with pytest.raises(SystemExit):
        cli.main()
    out, err = capsys.readouterr()
    assert out == f"{INDEXER} vllm serve glm -tp 8 {BACKEND}\n"
    assert err == "first, where it runs: pip install 'attnfit[vllm]'\n"
    assert answer(out.strip(), "8.9", there=True).verdict == "passes"


@pytest.mark.parametrize(
    ("beside", "entry", "there"),
    [
        (
            ("attnfit", "torch", "triton"),
            "[vllm.general_plugins]\nattnfit = attnfit.engines.vllm.plugin:register\n",
            True,
        ),
        (("attnfit", "torch"), "[vllm.general_plugins]\nattnfit = attnfit.engines.vllm.plugin:register\n", False),
        (("attnfit", "torch", "triton"), "[console_scripts]\nattnfit = attnfit.cli:main\n", False),
        (("torch", "triton"), "", False),
    ],
)
def test_whether_it_is_installed_is_read_where_the_command_would_run(
    beside: tuple[str, ...], entry: str, there: bool, tmp_path: Path
) -> None:
    site = tmp_path / "venv" / "lib" / "python3.12" / "site-packages"
    for name in ("vllm-0.33.0", *(f"{name}-1.2" for name in beside)):
        (site / f"{name}.dist-info").mkdir(parents=True)
    if entry:
        (site / "attnfit-1.2.dist-info" / "entry_points.txt").write_text(entry, "utf-8")
    command = f"{tmp_path}/venv/bin/vllm serve v32 -tp 8 {BACKEND}"
    found = environment.installed(parse_command(command))
    assert found is not None
    assert environment.env_facts(found).get(ours.FACT, False) is there
    report = check(command, gpu="9.0", count=8)
    assert (report.verdict == "passes") is there


def test_the_capabilities_said_are_those_the_kernels_have() -> None:
    """Read from the kernels' source: their module needs torch."""
    tree = ast.parse((SRC / "kernels" / "mla" / "configs.py").read_text("utf-8"))
    (table,) = [
        node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_NATIVE"
    ]
    assert isinstance(table, ast.Dict)
    assert tuple(ast.literal_eval(key) for key in table.keys if key is not None) == serves.CAPABILITIES
    assert all(release in indexers._FAMILIES for release in serves.RELEASES)
    assert set(serves.NAMED) == set(NAMED)


def test_a_question_is_refused_for_everything_it_asks_that_ours_has_not() -> None:
    asked = ["use_mm_prefix", "has_sink", "has_sliding_window", "use_pcp", "use_rswa", "use_non_causal", "attn_type"]
    base = {"capability": attnfit.core.Capability(9, 0), "head_size": 576, "dtype": "bfloat16"}
    mla = {"use_mla": True, "use_sparse": True}
    plugin = ours.of("0.33.0", {ours.FACT: True}, {})
    assert ours.verdict(Question(**base, **mla), plugin, asked).status is Status.ACCEPTS
    for field in asked:
        value = "encoder_only" if field == "attn_type" else True
        question = Question(**base, **mla, **{field: value})
        assert ours.verdict(question, plugin, asked).status is Status.REFUSES, field
        assert ours.verdict(question, plugin, []).status is Status.ACCEPTS, (
            "a release that does not ask does not refuse"
        )


def test_the_backends_of_a_release_include_ours_by_the_name_that_reaches_it() -> None:
    for version in engine("vllm").releases():
        listed = dict(engine("vllm").release(version).backends())
        mine = [name for name, where in listed.items() if where.startswith("attnfit.")]
        assert mine == (
            [serves.NAME if version in serves.NAMED else serves.CUSTOM] if version in serves.RELEASES else []
        )
