"""A GLM-5 as GGUF, from the command to the selector: each obstacle is foreseen where the engines meet it.

The answers are those of real engines on these files (vLLM 0.16.0, 0.23.0 with transformers 4.57.6 and 5.20.2, 0.28.0
and 0.33.0, the last two with and without vllm-gguf-plugin 0.0.5), taken by proofs/gguf_story.py.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gguf_glm
from attnfit.inputs.gguf import read_gguf
from attnfit.inputs.gguf.traits import describe
from gguf_launches import agree, ask_check, lay_out
from hub_server import Hub

ROWS: list[dict[str, Any]] = json.loads(
    gzip.decompress((Path(__file__).parent / "data/gguf_story.json.gz").read_bytes())
)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What the recorded launches name, here: the files, and a hub with the repositories."""
    hub, root = Hub(), tmp_path_factory.mktemp("story")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setenv("HF_HOME", str(root / "hf"))
        patch.setenv("ATTNFIT_CACHE", str(root / "attnfit"))
        named = lay_out(root, hub)
        yield {path.removeprefix(f"{root}/"): path for path in named.values()} | {"ROOT": str(root)}
    hub.close()


def _named(row: dict[str, Any]) -> str:
    extra = ["plugin"] * bool(row.get("plugin")) + [row[key] for key in ("transformers",) if key in row]
    return " ".join((row["release"], *extra, row["capability"], row["model"], *row["flags"]))


def here(row: dict[str, Any], words: dict[str, str]) -> dict[str, Any]:
    root = f"{words['ROOT']}/"
    stages = {
        name: said if said == "ok" else {**said, "error": _placed(said["error"], root)}
        for name, said in row["stages"].items()
    }
    model = words.get(row["model"], row["model"])
    return {**row, "model": model, "flags": [words.get(flag, flag) for flag in row["flags"]], "stages": stages}


def _placed(text: str, root: str) -> str:
    for name in ("alone/glm.gguf", "beside/glm.gguf", "alone"):
        text = text.replace(f"'{name}'", f"'{root}{name}'").replace(f" {name}.", f" {root}{name}.")
    return text


@pytest.mark.parametrize("row", ROWS, ids=_named)
def test_check_foresees_where_the_engine_stops(words: dict[str, str], row: dict[str, Any]) -> None:
    real = here(row, words)
    ours = ask_check(real, row["release"], bool(row.get("plugin")))
    if ours.ok is None:  # the file's kv_b goes unloaded without a word: no engine says so, and nothing passes
        assert "leaves kv_b_proj unloaded without a word, and the indexer has no name there" in ours.unknown[0]
        assert row["stages"]["model_init"] == "ok"
        return
    assert agree(real, ours)


def test_no_glm_5_in_gguf_ever_passes(words: dict[str, str]) -> None:
    """No loader has a name for its weights, whatever the flags; and of the 252 launches no engine built one whole."""
    assert not any(ask_check(here(row, words), row["release"], bool(row.get("plugin"))).ok for row in ROWS)
    whole = [row for row in ROWS if all(said == "ok" for said in row["stages"].values())]
    assert {row["unmapped"] for row in whole} == {14}  # as DeepSeek-V3: kv_b and the indexer stay behind
    assert len(ROWS) == 252


def test_the_cure_is_named(words: dict[str, str]) -> None:
    """The flag where there is one; that there is none where there is none."""

    def notes(release: str, *flags: str, plugin: bool = False) -> str:
        launch = {"model": words["alone/glm.gguf"], "flags": [words.get(f, f) for f in flags], "capability": "12.0"}
        return " | ".join(ask_check(launch, release, plugin).notes)

    assert "no flag helps: name it as REPO:QUANT" in notes("0.23.0")
    assert "bfloat16 is not supported for quantization method gguf" in notes("0.23.0", "--dtype", "bfloat16")
    assert "bfloat16 is not supported" not in notes("0.23.0", "--dtype", "float16")
    assert "pip install vllm-gguf-plugin" in notes("0.33.0")
    assert "pass --hf-config-path and --tokenizer" in notes("0.33.0", plugin=True)
    found = notes("0.33.0", "--hf-config-path", "full", plugin=True)
    assert "the GGUF loader knows no such architecture, so no flag helps: serve the checkpoint in safetensors" in found
    assert "pass --tokenizer" not in found
    assert "has no tokenizer" in notes("0.33.0", "--hf-config-path", "no-tokenizer", plugin=True)


def test_the_file_is_the_model_it_stands_for(tmp_path: Path) -> None:
    """The gguf package reads the file, knows each tensor of it, and the traits are those of the config.json."""
    gguf = pytest.importorskip("gguf")
    path = gguf_glm.write(tmp_path / "glm.gguf")
    read = gguf.GGUFReader(path)
    arch = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == "glm-dsa")
    known = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[arch]}
    for tensor in read.tensors:
        block, _, rest = tensor.name.rpartition(".")[0].partition(".")
        name = f"{block}.{{bid}}.{rest.partition('.')[2]}" if block == "blk" else tensor.name.rpartition(".")[0]
        assert name in known
    found = describe(read_gguf(path))
    assert not found.unknown
    wrong = {key: value for key, value in found.config.items() if gguf_glm.CONFIG.get(key, value) != value}
    assert wrong == {}
    assert found.config["index_topk"] == 2048
