"""What a GPU's memory is to the engine, and what flags put into it or take out of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnfit import gpus
from attnfit.report.memory import lines
from test_fit import GIB, bare, check, measured, model, save, tensors

__all__ = ["bare", "model"]  # fixtures


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("a100-80g", (79.14, 79.33)), ("a100-40g", (39.25, 39.56)), ("3090", (23.68, 23.69)), ("a10g", (21.96, 22.07)),
        ("h100", (79.11, 79.33)), ("gb10", (119.7, 121.69)),
    ],
)  # fmt: skip
def test_the_range_holds_what_public_logs_say_that_cuda_sees(name: str, seen: tuple[float, float]) -> None:
    gpu = gpus.find(name)
    assert gpu.cuda_gib is not None
    assert gpu.cuda_gib[0] <= seen[0] <= seen[1] <= gpu.cuda_gib[1]


@pytest.mark.parametrize("name", ["gb10", "orin-64g", "thor"])
def test_a_memory_shared_with_the_cpu_is_never_counted_whole(model: Path, name: str) -> None:
    fit = measured(check(model, gpu=name))
    assert fit.memory is not None
    assert fit.usable is not None
    assert fit.usable[1] < fit.memory


@pytest.mark.parametrize("gpu", ["b100", "9.0"])
def test_a_gpu_of_unknown_memory_says_so_first(model: Path, gpu: str) -> None:
    fit = measured(check(model, gpu=gpu))
    name, sentence = next(lines(fit))
    assert (name, fit.verdict) == ("memory", "unknown")
    assert "not known" in sentence


def test_buffers_of_many_adapters_count_before_a_launch_is_said_to_fit(model: Path) -> None:
    plain = measured(check(model))
    one = measured(check(model, "--enable-lora"))
    many = measured(check(model, "--enable-lora", "--max-loras", "1024", "--max-lora-rank", "512"))
    assert [f.verdict for f in (plain, one, many)] == ["fits", "fits", "may break"]
    assert plain.overhead is not None
    assert one.overhead is not None
    # four layers of q, k, v, o, gate, up, down; the head and the embedding: both sides of each, times the rank
    sides = 4 * (4 * 2048 + 3 * 5120) + 2 * 33024
    assert one.overhead[1] - plain.overhead[1] == 16 * sides * 2
    assert any("LoRA" in sentence for sentence in many.inputs)


def test_a_cache_of_a_given_number_of_blocks_is_told_as_that(model: Path) -> None:
    fit = measured(check(model, "--num-gpu-blocks-override", "100000000"))
    assert (fit.verdict, fit.tokens, fit.kv_cache_asked) == ("breaks", None, "--num-gpu-blocks-override")
    assert fit.kv_cache is not None
    assert fit.kv_cache[0] == fit.kv_cache[1] > 1000 * GIB
    assert not any(name == "holds" for name, _ in lines(fit))


def test_a_cache_of_a_given_size_does_not_fit_where_activations_may_need_the_room(model: Path) -> None:
    fit = measured(check(model, "--kv-cache-memory-bytes", str(77 * GIB)))
    assert fit.verdict == "may break"


def test_no_more_weights_are_offloaded_than_layers_have(bare: Path) -> None:
    save(bare / "model.safetensors", tensors())
    fit = measured(check(bare, "--cpu-offload-gb", "1000"))
    assert fit.weights is not None
    assert fit.weights[0] == 0
    assert fit.weights[1] >= 2 * 32000 * 1024 * 2, "embedding and head stay"
    assert any("all decoder layers" in sentence for sentence in fit.inputs)
