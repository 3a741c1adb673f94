"""A launch of a GGUF file ends where the release ends it, in its words: compared with the engine's own
create_engine_config (vLLM 0.16.0, 0.20.2, 0.23.0, 0.28.0, 0.33.0, and 0.33.0 with the plug-in 0.0.5)."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from attnfit import check, engines
from attnfit.core import Capability, Gpu, Launch, Model
from attnfit.engines import Circumstances
from attnfit.inputs.environment import Installed, env_facts
from attnfit.inputs.gguf import read_set
from attnfit.inputs.gguf.traits import describe
from attnfit.inputs.model import read_model
from gguf_bytes import Builder, Bytes, Typed

DATA = Path(__file__).parent / "data"
TRUTH: dict[str, Any] = json.loads((DATA / "gguf_launches.json").read_text())
KINDS = {"int32": "i32", "bool": "bool"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the recorded launches, and the config.json files that their flags name."""
    root = tmp_path_factory.mktemp("gguf")
    (root / "DIR").mkdir()
    for name, file in TRUTH["files"].items():
        values = {key: _value(value) for key, value in file["values"].items()}
        tensors = [(tensor, (32, 4), 0, 512 * i) for i, tensor in enumerate(file["tensors"])]
        data = Builder(file["version"], ">" if file["big"] else "<").header(values, tensors)
        (root / "DIR" / name).write_bytes(data + bytes(-len(data) % 32 + 512 * len(tensors)))
    with gzip.open(DATA / "configs.json.gz") as packed:
        configs = json.load(packed)
    for name in {word for row in TRUTH["rows"] for word in row["flags"] if word.startswith("MODELS/")}:
        directory = root / name
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps(configs[name.removeprefix("MODELS/")]["config"]))
    return root


def _value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value["kind"] == "string":
        return ["t"] * value["length"]
    return Typed(KINDS[value["kind"]], value["values"])


def launch(model: Model, release: str, capability: str, flags: list[str], *, plugin: bool = False) -> Launch:
    gpu = Gpu(name="", capability=Capability.parse(capability))
    this = Circumstances(model, gpu, flags, env={"gguf_plugin": True} if plugin else {})
    return engines.engine("vllm").release(release).launch(this)


def _named(row: dict[str, Any]) -> str:
    return " ".join((row["release"], "plugin" * row.get("plugin", 0), row["file"], row["capability"], *row["flags"]))


