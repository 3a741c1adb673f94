"""Every way people start SGLang is read: which release, which model, which of the words are the server's."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnfit.engines.sglang import case as cases
from attnfit.engines.sglang import config_file, releases, words
from attnfit.engines.sglang.answers import Case
from attnfit.errors import UsageError
from attnfit.inputs.command import parse_command
from attnfit.inputs.secrets import hide


@pytest.mark.parametrize(
    ("command", "form", "model"),
    [
        ("python -m sglang.launch_server --model-path ./m --tp 8", "module", "./m"),
        ("python3 -m sglang.launch_server --model ./m", "module", "./m"),
        ("python -m sglang.launch_server --tp 2 --model-pat=./m", "module", "./m"),
        ("sglang serve ./m --tp 8", "serve", "./m"),
        ("sglang serve --tp 8 --model-path ./m", "serve", "./m"),
        ("uv run --with 'sglang[all]==0.5.9' python -m sglang.launch_server --model-path ./m", "module", "./m"),
        ("CUDA_VISIBLE_DEVICES=0,1 python /opt/sglang/launch_server.py --model-path ./m", "module", "./m"),
        ("torchrun --nproc-per-node 1 -m sglang.launch_server --model-path ./m", "module", "./m"),
    ],
)
def test_the_server_and_its_model_are_found(command: str, form: str, model: str) -> None:
    found = parse_command(command)
    assert (found.engine, found.form, found.model) == ("sglang", form, model)


def test_an_image_starts_no_server_so_the_command_behind_it_counts_and_its_tag_names_the_release() -> None:
    line = "docker run --gpus all {image} python3 -m sglang.launch_server --model-path m --tp 8"
    for tag, release in (("v0.5.9", "0.5.9"), ("v0.5.9-cu130", "0.5.9"), ("v0.5.6.post2-cu129-amd64", "0.5.6.post2")):
        found = parse_command(line.format(image=f"lmsysorg/sglang:{tag}"))
        assert (found.engine, found.image_release, found.model) == ("sglang", release, "m")
        assert not found.files_here
    for image in ("lmsysorg/sglang:latest", "lmsysorg/sglang:dev", "nvcr.io/nvidia/sglang:25.10-py3"):
        found = parse_command(line.format(image=image))
        assert found.image_release is None
        assert any("names no release" in note for note in found.notes)


def test_another_engine_in_the_image_has_not_the_release_of_its_tag() -> None:
    found = parse_command("docker run lmsysorg/sglang:v0.5.9 vllm serve m")
    assert (found.engine, found.image_release) == ("vllm", None)


def test_an_image_alone_is_no_launch() -> None:
    with pytest.raises(UsageError, match="give the server's command after it"):
        parse_command("docker run lmsysorg/sglang:v0.5.9")


def test_a_requirement_names_the_release() -> None:
    found = parse_command(["uv", "run", "--with", "sglang[all]==0.5.10.post1", "python", "-m", "sglang.launch_server"])
    assert found.required_release == "0.5.10.post1"


@pytest.mark.parametrize("flag", ["--api-key", "--admin-api-key", "--admin-api", "--watermark-key-b"])
def test_keys_are_hidden_and_what_only_sounds_like_one_is_not(flag: str) -> None:
    shown = hide(["sglang", "serve", "m", flag, "Zx9SECRETkq", "--kt-max-deferred-experts-per-token", "2"])
    assert "Zx9SECRETkq" not in shown
    assert shown[-1] == "2"


def test_every_word_behind_a_flag_is_its_value_and_edits_keep_the_rest_as_it_stands() -> None:
    argv = ("--model-path", "m", "--lora-paths", "a=1", "b=2", "--tp=8", "--seed", "-1", "--trust-remote-code")
    assert [(span.flag, words.values(argv, span)) for span in words.spans(argv)] == [
        ("--model-path", ["m"]),
        ("--lora-paths", ["a=1", "b=2"]),
        ("--tensor-parallel-size", ["8"]),
        ("--seed", ["-1"]),
        ("--trust-remote-code", []),
    ]
    assert words.without(argv, "--lora-paths", "--trust-remote-code") == ("--model-path", "m", "--tp=8", "--seed", "-1")
    assert words.put(argv, "--tensor-parallel-size", "4")[5] == "--tp=4"  # in the form it was written in
    assert words.put(argv, "--page-size", "64")[-2:] == ("--page-size", "64")


def asked(argv: list[str]) -> Case:
    return Case(model="m", config={}, hf_quant=None, files=None, capability="9.0", gpu_name="", gpu_mem_gb=80.0,
                gpus=None, argv=argv, variables={}, facts={})  # fmt: skip


def served(argv: list[str], release: str, form: str = "serve") -> tuple[Case, object]:
    return cases.ready(asked(argv), form, releases.entry(release), files_here=True)


def test_sglang_serve_takes_a_model_in_front_from_0_5_16_on_and_refuses_one_before_that() -> None:
    case, stopped = served(["m", "--tp", "8"], "0.5.16")
    assert (case["argv"], stopped) == (["--model-path", "m", "--tp", "8"], None)
    _, stopped = served(["m", "--tp", "8"], "0.5.9")
    assert isinstance(stopped, dict)
    assert stopped["message"] == "Error: --model-path is required. Please provide the path to the model."
    assert stopped["where"] == {"file": "cli/utils.py", "line": 157, "func": "get_model_path"}


def test_sglang_serve_keeps_model_type_to_itself_and_another_kind_of_server_is_not_known() -> None:
    case, _ = served(["m", "--model-type", "llm", "--tp", "8"], "0.5.23")
    assert case["argv"] == ["--model-path", "m", "--tp", "8"]
    _, stopped = served(["m", "--model-type", "diffusion"], "0.5.23")
    assert isinstance(stopped, dict)
    assert stopped["ok"] is None


def test_a_config_file_stands_in_front_of_the_command_and_one_that_is_not_here_makes_it_unknown(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model-path: m\ntp: 8\ntrust-remote-code: true\ndisable-radix-cache: false\nlora-paths: [a, b]\n")
    case, _ = served(["--page-size", "64", "--config", str(path)], "0.5.9", form="module")
    assert case["argv"] == [
        *("--model-path", "m", "--tp", "8", "--trust-remote-code", "--lora-paths", "a", "b", "--page-size", "64"),
    ]
    assert parse_command(["python", "-m", "sglang.launch_server", "--config", str(path)]).model == "m"
    _, stopped = served(["--config", str(tmp_path / "gone.yaml")], "0.5.9", form="module")
    assert isinstance(stopped, dict)
    assert stopped["ok"] is None
    assert config_file.read(str(tmp_path / "run.json")) is None


def test_releases_are_those_of_the_scope_and_others_say_what_they_are() -> None:
    assert (releases.known()[0], releases.known()[-1], len(releases.known())) == ("0.5.6.post2", "0.5.23", 18)
    assert releases.resolve(None).version == "0.5.23"
    assert releases.resolve("v0.5.9+cu130") == ("0.5.9", True, "")
    within = releases.resolve("0.5.8")
    assert within.exact
    assert "its own sources" in within.note
    assert not releases.resolve("0.6.0").exact
    with pytest.raises(UsageError, match=r"known are 0\.5\.6\.post2"):
        releases.resolve("latest")


def test_of_every_release_the_backends_and_their_place_are_known() -> None:
    for version, entry in releases.table().items():
        assert "triton" in entry.choices["attention_backend"].names, version
        assert entry.choices["attention_backend"].where.startswith("srt/"), version
        assert entry.brings, version
