"""A service of a compose file is the docker run it stands for; its corrected form changes nothing else in the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from attnfit.cli import cli
from attnfit.deploy.composefile import edited
from attnfit.errors import AttnfitError, InputError, UsageError
from attnfit.inputs.compose import Service, fill, read_service

GLM = Path(__file__).resolve().parent.parent / "examples" / "glm-5"
GPU = ["--gpu", "rtx-pro-6000-server", "-n", "8"]
KEY = "sk-a1b2c3d4e5f6a7b8c9d0"
IMAGE = "vllm/vllm-openai:v0.33.0"
HEAD = f"services:\n  llm:\n    image: {IMAGE}\n"
WORDS = ["/m", "--tensor-parallel-size", "8", "--dtype", "float16", "--max-num-seqs", "64"]


def service(folder: Path, text: str, name: str | None = None, **environ: str) -> Service:
    file = folder / "compose.yaml"
    file.write_text(text)
    return read_service(file, name, environ)


def test_a_service_is_read_as_docker_run(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TAG=v0.33.0\nTP=4\n")
    (tmp_path / "more.env").write_text("A=file\nB='two words'\n")
    found = service(
        tmp_path,
        """
x-common: &common
  restart: unless-stopped
  environment: {A: own, C: "yes"}
services:
  llm:
    <<: *common
    image: vllm/vllm-openai:${TAG}
    env_file: [more.env, {path: none.env, required: false}]
    command: --model /models/x --tensor-parallel-size ${TP:-2} --served-model-name "a b" --x $$5
    volumes:
      - ./models:/models:ro
    deploy: {resources: {reservations: {devices: [{driver: nvidia, device_ids: ["0", "1"], capabilities: [gpu]}]}}}
  other: {image: redis}
