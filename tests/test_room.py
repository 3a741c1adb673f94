"""What makes room where the memory is in the way: a size of the KV cache that was asked for is no fate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import attnfit
from attnfit.core import Report
from fleet_cases import write
from test_fit import CONFIG, save, tensors
from test_fit_weights import quantised


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    save(tmp_path / "model.safetensors", tensors())
    return tmp_path


def check(model: Path, *flags: str) -> Report:
    return attnfit.check(["vllm", "serve", str(model), *flags], gpu="h100", engine="vllm==0.33.0")


@pytest.mark.parametrize(
    "flags",
    [
        ("--kv-cache-memory-bytes", "100M"),
        ("--kv_cache_memory_bytes=100M",),
        ("--kv-cache-memory-bytes", "900G"),
        ("--num-gpu-blocks-override", "10"),
        ("--num-gpu-blocks-override", "10", "--kv-cache-memory-bytes", "100M"),
    ],
)
def test_a_cache_of_the_size_asked_for_goes_before_the_length_does(model: Path, flags: tuple[str, ...]) -> None:
    first, *others = check(model, *flags).steps
    assert first.argv == ("vllm", "serve", str(model))
    assert first.gives_up == "the size asked for the KV cache: it gets what is free"
    assert all(step.cost > first.cost for step in others)
    again = attnfit.check(first.argv, gpu="h100", engine="vllm==0.33.0")
    assert (again.verdict, again.launch.fit and again.launch.fit.verdict) == ("passes", "fits")


def test_a_size_that_is_not_in_the_way_stays(model: Path) -> None:
    """The number of blocks wins over the bytes: only what is too small goes."""
    report = check(model, "--num-gpu-blocks-override", "10", "--kv-cache-memory-bytes", "20G")
    assert report.steps[0].argv == ("vllm", "serve", str(model), "--kv-cache-memory-bytes", "20G")
    assert report.steps[0].text.startswith("drop --num-gpu-blocks-override 10; then")


# --- a checkpoint that is not quantised ------------------------------------------------------------------------------

FP8 = "Qwen__Qwen3-30B-A3B-FP8"  # 29 GiB; not quantised 57


@pytest.mark.parametrize(
    ("model", "files", "count", "said"),
    [
        (FP8, False, 1, ""),
        (FP8, True, 1, ""),
        (FP8, True, 4, "then TRITON_ATTN serves it"),
        ("zai-org__GLM-5-FP8", False, 1, ""),
        ("RedHatAI__Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", False, 8, "not known whether it fits"),
    ],
)
def test_a_checkpoint_that_is_not_quantised_is_offered_if_its_own_size_can_fit(
    model: str, files: bool, count: int, said: str, tmp_path: Path
) -> None:
    """Its size is what config.json tells, whatever the files at hand take; else the offer says so."""
    place = write(tmp_path, model)
    if files:
        held = quantised(model.removesuffix("-FP8"), "fp8")
        save(place / "model.safetensors", {name: (dtype, [*shape]) for name, (dtype, shape, _) in held.items()})
    words = ["vllm", "serve", str(place), "-tp", str(count)]
    report = attnfit.check(words, gpu="v100", count=count, engine="vllm==0.33.0")
    assert report.verdict == "refused"
    texts = [step.text for step in report.steps if step.kind == "format"]
    assert [said in text for text in texts] == [True] * bool(said)
