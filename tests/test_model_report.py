"""`attnfit model`: what is understood of a model, and which key or file says so."""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from safetensors.numpy import save_file

import attnfit
from attnfit.core import Capability, Model
from attnfit.engines.traits import Traits
from attnfit.engines.vllm.launch.state import Unknown
from attnfit.engines.vllm.launch.traits import traits
from attnfit.engines.vllm.launch.weight_dtype import dtype_of_weights
from attnfit.report.model import render, render_json
from attnfit.understand import ModelReport, describe
from gguf_bytes import Builder
from hub_server import COMMIT, Hub

ROOT = Path(__file__).parent.parent
SNAPSHOTS = Path(__file__).parent / "snapshots"
CONFIGS: dict[str, dict[str, Any]] = json.loads(
    gzip.decompress((Path(__file__).parent / "data" / "configs.json.gz").read_bytes())
)
RELEASE = "vllm==0.33.0"
HYBRID = "nvidia__Qwen3.5-397B-A17B-NVFP4"


def read(name: str, config: dict[str, Any] | None = None) -> Traits:
    files = CONFIGS[name]
    model = Model(path=name, config=files["config"] if config is None else config, hf_quant=files["hf_quant"])
    return traits(model, "0.33.0")


def values(found: Traits) -> dict[str, Any]:
    return {trait.name: trait.value for trait in found.traits}


def at(config: dict[str, Any], dotted: str) -> Any:
    node: Any = config
    for part in dotted.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


# --- what is shown --------------------------------------------------------------------------------------------------


