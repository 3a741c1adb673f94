"""What a launch that every gate lets through may still fail on."""

from __future__ import annotations

from typing import Any

import pytest

from attnfit.engines.sglang.answers import Answer, Case
from attnfit.engines.sglang.doubts import doubts, lacking_gpus

PASSES = Answer(ok=True, resolved={}, traits={"num_attention_heads": 32, "architecture_known": True})


def case(*flags: str, gpus: int | None = 8) -> Case:
    return Case(
        model="m", config={}, hf_quant=None, files=None, capability="9.0", gpu_name="", gpu_mem_gb=80.0, gpus=gpus,
        argv=["--model-path", "m", *flags], variables={}, facts={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "processes"),
    [
        (["--tp", "16"], 16),
        (["--tp", "8", "--pp-size", "2"], 16),
        (["--tp", "8", "--dp", "2"], 16),
        (["--tp", "32", "--nnodes", "2"], 16),
    ],
)
def test_more_processes_than_gpus_cannot_start(flags: list[str], processes: int) -> None:
    assert lacking_gpus(case(*flags), PASSES) == f"it starts {processes} processes here, one a GPU, and there are 8"


@pytest.mark.parametrize(
    "flags",
    [
        ["--tp", "8"],
        ["--tp", "8", "--dp", "8", "--enable-dp-attention"],  # data-parallel attention uses the same GPUs
        ["--tp", "16", "--nnodes", "2"],
        ["--tp", "16", "--base-gpu-id", "4"],  # which GPUs these are is not followed
    ],
)
def test_enough_gpus_or_none_to_judge_by(flags: list[str]) -> None:
    assert lacking_gpus(case(*flags), PASSES) == ""
    assert lacking_gpus(case(*flags, gpus=None), PASSES) == ""


def test_what_the_release_resolved_counts_more_than_the_words() -> None:
    assert lacking_gpus(case("--tp", "8"), Answer(ok=True, resolved={"tp_size": 16}))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tp", "3"], "32 attention heads cannot be divided among 3 GPUs"),
        (["--tp", "6", "--dp", "2", "--enable-dp-attention"], "among 3 GPUs"),
        (["--tp", "0"], "is no number of GPUs"),
        (["--tp", "99999999999"], "is no number of GPUs"),
        (["--device", "tpu"], "only NVIDIA GPUs"),
    ],
)
def test_a_pass_that_is_not_known_to_be_one(flags: list[str], said: str) -> None:
    assert any(said in doubt for doubt in doubts(case(*flags), PASSES))


@pytest.mark.parametrize("flags", [[], ["--tp", "8"], ["--device", "cuda"], ["--device", "cuda:1"]])
def test_no_doubt_without_a_reason(flags: list[str]) -> None:
    assert list(doubts(case(*flags), PASSES)) == []


def test_an_architecture_that_no_model_class_of_the_release_serves_is_doubted() -> None:
    traits: dict[str, Any] = {"architectures": ["FooForCausalLM"], "architecture_known": False}
    (doubt,) = doubts(case(), Answer(ok=True, resolved={}, traits=traits))
    assert doubt.startswith("FooForCausalLM is none of the release's own model classes")
    unknown: dict[str, Any] = {**traits, "architecture_known": None}  # the release's classes were not found
    assert not list(doubts(case(), Answer(ok=True, resolved={}, traits=unknown)))
