"""The other engine, and variables, in the user's own surroundings: kept for certain, or no command."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from attnfit import check
from attnfit.core import Report, Step
from attnfit.inputs.command import parse_command
from attnfit.inputs.rewrite import rewrite
from attnfit.inputs.secrets import clean, masked
from attnfit.inputs.switch import switched
from attnfit.report.planned import fix

GLM = str(Path(__file__).parent.parent / "examples" / "glm-5")
HEAD, ARGV = ("python", "-m", "sglang.launch_server"), ("--model-path", "m", "--tp", "2")
WORD = "Zx9SECRETkq"
SERVER = "-m sglang.launch_server --model-path m --tp 2"


@pytest.mark.parametrize(
    ("given", "then"),
    [
        ("vllm serve m", f"python {SERVER}"),
        ("env CUDA_VISIBLE_DEVICES=4,5 HF_HOME=/h vllm serve m",
         f"env CUDA_VISIBLE_DEVICES=4,5 HF_HOME=/h python {SERVER}"),
        ("env VLLM_X=1 A=2 vllm serve m", f"env A=2 python {SERVER}"),
        ("sudo nohup vllm serve m --port 9", f"sudo nohup python {SERVER}"),
        ("/opt/e/bin/vllm serve m", f"/opt/e/bin/python3 {SERVER}"),
        ("python3.12 -m vllm.entrypoints.openai.api_server --model m", f"python3.12 {SERVER}"),
        ("uv run --with vllm==0.16.0 vllm serve m", f"uv run --with sglang==0.5.23 python {SERVER}"),
        ("uv run --with=vllm --with torch vllm serve m", f"uv run --with=sglang==0.5.23 --with torch python {SERVER}"),
        ("uv run --with vllm==0.16.0 --extra-index-url https://wheels.vllm.ai vllm serve m", None),
        ("docker run --rm --gpus device=4,5 -p 8000:8000 -v /m:/m -e A=1 vllm/vllm-openai:v0.12.0 --model m",
         f"docker run --rm --gpus device=4,5 -p 8000:8000 -v /m:/m -e A=1 lmsysorg/sglang:v0.5.23 python3 {SERVER}"),
        ("docker run registry.example/vllm-openai:v0.12.0 m", None),
        ("docker run vllm/vllm-openai:v0.12.0-cu130 m", None),
        ("docker run --env-file f vllm/vllm-openai:v0.12.0 m", None),
        ("docker run -e VLLM_API_KEY vllm/vllm-openai:v0.12.0 m", None),
        ("docker exec box vllm serve m", None),
        ("env VLLM_API_KEY=k vllm serve m", None),
        ("uvx vllm@0.16.0 serve m", None),
        ("kubectl exec pod -- vllm serve m", None),
        ("torchrun -m vllm.entrypoints.openai.api_server --model m", None),
    ],
)  # fmt: skip
def test_the_other_engine_stands_where_this_one_stood_or_nowhere(given: str, then: str | None) -> None:
    found = switched(parse_command(given.split()), "sglang", HEAD, ARGV, "0.5.23")
    assert (None if found.words is None else " ".join(found.words)) == then
    assert bool(found.why) is (then is None)
    assert ("VLLM_X" in found.left) is ("VLLM_X" in given)


def test_back_into_the_image_that_starts_its_server_itself() -> None:
    given = "docker run --gpus all -p 30000:30000 lmsysorg/sglang:v0.5.9 python3 -m sglang.launch_server --model-path m"
    found = switched(parse_command(given.split()), "vllm", ("vllm", "serve"), ("m", "-tp", "2"), "0.33.0")
    assert " ".join(found.words or ()) == "docker run --gpus all -p 30000:30000 vllm/vllm-openai:v0.33.0 m -tp 2"
    assert found.named


@pytest.mark.parametrize(
    ("given", "then"),
    [
        ("python3 -m sglang.launch_server --model-path m", "vllm serve m -tp 2"),
        ("python3.12 -u -m sglang.launch_server --model-path m", "vllm serve m -tp 2"),
        ("sglang serve --model-path m", "vllm serve m -tp 2"),
        ("/opt/e/bin/python -m sglang.launch_server --model-path m", "/opt/e/bin/vllm serve m -tp 2"),
        ("/opt/e/bin/sglang serve --model-path m", "/opt/e/bin/vllm serve m -tp 2"),
        ("/usr/bin/python3 -m sglang.launch_server --model-path m", "vllm serve m -tp 2"),
        ("A=1 nohup python3 -m sglang.launch_server --model-path m", "A=1 nohup vllm serve m -tp 2"),
        ("env SGLANG_X=1 A=2 sglang serve --model-path m", "env A=2 vllm serve m -tp 2"),
        ("sudo A=1 python3 -m sglang.launch_server --model-path m", "sudo A=1 vllm serve m -tp 2"),
        ("uv run --with sglang==0.5.9 python -m sglang.launch_server --model-path m",
         "uv run --with vllm==0.33.0 vllm serve m -tp 2"),
        ("bash -c 'cd /x; sglang serve --model-path m >log'", "bash -c 'cd /x; vllm serve m -tp 2 >log'"),
        ("torchrun -m sglang.launch_server --model-path m", None),
        ("./mine/sglang serve --model-path m", None),
        ("kubectl exec pod -- sglang serve --model-path m", None),
    ],
)  # fmt: skip
def test_back_the_other_way_what_stands_in_front_stays_as_well(given: str, then: str | None) -> None:
    found = switched(parse_command(shlex.split(given)), "vllm", ("vllm", "serve"), ("m", "-tp", "2"), "0.33.0")
    assert (None if found.words is None else list(found.words)) == (None if then is None else shlex.split(then))
    assert bool(found.why) is (then is None)


def other_engine(words: list[str], engine: str = "vllm==0.16.0") -> Step:
    report: Report = check([*words, "--dtype", "float16"], gpu="h100", count=8, engine=engine, model=GLM)
    (step,) = (each for each in report.steps if each.kind == "engine")
    return step


def test_who_may_ask_and_where_is_carried_over() -> None:
    words = ["vllm", "serve", GLM, "-tp", "8", "--api-key", "s3", "--port", "8001", "--served-model-name", "x"]
    step = other_engine(words)
    said = " ".join(step.argv or ())
    assert "--api-key $API_KEY" in said
    assert "s3" not in said
    assert "--port 8001" in said
    assert "--served-model-name x" in said
    assert "api" not in step.gives_up
    plain = " ".join(other_engine(words[:5]).argv or ())
    assert plain.endswith("--host 0.0.0.0 --port 8000"), "its clients look for it there"


@pytest.mark.parametrize("flags", [["--ssl-keyfile", "k"], ["--api-key", "a", "b"], ["--revision", "abc"]])
def test_no_server_is_offered_that_is_less_protected_or_another(flags: list[str]) -> None:
    step = other_engine(["vllm", "serve", GLM, "-tp", "8", *flags])
    assert step.argv is None
    assert flags[0].lstrip("-").replace("-", " ") in (step.gives_up + step.text).replace("-", " ")


@pytest.mark.parametrize(
    ("front", "flags", "then"),
    [
        ("nohup python3 -m sglang.launch_server", [], "nohup vllm serve"),
        ("sglang serve", [], "vllm serve"),
        ("python3 -m sglang.launch_server", ["--api-key", WORD], None),
        ("python3 -m sglang.launch_server", ["--api-key", WORD, "--admin-api-key", WORD], None),
        ("python3 -m sglang.launch_server", ["--ssl-keyfile", "/k.pem"], None),
    ],
)
def test_to_vllm_too_and_why_not_is_said_in_words_that_are_not_taken_for_a_key(
    front: str, flags: list[str], then: str | None
) -> None:
    words = [*front.split(), "--model-path", GLM, "--tp", "8", *flags]
    report = check(words, gpu="rtx-pro-6000-server", count=8, engine="sglang==0.5.9")
    (step,) = (each for each in report.steps if each.kind == "engine")
    assert (step.argv is None) is (then is None)
    assert then is None or " ".join(step.argv or ()).startswith(f"{then} {GLM}")
    assert clean(masked(step.text), words) == step.text
    assert all(flag in step.text for flag in flags if flag.startswith("--"))


def test_memory_that_is_not_known_is_a_doubt() -> None:
    assert any(
        "not known whether it fits" in doubt for doubt in other_engine(["vllm", "serve", GLM, "-tp", "8"]).doubts
    )


@pytest.mark.parametrize(
    ("given", "then"),
    [
        ("sudo vllm serve m", "sudo X=1 vllm serve m"),
        ("sudo -u me nohup vllm serve m", "sudo -u me X=1 nohup vllm serve m"),
        ("doas vllm serve m", "doas env X=1 vllm serve m"),
        ("kubectl exec pod -- vllm serve m", "kubectl exec pod -- env X=1 vllm serve m"),
        ("systemd-run --scope vllm serve m", "systemd-run --scope env X=1 vllm serve m"),
        ("nohup vllm serve m", "X=1 nohup vllm serve m"),
    ],
)
def test_a_variable_is_set_where_it_arrives(given: str, then: str) -> None:
    parsed = parse_command(given.split())
    assert " ".join(rewrite(parsed, parsed.argv, {"X": "1"}) or ()) == then


def test_a_package_in_a_container_takes_an_image_of_ones_own() -> None:
    words = ["docker", "run", "--gpus", "all", "vllm/vllm-openai:v0.33.0", GLM, "-tp", "8"]
    report = check(words, gpu="a100-80g", count=8, model=GLM)
    (step,) = (each for each in report.steps if each.kind == "plugin")
    assert step.argv is None
    assert "image of your own, made from vllm/vllm-openai:v0.33.0" in step.text
    assert "ATTNFIT_VLLM_INDEXER=1" in step.text
    assert "vllm-openai" not in fix(report)[0]


def test_an_offer_takes_the_remedy_of_what_it_may_meet() -> None:
    words = ["vllm", "serve", GLM, "-tp", "8"]
    report = check(words, gpu="a100-80g", count=8, engine="vllm==0.33.0")
    (step,) = (each for each in report.steps if each.kind == "engine")
    assert "--dsa-prefill-backend tilelang --dsa-decode-backend tilelang" in " ".join(step.argv or ())
