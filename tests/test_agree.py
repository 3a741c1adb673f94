"""What contradicts itself is one usage error, what is ignored is a note, and a variable nobody set is unknown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import attnfit
from attnfit.batch import answers
from attnfit.errors import UnknownAnswer, UsageError

GLM5 = str(Path(__file__).parent.parent / "examples" / "glm-5")


def check(command: Any, **more: Any) -> attnfit.Report:
    return attnfit.check(command, gpu="h200x8", **{"engine": "vllm==0.33.0", "planned": False, **more})


def line(**item: Any) -> dict[str, Any]:
    (reply,) = answers([json.dumps({"gpu": "h200x8", **item}).encode()], engine="vllm==0.33.0")
    return reply


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("-tp $TP", "$TP"),
        ("-tp=${TP}", "$TP"),
        ("--dtype ${DTYPE}", "$DTYPE"),
        ("--quantization $Q", "$Q"),
        ("--max-model-len ${LENGTH}k", "$LENGTH"),
        ('--hf-overrides \\"$OVERRIDES\\"', "$OVERRIDES"),
    ],
)
def test_a_variable_that_nobody_set_is_no_refusal(flags: str, name: str) -> None:
    report = check(["bash", "-c", f"vllm serve {GLM5} {flags}".replace('\\"', '"')])
    assert report.exit_code == 3
    assert f"{name} is not set here" in report.launch.unknown[0]


def test_where_it_changes_nothing_it_may_stay() -> None:
    said = f"vllm serve {GLM5} -tp 8 --port $PORT --served-model-name $NAME --host ${{HOST}} --api-key $KEY"
    assert check(["bash", "-c", said]).verdict == "passes"
    assert check(f"TP=8; vllm serve {GLM5} -tp $TP").verdict == "passes"  # set in the command itself


def test_a_wrong_value_beside_it_is_still_refused() -> None:
    report = check(["bash", "-c", f"vllm serve {GLM5} -tp $TP --dtype int3"])
    assert report.verdict == "refused"
    assert "int3" in report.launch.detail


def test_a_model_in_a_variable_is_asked_for_or_given_beside_the_command() -> None:
    with pytest.raises(UnknownAnswer, match=r"\$MODEL is not set here; .*name it"):
        check(["bash", "-c", "vllm serve $MODEL"])
    assert check(["bash", "-c", "vllm serve $MODEL -tp 8"], model=GLM5).verdict == "passes"


def test_two_models_are_an_error_and_one_that_stands_for_another_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", "utf-8")
    with pytest.raises(UsageError, match="make the two agree"):
        check(["vllm", "serve", str(tmp_path)], model=GLM5)
    assert check(["vllm", "serve", GLM5 + "/"], model=GLM5).verdict == "passes"
    said = check(["vllm", "serve", "zai-org/GLM-5"], model=GLM5).said
    assert any("in the place of zai-org/GLM-5" in sentence for sentence in said)


def test_the_release_given_and_that_of_the_command_must_agree() -> None:
    image = ["docker", "run", "--gpus", "all", "vllm/vllm-openai:v0.16.0", "--model", "/m"]
    with pytest.raises(UsageError, match=r"--engine says 0\.20\.2, but the image .*:v0\.16\.0 says 0\.16\.0"):
        check(image, model=GLM5, engine="vllm==0.20.2")
    assert check(image, model=GLM5, engine="vllm==0.16.0").release == "0.16.0"
    assert check(image, model=GLM5, engine="vllm==0.33.0", instead=True).release == "0.33.0"
    assert "make the two agree" in line(command=image, model=GLM5, engine="vllm==0.20.2")["problem"]
    assert line(command=image, model=GLM5)["release"] == "0.16.0"  # a default stands in only where nothing is said


@pytest.mark.parametrize(
    "item",
    [
        {"model": GLM5, "capability": "9.0"},
        {"model": GLM5, "flags": [], "command": ["vllm", "serve", GLM5]},
        {"question": {"capability": "9.0", "head_size": 128, "dtype": "bfloat16"}, "flags": []},
    ],
)
def test_a_line_that_says_one_thing_twice_is_told_so(item: dict[str, Any]) -> None:
    reply = line(**item)
    assert reply["exit_code"] == 2
    assert reply["problem"].startswith("both ")


def test_a_line_of_odd_values_is_a_usage_error() -> None:
    assert '"flags" holds null' in line(model=GLM5, flags=[1, None])["problem"]
    question = {"capability": "9.0", "head_size": -128, "dtype": "bfloat16"}
    assert "head_size is -128" in line(question=question)["problem"]
    assert "problem" not in line(question={**question, "head_size": 0}), "the engine's selector answers it"


def test_a_bare_capability_has_a_name_in_the_engines_text() -> None:
    (reply,) = answers([json.dumps({
        "engine": "vllm==0.33.0", "model": GLM5, "capability": "7.5",
        "command": ["vllm", "serve", GLM5, "--dtype", "bfloat16"],
    }).encode()])  # fmt: skip
    assert "Your NVIDIA GPU has compute capability 7.5" in reply["error"]


@pytest.mark.parametrize("between", ["&", "&&", ";", "||", "\n"])
def test_two_servers_in_one_string_are_not_answered_as_one(between: str) -> None:
    with pytest.raises(UsageError, match="more than one server"):
        check(["bash", "-c", f"vllm serve {GLM5} {between} vllm serve {GLM5} --port 1"])
    assert check(["bash", "-c", f"vllm serve {GLM5} -tp 8 {between} curl localhost; echo vllm serve x"]).exit_code == 0


def test_a_variable_that_the_release_does_not_read_is_named() -> None:
    def notes(release: str) -> str:
        command = ["VLLM_ATTENTION_BACKEND=FLASHMLA", "vllm", "serve", GLM5, "-tp", "8"]
        return " ".join(check(command, engine=f"vllm=={release}").launch.notes)

    assert "0.33.0 does not read VLLM_ATTENTION_BACKEND; say --attention-backend FLASHMLA" in notes("0.33.0")
    assert "does not read" not in notes("0.14.1")