def test_text_is_what_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ATTNFIT_WRITE_SNAPSHOTS=1 writes them anew; read the diff before you commit it."""
    monkeypatch.chdir(tmp_path)
    for folder, name in (("glm", "zai-org__GLM-5-FP8"), ("hybrid", HYBRID), ("odd", "stepfun-ai__Step-3.7-Flash-FP8")):
        Path(folder).mkdir()
        Path(folder, "config.json").write_text(json.dumps(CONFIGS[name]["config"]))
        text = click.unstyle(render(describe(f"./{folder}", engine=RELEASE)))
        path = SNAPSHOTS / f"model-{folder}.txt"
        if os.environ.get("ATTNFIT_WRITE_SNAPSHOTS"):
            path.write_text(text, "utf-8")
        assert text == path.read_text("utf-8")


def test_json_holds_everything_the_text_shows(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[HYBRID]["config"]))
    report = describe(str(tmp_path), engine=RELEASE)
    shown = json.loads(render_json(report))
    assert list(shown) == [
        "schema", "exit_code", "model", "repo", "commit", "engine", "release", "said", "traits", "layers",
        "layers_from", "weights", "without_weights", "unknown", "notes",
    ]  # fmt: skip
    by_name = {trait["name"]: trait for trait in shown["traits"]}
    assert by_name["head_size"] == {"name": "head_size", "value": 256, "source": "text_config.head_dim"}
    assert by_name["quantization"]["value"] == "modelopt_fp4"
    assert by_name["unquantized_modules"]["value"][0] == "lm_head"
    assert [(layer["kind"], layer["count"]) for layer in shown["layers"]] == [
        ("linear (gated delta net)", 45), ("GQA", 15),
    ]  # fmt: skip
    assert (shown["exit_code"], shown["weights"]) == (0, None)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("zai-org__GLM-5", {"MLA, sparse": 78, "indexer cache": 78}),
        ("deepseek-ai__DeepSeek-R1", {"MLA": 61}),
        ("openai__gpt-oss-20b", {"GQA": 12, "GQA, sliding window": 12}),
        ("moonshotai__Kimi-Linear-48B-A3B-Instruct", {"linear (KDA)": 20, "MLA": 7}),
        ("nvidia__Nemotron-H-56B-Base-8K", {"Mamba2": 54, "GQA": 10}),
        ("Qwen__Qwen3-8B", {"GQA": 36}),
    ],
)
def test_layers_are_counted_by_kind(name: str, kinds: dict[str, int]) -> None:
    assert {layer.kind: layer.count for layer in read(name).layers} == kinds


def test_quantisation_says_method_scheme_exceptions_and_kv() -> None:
    fp8 = values(read("zai-org__GLM-5-FP8"))
    assert fp8["quantization"] == "fp8"
    assert "weight_block_size 128x128; activation_scheme dynamic" in fp8["quantization_scheme"]
    assert fp8["unquantized_modules"]
    nvfp4 = values(read("nvidia__GLM-5-NVFP4"))
    assert (nvfp4["quantization"], nvfp4["kv_cache_dtype"]) == ("modelopt_fp4", "fp8_e4m3")
    quant = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "scale_fmt": "ue8m0",
    }
    config = {**CONFIGS["zai-org__GLM-5"]["config"], "quantization_config": quant}
    assert values(read("zai-org__GLM-5", config))["scale_format"] == "ue8m0"


# --- no second opinion ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_key_named_as_source_holds_that_value(name: str) -> None:
    found = read(name)
    checked = 0
    for trait in found.traits:
        given = at(CONFIGS[name]["config"], trait.source)
        if isinstance(given, int) and isinstance(trait.value, int):
            assert given == trait.value, trait
            checked += 1
    assert checked >= 3 or "fills it in" in str(found.traits)
    assert all(trait.source for trait in found.traits), "each trait says where it comes from"


@pytest.mark.parametrize("name", ["zai-org__GLM-5", HYBRID, "openai__gpt-oss-20b", "deepseek-ai__DeepSeek-V3.2"])
def test_the_traits_are_those_a_check_answers_with(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]["config"]))
    report = attnfit.check(model=str(tmp_path), gpu="b200", count=1, engine=RELEASE, planned=False)
    found = read(name)
    asked = report.launch.layers[0].question
    assert asked.model_head_size == values(found)["head_size"]
    assert asked.model_num_heads == values(found)["attention_heads"]
    attention = [layer for layer in found.layers if layer.kind.startswith(("MLA", "GQA", "MHA"))]
    assert sum(layer.count for layer in attention) == sum(layer.count for layer in report.launch.layers)
    assert {layer.head_size for layer in attention} == {q.question.head_size for q in report.launch.layers}


def test_older_releases_read_by_their_own_tables() -> None:
    model = Model(path="x", config=CONFIGS["deepseek-ai__DeepSeek-V3.2"]["config"])
    old, new = traits(model, "0.16.0"), traits(model, "0.33.0")
    assert values(old)["model_class"] != values(new)["model_class"]
    assert values(old)["head_size"] == values(new)["head_size"] == 576


# --- weights, GGUF, the hub -----------------------------------------------------------------------------------------


def test_weights_are_counted_to_the_byte(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["Qwen__Qwen3-8B"]["config"]))
    save_file({"a": np.zeros((3, 5), np.float16), "b": np.zeros(7, np.uint8)}, tmp_path / "model.safetensors")
    report = describe(str(tmp_path), engine=RELEASE)
    assert report.weights is not None
    assert (report.weights.bytes, report.weights.tensors, report.weights.by_dtype) == (37, 2, {"F16": 30, "U8": 7})
    assert "weights: 37 bytes, 2 tensors in 1 file: F16 81.1 %, U8 18.9 %" in render(report)
    assert "not asked for" in render(describe(str(tmp_path), engine=RELEASE, headers=False))
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 20)
    assert "ends inside its header" in describe(str(tmp_path), engine=RELEASE).without_weights


def test_a_gguf_file_is_shown_by_its_own_keys(tmp_path: Path) -> None:
    keys = {
        "general.architecture": "qwen3", "qwen3.block_count": 4, "qwen3.context_length": 4096,
        "qwen3.embedding_length": 256, "qwen3.feed_forward_length": 512, "qwen3.attention.head_count": 8,
        "qwen3.attention.head_count_kv": 2, "qwen3.attention.key_length": 64, "qwen3.attention.value_length": 64,
        "qwen3.vocab_size": 1000,
    }  # fmt: skip
    place = tmp_path / "m.gguf"
    place.write_bytes(Builder().header(keys, []))
    report = describe(str(place), engine=RELEASE)
    by_name = {trait.name: trait for trait in report.traits.traits}
    assert (by_name["kv_heads"].value, by_name["kv_heads"].source) == (2, "qwen3.attention.head_count_kv")
    assert by_name["quantization"].value == "gguf"
    assert [(layer.kind, layer.count) for layer in report.traits.layers] == [("GQA", 4)]


def test_what_is_not_understood_is_unknown_by_name_and_exit_code(tmp_path: Path) -> None:
    place = tmp_path / "m.gguf"
    place.write_bytes(Builder().header({"general.architecture": "rwkv7", "rwkv7.block_count": 4}, []))
    report = describe(str(place), engine=RELEASE)
    assert report.exit_code == 3
    assert "unknown: how rwkv7 (GGUF) attends" in render(report)


def test_a_hub_model_names_its_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = Hub()
    try:
        hub.add("zai-org/GLM-5", {"config.json": CONFIGS["zai-org__GLM-5"]["config"]})
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("ATTNFIT_CACHE", str(tmp_path / "attnfit"))
        monkeypatch.chdir(tmp_path)
        report = describe("zai-org/GLM-5", engine=RELEASE)
    finally:
        hub.close()
    assert (report.repo, report.commit) == ("zai-org/GLM-5", COMMIT)
    assert values(report.traits)["architecture"] == "GlmMoeDsaForCausalLM"


def test_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no_such_model"}')
    run = [sys.executable, "-m", "attnfit", "model", str(tmp_path), "--engine", RELEASE]
    found = subprocess.run([*run, "--json"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (3, "")
    assert json.loads(found.stdout)["unknown"]


# --- anything at all ------------------------------------------------------------------------------------------------

JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 3, 10**30, 10**400, 0.5, float("nan"), float("inf"), "", "64", [], {}, [[]], {"a": 1},
    [None], ["x"], "\x00", "full_attention", {"quant_method": 7}, {"quant_method": "fp8"},
]  # fmt: skip


def mutated(rng: random.Random) -> tuple[str, dict[str, Any]]:
    name = rng.choice(sorted(CONFIGS))
    config = copy.deepcopy(CONFIGS[name]["config"])
    for _ in range(rng.randint(1, 5)):
        level = config
        while (nested := [k for k, v in level.items() if isinstance(v, dict) and v]) and rng.random() < 0.5:
            level = level[rng.choice(nested)]
        if level:
            key = rng.choice(sorted(level))
            if rng.random() < 0.3:
                del level[key]
            else:
                level[key] = copy.deepcopy(rng.choice(JUNK))
    return name, config


def test_mutated_configs_are_shown_or_unknown_and_never_a_fault() -> None:
    """300 here; proofs/mutations.py does as many as one likes."""
    rng = random.Random(30)
    for _ in range(300):
        name, config = mutated(rng)
        started = time.perf_counter()
        found = traits(Model(path="x", config=config, hf_quant=CONFIGS[name]["hf_quant"]), "0.33.0")
        report = ModelReport(model="x", engine="vllm", traits=found)
        text = click.unstyle(render(report))
        json.loads(render_json(report))
        assert time.perf_counter() - started < 2
        assert all(len(line) <= 80 for line in text.splitlines())


def test_the_gpu_shows_in_nothing_but_classes_that_it_chooses() -> None:
    for name in ("zai-org__GLM-5", HYBRID):
        model = Model(path=name, config=CONFIGS[name]["config"], hf_quant=CONFIGS[name]["hf_quant"])
        assert values(traits(model, "0.33.0", Capability(9, 0))) == values(traits(model, "0.33.0"))


# --- the dtype of the weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtypes", "dtype"),
    [
        (["BF16", "U8"], "bfloat16"),  # packed FP4: whole numbers cast to anything that floats
        (["F8_E4M3", "F32", "BF16"], "float32"),  # its scales win
        (["F16", "I32"], "float16"),
        (["F16", "F32"], "float32"),
        (["F8_E8M0", "F4"], "float32"),  # the engine's safetensors does not list them, so it sees nothing
        ([], "float32"),
        (None, None),
    ],
)
def test_the_dtype_read_off_the_weights_is_the_engines(dtypes: list[str] | None, dtype: str | None) -> None:
    assert dtype_of_weights(dtypes, "0.33.0", hub=True) == dtype


def test_where_two_dtypes_win_the_engines_choice_is_unknown() -> None:
    with pytest.raises(Unknown, match="bfloat16 and float16; which of them the engine takes changes"):
        dtype_of_weights(["F16", "BF16"], "0.33.0", hub=True)


def test_without_a_dtype_in_the_config_the_headers_decide(tmp_path: Path) -> None:
    config = CONFIGS["openai__gpt-oss-20b"]["config"]
    assert not {"dtype", "torch_dtype"} & set(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"a": np.zeros(4, np.float16), "b": np.zeros(4, np.uint8)}, tmp_path / "model.safetensors")

    def launch(release: str, *flags: str) -> attnfit.Launch:
        command = ["vllm", "serve", str(tmp_path), *flags]
        return attnfit.check(command, gpu="h100", count=1, engine=f"vllm=={release}", planned=False).launch

    assert launch("0.33.0").dtype == "float16"
    assert any("reads float16 off the weights" in note for note in launch("0.33.0").notes)
    assert launch("0.33.0", "--dtype", "bfloat16").dtype == "bfloat16"
    assert launch("0.16.0").dtype == "bfloat16", "up to 0.17 a directory's weights are not looked at"
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "the engine reads it from the weights" in str(launch("0.33.0").unknown)
