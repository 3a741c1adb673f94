"""What makes room where the memory is in the way: a size of the KV cache that was asked for is no fate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import attnfit
from attnfit.core import Report
from test_fit import CONFIG, save, tensors


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