""",
        "llm",
        TP="8",
    )
    assert list(found.words) == [
        "docker", "run", "--gpus", "device=0,1", "-e", "A=own", "-e", "B=two words", "-e", "C=yes", IMAGE,
        "--model", "/models/x", "--tensor-parallel-size", "8", "--served-model-name", "a b", "--x", "$5",
    ]  # fmt: skip
    assert found.here("/models/x") == str(tmp_path / "models" / "x")
    assert found.here("/other") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("$A", "a"), ("${A}b", "ab"), ("$$A", "$A"), ("${N}", ""), ("${N:-d}", "d"), ("${E:-d}", "d"), ("${E-d}", ""),
     ("${A:+y}", "y"), ("${N:+y}", ""), ("a$", "a$")],
)  # fmt: skip
def test_variables_are_filled_in_as_compose_does(text: str, value: str) -> None:
    assert fill(text, {"A": "a", "E": ""}, "here") == value


def test_a_variable_that_the_file_demands_is_one_error() -> None:
    with pytest.raises(UsageError, match="N is not set"):
        fill("${N:?say which}", {}, "here")


FORMS = {
    "block list": "    command:\n" + "".join(f'      - "{word}"\n' for word in WORDS) + "    ports: [8000]  # kept\n",
    "list on one line": f"    command: {['--x' if 0 else word for word in WORDS]}\n    ports: [8000]  # kept\n",
    "text": f"    command: {' '.join(WORDS)}   # kept\n",
    "quoted text": f'    command: "{" ".join(WORDS)}"\n    tty: true\n',
    "folded text": "    command: >\n      /m --tensor-parallel-size 8\n      --dtype float16\n      "
    "--max-num-seqs 64\n    tty: true\n",
    "plain over lines": "    command:\n      /m --tensor-parallel-size 8\n      --dtype float16 "
    "--max-num-seqs 64\n    tty: true\n",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "wanted",
    [
        WORDS[:3] + WORDS[5:],
        [*WORDS, "--kv-cache-dtype", "fp8"],
        ["/m", "--first", *WORDS[1:]],
        [*WORDS[:4], "bfloat16", *WORDS[5:]],
        WORDS[:3],
        [*WORDS[:5], "--max-num-seqs", "32", "--name", "a $b \"c\""],
    ],
)  # fmt: skip
def test_in_every_form_only_the_words_that_differ_change(form: str, wanted: list[str], tmp_path: Path) -> None:
    text = f"# top\n{HEAD}{FORMS[form]}  other:\n    image: redis # cache\n"
    found = service(tmp_path, text, "llm")
    assert list(found.command) == WORDS
    new = edited(found, wanted, {})
    assert list(service(tmp_path, new, "llm").command) == wanted
    assert new.startswith(f"# top\n{HEAD}    command:")
    assert new.endswith("  other:\n    image: redis # cache\n")
    assert ("# kept" in new) == ("# kept" in text)
    assert "\n\n" not in new


@pytest.mark.parametrize("ends", ["\r\n", "\r\n, but for the first", "\r\n, but for the last"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "wanted", [WORDS[:3] + WORDS[5:], [*WORDS, "--kv-cache-dtype", "fp8"], ["/m", "--first", *WORDS[1:]]]
)
def test_lines_keep_their_ends(ends: str, form: str, wanted: list[str], tmp_path: Path) -> None:
    plain = f"# top\n{HEAD}{FORMS[form]}  other:\n    image: redis # cache\n"
    text = plain.replace("\n", "\r\n")
    text = text.replace("\r\n", "\n", 1) if "first" in ends else text.removesuffix("\r\n") if "last" in ends else text
    file = tmp_path / "compose.yaml"
    file.write_bytes(text.encode())
    new = edited(read_service(file, "llm", {}), wanted, {})
    assert new.replace("\r\n", "\n").rstrip("\n") == edited(service(tmp_path, plain, "llm"), wanted, {}).rstrip("\n")
    assert new.count("\n") - new.count("\r\n") == text.count("\n") - text.count("\r\n")
    assert new.endswith("\n") == text.endswith("\n")


def test_a_file_of_such_lines_is_shown_and_written_as_another(tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    start = "--model /models/glm-5\n      --tensor-parallel-size 8\n      --dtype float16"
    text = f"{HEAD}    volumes: [{GLM.parent}:/models]\n    gpus: all\n    command: >\n      {start}\n    tty: true\n"
    shown = []
    for ends in ("\n", "\r\n"):
        file.write_bytes(text.replace("\n", ends).encode())
        shown.append(run("fix", str(file), *GPU))
        assert run("fix", str(file), *GPU, "--yes")[0] == 0
        assert file.read_bytes() == text.replace("      --dtype float16\n", "").replace("\n", ends).encode()
    assert shown[0] == shown[1]
    assert "\r" not in shown[0][1]
    assert "\n-      --dtype float16\n" in shown[0][1]


@given(st.lists(st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=8), max_size=7))
def test_what_is_written_is_what_was_wanted_or_an_error(wanted: list[str]) -> None:
    import tempfile

    for form in FORMS.values():
        with tempfile.TemporaryDirectory() as name:
            found = service(Path(name), HEAD + form)
            try:
                new = edited(found, wanted, {})
            except UsageError:
                continue
            assert list(service(Path(name), new).command) == wanted


@pytest.mark.parametrize(
    "environment",
    ["", '    environment:\n      A: "1"\n      B: "2"\n', "    environment:\n      - A=1\n      - B=2\n"],
)
def test_variables_are_changed_where_they_stand(environment: str, tmp_path: Path) -> None:
    found = service(tmp_path, f"{HEAD}{environment}    command: /m\n")
    changes = {"A": "x $y", "C": "3", **({"B": None} if environment else {})}
    assert service(tmp_path, edited(found, ["/m"], changes)).variables == {"A": "x $y", "C": "3"}


BAD: dict[str, tuple[str, str]] = {
    "no yaml": ("services: [", "no YAML"),
    "empty": ("", "no compose file"),
    "a list": ("- a\n", "no compose file"),
    "no services": ("version: 3\n", "services is no mapping"),
    "binary": ("\0", "no text"),
    "no image": ("services: {llm: {build: .}}", "no image"),
    "extends": ("services: {llm: {image: a, extends: {service: b}}}", "docker compose config"),
    "two": ("services: {a: {image: x}, b: {image: y}}", "2 services"),
    "unbalanced": ('services: {a: {image: x, command: "a \'b"}}', "split into words"),
    "aliases": (
        "x0: &x0 [a]\n"
        + "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]\n" for n in range(1, 10))
        + "services: {a: {image: x, command: *x9}}",
        "aliases",
    ),
    "merges": (
        "x0: &x0 {a: b}\n"
        + "".join(f"x{n}: &x{n} {{<<: [{', '.join([f'*x{n - 1}'] * 9)}]}}\n" for n in range(1, 10))
        + "services: {a: {image: x, labels: *x9}}",
        "aliases",
    ),
    "itself": ("services: {a: &a {image: x, command: [*a]}}", "no YAML"),
    "tag": ("services: {a: !reset {image: x}}", ""),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_one_error(kind: str, tmp_path: Path) -> None:
    text, says = BAD[kind]
    if not says:
        service(tmp_path, text)
        return
    with pytest.raises((InputError, UsageError), match=says):
        service(tmp_path, text)


@given(st.text(max_size=80))
def test_any_text_is_an_answer_or_one_error(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        try:
            service(Path(name), text)
        except AttnfitError:
            return


@pytest.mark.parametrize("name", ["compose.yaml", ".env", "more.env"])
def test_a_pipe_is_not_waited_for(name: str, tmp_path: Path) -> None:
    text = f"{HEAD}    env_file: [{{path: more.env, required: false}}]\n    command: /m\n"
    (tmp_path / "compose.yaml").write_text(text)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    if name == "compose.yaml":
        with pytest.raises(InputError, match="no plain file"):
            read_service(tmp_path / name)
    else:
        assert read_service(tmp_path / "compose.yaml").command == ("/m",)


@pytest.mark.parametrize("name", ["compose.yaml", "more.env"])
def test_of_a_file_without_end_no_more_is_read_than_such_a_file_holds(name: str, tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(f"{HEAD}    env_file: more.env\n    command: /m\n")
    (tmp_path / name).unlink(missing_ok=True)
    with (tmp_path / name).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match=r"no text of at most|cannot be read"):
        read_service(tmp_path / "compose.yaml")


def test_the_example_of_the_documentation_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (GLM.parent.parent / "docs" / "systemd.md").read_text("utf-8").partition("attnfit compose check FILE")[2]
    block = text.partition("```console\n")[2].partition("```")[0]
    made, shows = block.split("\nEND\n$ attnfit ")
    command, told = shows.split("\n", 1)
    (tmp_path / "compose.yaml").write_text(made.removeprefix("$ cat > compose.yaml <<'END'\n") + "\n")
    (tmp_path / "examples").symlink_to(GLM.parent)
    monkeypatch.chdir(tmp_path)
    code, said = run(*command.split()[1:])
    assert code == 1
    assert told[told.index("---") : told.index("change:")] in said


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["compose", *words])
    assert done.exception is None or isinstance(done.exception, SystemExit | AttnfitError), done.exception
    return done.exit_code, done.output + str(done.exception or "")


def test_the_file_is_shown_first_and_written_only_with_yes(tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    text = (
        f"{HEAD}    environment:\n      - HF_TOKEN=hf_abcdefghijklmnopqrst\n    volumes: [{GLM.parent}:/models]\n"
        f"    gpus: all\n    command: --model /models/glm-5 --tensor-parallel-size 8 --dtype float16 --api-key {KEY}\n"
    )
    file.write_text(text)
    assert run("check", str(file), *GPU, "--quiet")[0] == 1
    code, said = run("fix", str(file), *GPU)
    assert code == 1
    assert "-    command: --model /models/glm-5 --tensor-parallel-size 8 --dtype float16" in said
    assert KEY not in said
    assert "hf_abc" not in said
    assert file.read_text() == text
    assert run("fix", str(file), *GPU, "--yes")[0] == 0
    assert file.read_text() == text.replace(" --dtype float16", "")
    assert "nothing is to be changed" in run("fix", str(file), *GPU)[1]


def test_a_service_whose_engine_stands_behind_the_image(tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text(
        "services:\n  q:\n    image: lmsysorg/sglang:v0.5.9\n    entrypoint: [python3, -m]\n"
        f"    volumes: [{GLM.parent}:/m]\n    command: [sglang.launch_server, --model-path, /m/x, --tp, '8',\n"
        "      --attention-backend, flashinfer]\n"
    )
    found = read_service(file)
    assert found.words[-9:-6] == ("lmsysorg/sglang:v0.5.9", "-m", "sglang.launch_server")
    assert found.words[found.image_at] == "lmsysorg/sglang:v0.5.9"