@pytest.mark.parametrize("row", TRUTH["rows"], ids=_named)
def test_a_launch_ends_as_the_engine_ends_it(place: Path, row: dict[str, Any]) -> None:
    def here(text: str) -> str:
        return text.replace("MODELS/", f"{place}/MODELS/").replace("DIR/", f"{place}/DIR/")

    model = read_model(str(place / "DIR" / row["file"])).model()
    found = launch(model, row["release"], row["capability"], [here(w) for w in row["flags"]], plugin="plugin" in row)
    if "error" in row:
        assert (found.ok, found.stage) == (False, "create_engine_config")
        said = here(row["error"]).replace(" in DIR.", f" in {place}/DIR.")
        assert str(found.error).startswith(said[:250].rstrip())
        return
    assert found.stage != "create_engine_config"
    assert found.dtype == row["dtype"]
    if found.layers:
        question = found.layers[0].question
        assert question.head_size == row["head"]
        ranks = int(dict(pairwise(row["flags"])).get("--tensor-parallel-size", 1))
        assert question.use_mla or question.num_kv_heads == max(1, row["kv"] // ranks)


def glm(place: Path) -> Model:
    return read_model(str(place / "DIR" / "GLM-5.gguf")).model()


def test_story_2_glm_5_as_gguf_on_a_workstation_blackwell(place: Path) -> None:
    """transformers does not know glm-dsa; bfloat16 is refused there for GGUF; in float16 no MLA backend is left; and
    with the plug-in its loader has no name for the weights, which test_gguf_story.py holds against the engines."""
    file = str(place / "DIR" / "GLM-5.gguf")
    report = check(f"vllm serve {file} --tensor-parallel-size 8", gpu="rtx-pro-6000", count=8, engine="vllm==0.23.0")
    first = report.launch
    assert (report.verdict, report.exit_code) == ("refused", 1)
    assert first.error == "ValueError: GGUF model with architecture glm-dsa is not supported yet."
    assert first.where.startswith("transformers/modeling_gguf_pytorch_utils.py")
    assert any("torch.bfloat16 is not supported for quantization method gguf" in note for note in first.notes)
    assert any("no flag helps" in note and "vllm-gguf-plugin" in note for note in first.notes)
    half = launch(glm(place), "0.23.0", "12.0", ["--dtype", "float16", "--tensor-parallel-size", "8"])
    assert half.hypothetical
    assert not any("bfloat16 is not supported" in note for note in half.notes)
    asked = half.layers[0]
    assert (asked.question.head_size, asked.question.use_sparse, asked.question.dtype) == (576, True, "float16")
    assert asked.selection.chosen is None
    assert str(asked.selection.error).startswith("ValueError: No valid attention backend found")
    with_plugin = [
        launch(
            glm(place), "0.33.0", "12.0", ["--hf-config-path", f"{place}/MODELS/zai-org__GLM-5", "--dtype", dtype],
            plugin=True,
        )
        for dtype in ("float16", "bfloat16")
    ]  # fmt: skip
    assert [(found.ok, found.stage) for found in with_plugin] == [(False, "load_weights")] * 2
    chosen = [found.layers[0].selection.chosen for found in with_plugin]
    assert chosen == [None, "FLASHINFER_MLA_SPARSE_SM120"]


@pytest.mark.parametrize("release", ["0.12.0", "0.13.0", "0.23.0"])
@pytest.mark.parametrize("capability", ["7.5", "9.0", "10.0", "12.0"])
def test_bfloat16_is_refused_for_gguf_on_blackwell_from_0_13_to_0_23(
    place: Path, release: str, capability: str
) -> None:
    model = read_model(str(place / "DIR" / "llama.gguf")).model()
    found = launch(model, release, capability, ["--dtype", "bfloat16"])
    refused = "torch.bfloat16 is not supported for quantization method gguf" in str(found.error)
    assert refused == (release != "0.12.0" and capability in ("10.0", "12.0"))


def test_without_the_plugin_the_file_passes_no_further_than_its_weights(place: Path) -> None:
    found = launch(glm(place), "0.33.0", "12.0", ["--hf-config-path", f"{place}/MODELS/zai-org__GLM-5"])
    assert (found.ok, found.stage) == (False, "load_weights")
    assert any("vllm-gguf-plugin" in note for note in found.notes)


def test_a_file_whose_sizes_the_engine_does_not_take_over_never_passes(place: Path) -> None:
    """transformers' Qwen3 class has heads of 128; the table that reads GGUF leaves the file's own length out."""
    model = read_model(str(place / "DIR" / "qwen3.gguf")).model()
    found = launch(model, "0.23.0", "9.0", [])
    assert found.ok is None
    assert "head_dim 64 (qwen3.embedding_length / attention.head_count), the engine takes 128" in found.unknown[0]


def test_a_file_that_is_cut_off_or_a_set_with_a_gap_never_passes(place: Path, tmp_path: Path) -> None:
    whole = (place / "DIR" / "llama.gguf").read_bytes()
    (tmp_path / "llama.gguf").write_bytes(whole[:-600])
    (tmp_path / "x-00001-of-00002.gguf").write_bytes(whole)
    for name, said in (("llama.gguf", "bytes before its last tensor"), ("x-00001-of-00002.gguf", "x-00002-of-00002")):
        found = launch(read_model(str(tmp_path / name)).model(), "0.23.0", "9.0", [])
        assert found.ok is None
        assert said in found.unknown[0]


def test_a_quant_of_a_repository_needs_a_config_json_there(place: Path) -> None:
    """vLLM's probe for speculators reads the repository's config.json, even where --hf-config-path names another."""

    def of(files: frozenset[str] | None) -> Model:
        return Model(path="someone/GLM-5-GGUF:Q4_K_M", config=glm(place).config, gguf=glm(place).gguf, files=files)

    flags = ["--hf-config-path", f"{place}/MODELS/Qwen__Qwen3-8B"]
    assert "whether someone/GLM-5-GGUF has a config.json" in launch(of(None), "0.23.0", "9.0", flags).unknown[0]
    without = launch(of(frozenset({"README.md"})), "0.23.0", "9.0", flags)
    assert str(without.error).startswith("OSError: someone/GLM-5-GGUF does not appear to have a file named config.json")
    given = launch(of(frozenset({"config.json"})), "0.23.0", "9.0", flags)
    assert given.layers[0].question.head_size == 128
    assert str(launch(of(None), "0.33.0", "9.0", []).error).startswith("OSError: Repo id must use")


@pytest.mark.parametrize(
    ("quant", "first"),
    [("Q8_0", "0.13.0"), ("Q4_K_M", "0.16.0"), ("UD-Q4_K_XL", "0.20.2"), ("IQ2_M", None), ("ROOM", None)],
)
def test_a_release_takes_the_quant_names_it_knows(place: Path, quant: str, first: str | None) -> None:
    files = frozenset({"README.md"})
    model = Model(path=f"someone/x:{quant}", config=glm(place).config, gguf=glm(place).gguf, files=files)
    known = [
        release
        for release in ("0.13.0", "0.16.0", "0.20.2", "0.23.0")
        if "does not appear to have a file named config.json" in str(launch(model, release, "9.0", []).error)
    ]
    assert (known or [None])[0] == first
    said = str(launch(model, "0.13.0", "9.0", []).error)
    assert said.startswith("OSError: ")
    assert ("Can't load the configuration of" in said) == (first != "0.13.0")


def test_a_file_that_is_still_on_the_hub_is_not_looked_for_here(place: Path) -> None:
    model = Model(path="./x.gguf", config=glm(place).config, gguf=glm(place).gguf, files=frozenset({"config.json"}))
    assert "once it is downloaded" in launch(model, "0.33.0", "9.0", [], plugin=True).unknown[0]


@pytest.mark.parametrize("release", ["0.23.0", "0.33.0"])
def test_an_attention_that_is_not_understood_is_unknown_or_refused_never_passed(release: str) -> None:
    values = {"general.architecture": "rwkv7", "rwkv7.block_count": 2, "rwkv7.embedding_length": 64}
    found = describe(read_set(Bytes(Builder().header(values)), lambda name: None))
    model = Model(path="/models/rwkv.gguf", config=found.config, gguf=found)
    answer = launch(model, release, "9.0", [])
    assert answer.ok is False
    assert answer.layers == ()


def test_experts_in_gguf_choose_no_kernel(place: Path) -> None:
    keys = json.loads((DATA / "gguf_keys.json").read_text())["Qwen/Qwen3-30B-A3B"]["keys"]
    values = {key: value for key, value in keys.items() if not isinstance(value, dict)}
    found = describe(read_set(Bytes(Builder().header(values)), lambda name: None))
    model = Model(path="/models/qwen.gguf", config=found.config, gguf=found)
    flags = ["--hf-config-path", f"{place}/MODELS/Qwen__Qwen3-30B-A3B-FP8", "--load-format", "dummy"]
    assert launch(model, "0.33.0", "9.0", flags, plugin=True).ok
    assert (
        "--moe-backend" in launch(model, "0.33.0", "9.0", [*flags, "--moe-backend", "triton"], plugin=True).unknown[0]
    )


def test_experts_in_gguf_have_no_name_under_transformers_5(place: Path) -> None:
    """The plug-in's loader maps one weight an expert; transformers 5 holds a layer's experts in one (0.33.0)."""
    model = read_model(str(place / "DIR" / "qwen3moe.gguf")).model()
    found = launch(model, "0.33.0", "9.0", ["--hf-config-path", f"{place}/MODELS/Qwen__Qwen3-30B-A3B-FP8"], plugin=True)
    assert (found.ok, found.stage) == (False, "load_weights")
    first = "['model.layers.0.mlp.experts.gate_up_proj', 'model.layers.1.mlp.experts.gate_up_proj'"
    assert str(found.error).startswith(f"RuntimeError: Failed to map GGUF parameters (48): {first}")


def test_the_plugin_is_a_fact_of_the_releases_that_need_it() -> None:
    for release, asked in (("0.23.0", False), ("0.24.0", True), ("0.33.0", True)):
        assert ("gguf_plugin" in engines.engine("vllm").release(release).facts()) == asked


def test_a_plugin_that_is_installed_is_found(tmp_path: Path) -> None:
    def beside(**packages: str) -> Installed:
        return Installed(
            engine="vllm", version="0.33.0", prefix=str(tmp_path), site_packages=str(tmp_path), packages=packages
        )

    assert env_facts(beside()) == {}
    assert env_facts(beside(**{"vllm-gguf-plugin": "0.0.5"})) == {"gguf_plugin": True}


def test_a_gguf_file_by_another_name_is_recognised(place: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes((place / "DIR" / "llama.gguf").read_bytes())
    assert read_model(str(path)).gguf is not None
