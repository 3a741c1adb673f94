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
        ("srun env A=1 vllm serve m", "srun env A=1 X=1 vllm serve m"),
        ("apptainer exec --nv i.sif vllm serve m", "X=1 apptainer exec --nv i.sif vllm serve m"),
        ("apptainer exec --cleanenv i.sif vllm serve m", "apptainer exec --cleanenv i.sif env X=1 vllm serve m"),
        ("singularity exec -e i.sif bash -c 'cd /x; vllm serve m'",
         "singularity exec -e i.sif bash -c 'cd /x; env X=1 vllm serve m'"),
        ("apptainer exec -C --env A=1,B=2 i.sif vllm serve m",
         "apptainer exec -C --env A=1,B=2 i.sif env X=1 vllm serve m"),
        ("env -i vllm serve m", "env -i X=1 vllm serve m"),
        ("env -i A=1 nohup vllm serve m", "env -i A=1 nohup env X=1 vllm serve m"),
        ("ssh h vllm serve m", "ssh h env X=1 vllm serve m"),
        ("ssh h 'cd /x && vllm serve m'", "ssh h 'cd /x && env X=1 vllm serve m'"),
        ("ssh h docker run --gpus all vllm/vllm-openai:v0.33.0 m",
         "ssh h docker run -e X=1 --gpus all vllm/vllm-openai:v0.33.0 m"),
        ("docker exec -it box vllm serve m", "docker exec -e X=1 -it box vllm serve m"),
        ("docker exec box bash -c 'vllm serve m'", "docker exec -e X=1 box bash -c 'vllm serve m'"),
        ("docker compose -f a.yml run --rm llm vllm serve m",
         "docker compose -f a.yml run -e X=1 --rm llm vllm serve m"),
        ("docker-compose exec llm vllm serve m", "docker-compose exec -e X=1 llm vllm serve m"),
    ],
)  # fmt: skip
def test_a_variable_is_set_where_it_arrives(given: str, then: str) -> None:
    parsed = parse_command(shlex.split(given))
    assert rewrite(parsed, parsed.argv, {"X": "1"}) == shlex.split(then)


def test_a_variable_comes_back_out_of_every_place_that_it_was_put_into() -> None:
    for given in ("ssh h vllm serve m", "env -i A=1 vllm serve m", "docker exec box vllm serve m", "srun vllm serve m"):
        words = shlex.split(given)
        put = rewrite(parse_command(words), ("m",), {"X": "1"})
        assert put is not None
        assert rewrite(parse_command(put), ("m",), {"X": "2"}) == [word.replace("X=1", "X=2") for word in put]
        assert rewrite(parse_command(put), ("m",), {"X": None}) == words


def test_a_package_in_a_container_takes_an_image_of_ones_own() -> None:
    words = ["docker", "run", "--gpus", "all", "vllm/vllm-openai:v0.33.0", GLM, "-tp", "8"]
    report = check(words, gpu="a100-80g", count=8, model=GLM)
    (step,) = (each for each in report.steps if each.kind == "plugin")
    assert step.argv is None
    assert "image of your own, made from vllm/vllm-openai:v0.33.0" in step.text
    assert "ATTNFIT_VLLM_INDEXER=1" in step.text
    assert "vllm-openai" not in fix(report)[0]


@pytest.mark.parametrize(
    ("front", "then"),
    [
        ("uvx --from vllm==0.33.0 vllm serve", "uvx --with attnfit[vllm] --from vllm==0.33.0 vllm serve"),
        ("uvx vllm@0.33.0 serve", "uvx --with attnfit[vllm] vllm@0.33.0 serve"),
        ("uv tool run vllm@0.33.0 serve", "uv tool run --with attnfit[vllm] vllm@0.33.0 serve"),
        ("uv run --isolated vllm serve", "uv run --with attnfit[vllm] --isolated vllm serve"),
        ("nohup uv run --with=vllm==0.33.0 vllm serve",
         "nohup uv run --with attnfit[vllm] --with=vllm==0.33.0 vllm serve"),
    ],
)  # fmt: skip
def test_an_environment_that_is_made_for_a_run_is_told_what_belongs_into_it(front: str, then: str) -> None:
    words = [*front.split(), GLM, "-tp", "8"]
    report = check(words, gpu="a100-80g", count=8, engine="vllm==0.33.0")
    (step,) = (each for each in report.steps if each.kind == "plugin")
    assert " ".join(step.argv or ()).startswith(f"ATTNFIT_VLLM_INDEXER=1 {then} {GLM} -tp 8")
    assert step.installs == ""
    assert step.text.startswith("--with 'attnfit[vllm]', ATTNFIT_VLLM_INDEXER=1, and ")
    assert "pip install" not in step.text + fix(report)[1]
    again = check(list(step.argv or ()), gpu="a100-80g", count=8, engine="vllm==0.33.0", planned=False)
    assert again.verdict != "refused"


def test_what_is_installed_where_it_stays_is_installed_first() -> None:
    for front in ("uv run vllm serve", "docker exec box vllm serve", "docker compose exec llm vllm serve"):
        report = check([*front.split(), GLM, "-tp", "8"], gpu="a100-80g", count=8, engine="vllm==0.33.0")
        (step,) = (each for each in report.steps if each.kind == "plugin")
        assert step.argv is not None
        assert step.installs == "attnfit[vllm]"


@pytest.mark.parametrize(
    ("front", "made"),
    [
        ("docker compose run llm vllm serve", "an image of your own, made from that of the service llm with pip"),
        ("docker-compose -f a.yml run --rm --service-ports llm vllm serve", "made from that of the service llm with"),
        ("pipx run --spec vllm==0.33.0 vllm serve", "an environment of your own in the place of pipx run's, with pip"),
    ],
)
def test_what_is_gone_after_the_run_takes_one_of_ones_own(front: str, made: str) -> None:
    report = check([*front.split(), GLM, "-tp", "8"], gpu="a100-80g", count=8, engine="vllm==0.33.0")
    (step,) = (each for each in report.steps if each.kind == "plugin")
    assert step.argv is None
    assert made in step.text
    assert "attnfit[vllm]" in step.text


def test_an_offer_takes_the_remedy_of_what_it_may_meet() -> None:
    words = ["vllm", "serve", GLM, "-tp", "8"]
    report = check(words, gpu="a100-80g", count=8, engine="vllm==0.33.0")
    (step,) = (each for each in report.steps if each.kind == "engine")
    assert "--dsa-prefill-backend tilelang --dsa-decode-backend tilelang" in " ".join(step.argv or ())
