"""Values that a configuration class refuses by itself are refused in the engine's words, as a real 0.33.0 said them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnfit.batch import answers

GLM5 = str(Path(__file__).parent.parent / "examples" / "glm-5")
DOCS = "    For further information visit https://errors.pydantic.dev/2.14/v/"


def ask(*flags: str, release: str = "0.33.0", **more: Any) -> dict[str, Any]:
    line = {"engine": f"vllm=={release}", "model": GLM5, "capability": "9.0", "flags": list(flags), **more}
    (reply,) = answers([json.dumps(line).encode()])
    return reply


def error(name: str, text: str, kind: str, value: str, type_: str) -> str:
    return f"\n{name}\n  {text} [type={kind}, input_value={value}, input_type={type_}]\n{DOCS}{kind}"


LEAST_ONE = ("Input should be greater than or equal to 1", "greater_than_equal", "0", "int")
NO_OBJECT = ("Input should be a valid dictionary", "dict_type", "'{bad'", "str")


@pytest.mark.parametrize(
    ("flags", "cls", "errors"),
    [
        (
            ["--gpu-memory-utilization", "90"],
            "CacheConfig",
            [("gpu_memory_utilization", "Input should be less than or equal to 1", "less_than_equal", "90.0", "float")],
        ),
        (
            ["--gpu-memory-utilization", "nan"],
            "CacheConfig",
            [("gpu_memory_utilization", "Input should be less than or equal to 1", "less_than_equal", "nan", "float")],
        ),
        (
            ["--max-num-seqs", "0", "--max-num-batched-tokens", "8192"],
            "SchedulerConfig",
            [("max_num_seqs", *LEAST_ONE)],
        ),
        # one size that is no size takes the other with it
        (
            ["--max-num-seqs", "0"],
            "SchedulerConfig",
            [("max_num_batched_tokens", *LEAST_ONE), ("max_num_seqs", *LEAST_ONE)],
        ),
        (["-tp", "0"], "ParallelConfig", [("tensor_parallel_size", *LEAST_ONE)]),
        # every field of a class is reported, in the class's order; a later class is never built
        (
            ["-tp", "0", "-pp", "0", "--max-num-seqs", "0"],
            "ParallelConfig",
            [("pipeline_parallel_size", *LEAST_ONE), ("tensor_parallel_size", *LEAST_ONE)],
        ),
        (
            ["--cpu-offload-gb", "-5"],
            "UVAOffloadConfig",
            [("cpu_offload_gb", "Input should be greater than or equal to 0", "greater_than_equal", "-5.0", "float")],
        ),
        (
            ["--hf-overrides", "{bad"],
            "ModelConfig",
            [
                ("hf_overrides.dict[str,any]", *NO_OBJECT),
                ("hf_overrides.callable", "Input should be callable", "callable_type", "'{bad'", "str"),
            ],
        ),
    ],
)
def test_a_value_outside_a_field_is_refused_in_the_engines_words(
    flags: list[str], cls: str, errors: list[tuple[str, str, str, str, str]]
) -> None:
    reply = ask(*flags)
    plural = "error" if len(errors) == 1 else "errors"
    head = f"ValidationError: {len(errors)} validation {plural} for {cls}"
    assert reply["error"] == head + "".join(error(*each) for each in errors)
    assert (reply["ok"], reply["stage"], reply["exit_code"]) == (False, "create_engine_config", 1)


def test_a_backend_nobody_knows_is_refused_with_the_names_there_are_and_the_one_that_was_meant() -> None:
    reply = ask("--attention-backend", "flash_attention")
    said = reply["error"]
    assert said.startswith("ValueError: Unknown attention backend: 'FLASH_ATTENTION'. Valid options are: FLASH_ATTN, ")
    assert said.endswith(", ULTRAQUANT, CUSTOM")
    assert any("did you mean 'FLASH_ATTN'?" in note for note in reply["notes"])


def test_a_server_cannot_listen_on_a_port_that_is_none() -> None:
    whole = {"command": ["vllm", "serve", GLM5, "--port", "99999999"], "capability": "9.0"}
    (reply,) = answers([json.dumps({"engine": "vllm==0.33.0", **whole}).encode()])
    assert (reply["ok"], reply["error"]) == (False, "OverflowError: bind(): port must be 0-65535.")
    assert ask("--port", "99999999")["ok"] is True  # bare flags start no server


def test_where_a_release_does_not_say_it_the_answer_is_unknown_with_a_next_step(tmp_path: Path) -> None:
    llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256,
             "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 64, "intermediate_size": 512,
             "torch_dtype": "bfloat16", "max_position_embeddings": 64}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(llama), "utf-8")
    reply = ask("-tp", "0", release="0.16.0", model=str(tmp_path))  # bounded from 0.23 on
    assert (reply["ok"], reply["exit_code"]) == (None, 3)
    assert "0.16.0" in reply["unknown"][0]
    assert "give 1 or more" in reply["unknown"][0]
    assert ask("--gpu-memory-utilization", "90", release="0.16.0", model=str(tmp_path))["error"].startswith(
        "ValidationError: 1 validation error for CacheConfig"
    )
    assert "or drop the flag" in ask("--num-gpu-blocks-override", "0")["unknown"][0]
