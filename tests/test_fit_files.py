"""Weight files that are damaged or not all there: said in the first line, and no launch with them exits 0 as *fits*."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attnfit.core import Report
from attnfit.inputs.safetensors import missing_parts
from attnfit.report.text import verdict_line
from test_fit import CONFIG, HIDDEN, bare, check, measured, model, save, tensors

__all__ = ["bare", "model"]  # fixtures

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22e\nsize 16060556376\n"
INDEX = "model.safetensors.index.json"


def halves(path: Path, *, index: bool) -> tuple[Path, Path]:
    """The model in two files; the second holds the last layer and the head."""
    held = tensors()
    late = {name: t for name, t in held.items() if ".3." in name or name == "lm_head.weight"}
    files = {"model-00001-of-00002.safetensors": {n: t for n, t in held.items() if n not in late}}
    files["model-00002-of-00002.safetensors"] = late
    for name, part in files.items():
        save(path / name, part)
    if index:
        mapped = {tensor: name for name, part in files.items() for tensor in part}
        (path / INDEX).write_text(json.dumps({"weight_map": mapped}), "utf-8")
    first, second = (path / name for name in files)
    return first, second


def breaks(report: Report, *words: str) -> None:
    fit = measured(report)
    assert (report.verdict, report.exit_code, fit.verdict) == ("breaks", 1, "breaks")
    line = verdict_line(report)
    assert "cannot load these weights" in line
    assert all(word in line for word in (*words, "again")), line
    assert fit.weights is None, "no figure is told of files that are not whole"


@pytest.mark.parametrize("index", [True, False])
def test_two_whole_halves_fit(bare: Path, index: bool) -> None:
    halves(bare, index=index)
    assert measured(check(bare)).verdict == "fits"


def test_a_shard_that_the_index_names_and_that_is_not_there_breaks(bare: Path) -> None:
    halves(bare, index=True)[1].unlink()
    breaks(check(bare), "model-00002-of-00002.safetensors", "not there")


def test_a_shard_that_ends_early_breaks(bare: Path) -> None:
    _, second = halves(bare, index=True)
    with second.open("r+b") as file:
        file.truncate(second.stat().st_size - 1000)
    breaks(check(bare), second.name, "1,000 bytes are missing")


def test_a_pointer_instead_of_weights_breaks(bare: Path) -> None:
    (bare / "model.safetensors").write_bytes(LFS)
    report = check(bare)
    assert (report.verdict, report.exit_code) == ("breaks", 1)
    assert "git lfs pull" in verdict_line(report)


@pytest.mark.parametrize("text", ["", "{", '{"weight_map": 1}', "[1]", "\ufeff{}"])
def test_an_index_that_the_engine_cannot_read_breaks(bare: Path, text: str) -> None:
    halves(bare, index=True)
    (bare / INDEX).write_text(text, "utf-8")
    report = check(bare)
    assert (report.verdict, report.exit_code) == ("breaks", 1)
    assert INDEX in verdict_line(report)


def test_an_index_that_only_we_find_odd_breaks_nothing(bare: Path) -> None:
    """More keys than any model has: not read here, and no error of the engine's."""
    halves(bare, index=True)
    whole = json.loads((bare / INDEX).read_text("utf-8"))
    (bare / INDEX).write_text(json.dumps({**whole, **{f"k{i}": 1 for i in range(6000)}}), "utf-8")
    assert check(bare).exit_code == 0


def test_a_set_without_an_index_that_lacks_a_file_and_with_it_layers_breaks(bare: Path) -> None:
    halves(bare, index=False)[1].unlink()
    breaks(check(bare), "model-00002-of-00002.safetensors", "layer 3 of 4")


def test_a_set_that_lacks_a_file_but_no_layer_is_not_said_to_fit(bare: Path) -> None:
    save(bare / "model-00001-of-00002.safetensors", tensors())
    report = check(bare)
    assert measured(report).verdict == "unknown"
    assert "model-00002-of-00002.safetensors" in verdict_line(report)


def test_a_checkpoint_without_one_of_its_layers_breaks(bare: Path) -> None:
    save(bare / "model.safetensors", {n: t for n, t in tensors().items() if ".layers.2." not in n})
    breaks(check(bare), "layer 2 of 4")


def test_fewer_layers_asked_for_than_there_are_are_no_fault(model: Path) -> None:
    report = check(model, "--hf-overrides", '{"num_hidden_layers": 2}')
    assert measured(report).verdict == "fits"


@pytest.mark.parametrize("held", [{}, {"a": ("BF16", [2, 2])}])
def test_another_models_checkpoint_breaks(bare: Path, held: dict[str, tuple[str, list[int]]]) -> None:
    save(bare / "model.safetensors", held)
    breaks(check(bare), "belongs to a layer")


def test_a_checkpoint_without_an_embedding_breaks(bare: Path) -> None:
    save(bare / "model.safetensors", {n: t for n, t in tensors().items() if "embed" not in n})
    breaks(check(bare), "no embedding")


def test_where_layers_may_have_no_weights_a_gap_is_a_doubt(bare: Path) -> None:
    config = {**CONFIG, "architectures": ["OlmoForCausalLM"], "model_type": "olmo"}
    (bare / "config.json").write_text(json.dumps(config), "utf-8")
    save(bare / "model.safetensors", {n: t for n, t in tensors().items() if ".layers.2." not in n})
    report = check(bare)
    assert (report.verdict, measured(report).verdict) == ("passes", "unknown")
    assert "layer 2 of 4" in verdict_line(report)


def test_a_dtype_nobody_knows_is_not_said_to_fit(bare: Path) -> None:
    save(bare / "model.safetensors", {**tensors(), "model.norm.weight": ("F99", [HIDDEN])})
    report = check(bare)
    assert measured(report).verdict == "unknown"
    assert "F99" in verdict_line(report)


def test_a_launch_that_reads_no_weights_does_not_mind(bare: Path) -> None:
    (bare / "model.safetensors").write_bytes(LFS)
    report = check(bare, "--load-format", "dummy")
    assert (report.verdict, measured(report).verdict) == ("passes", "fits")


def test_mistrals_own_copy_may_be_what_is_loaded(bare: Path) -> None:
    (bare / "model.safetensors").write_bytes(LFS)
    save(bare / "consolidated.safetensors", tensors())
    assert check(bare).verdict == "passes"
    assert measured(check(bare)).verdict == "unknown"


def test_a_config_alone_still_passes(bare: Path) -> None:
    report = check(bare)
    assert (report.verdict, report.exit_code, measured(report).verdict) == ("passes", 0, "fits")


def test_the_parts_of_a_set_are_told_from_their_names() -> None:
    assert missing_parts({"m-00001-of-00003.safetensors", "m-00003-of-00003.safetensors", "x.safetensors"}) == [
        "m-00002-of-00003.safetensors"
    ]
    assert missing_parts({"model.safetensors", "m-00001-of-00001.safetensors"}) == []
