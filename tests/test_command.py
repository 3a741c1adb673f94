"""A launch command is understood in the form people use, and comes back in the same form."""

from __future__ import annotations

import contextlib
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnfit.errors import UsageError
from attnfit.inputs.command import parse_command

PLAIN = ("./m", "-tp", "8")
FORMS = [
    "vllm serve ./m -tp 8",
    "/opt/venv/bin/vllm serve ./m -tp 8",
    "python -m vllm.entrypoints.cli.main serve ./m -tp 8",
    "python3.12 -u -X dev -m vllm.entrypoints.cli.main serve ./m -tp 8",
    "python /opt/venv/bin/vllm serve ./m -tp 8",
    "A=1 B='x y' vllm serve ./m -tp 8",
    "env -u HF_HOME A=1 vllm serve ./m -tp 8",
    "uv run --with vllm==0.16.0 vllm serve ./m -tp 8",
    "uv run --directory /srv/app -- vllm serve ./m -tp 8",
    "uvx --from vllm==0.16.0 vllm serve ./m -tp 8",
    "poetry run vllm serve ./m -tp 8",
    "conda run -n serving --no-capture-output vllm serve ./m -tp 8",
    "srun -N 2 --job-name vllm --gres gpu:8 vllm serve ./m -tp 8",
    "mpirun -np 2 -x NCCL_DEBUG=INFO vllm serve ./m -tp 8",
    "nohup nice -n 10 vllm serve ./m -tp 8",
    "numactl --cpunodebind=0 -m 0 taskset -c 0-31 vllm serve ./m -tp 8",
    "taskset 0xff vllm serve ./m -tp 8",
    "timeout -k 5 10m sudo -E vllm serve ./m -tp 8",
    "time vllm serve ./m -tp 8",
    "./with_env.sh vllm serve ./m -tp 8",
    "bash -c 'vllm serve ./m -tp 8'",
    "bash -lc 'cd /srv && exec vllm serve ./m -tp 8 2>&1 | tee log'",
    "sh -euxc 'export A=1; source /opt/venv/bin/activate; vllm serve ./m -tp 8'",
    "ssh gpu1 vllm serve ./m -tp 8",
    "docker run --rm -it --gpus all -p 8000:8000 --ipc=host vllm/vllm-openai:v0.16.0 ./m -tp 8",
    "docker run -d --name vllm --entrypoint vllm -e A=1 my/image:7 serve ./m -tp 8",
    "docker run --entrypoint bash vllm/vllm-openai:v0.16.0 -c 'vllm serve ./m -tp 8'",
    "docker compose -f a.yml run --rm --service-ports -e A=1 llm vllm serve ./m -tp 8",
    "docker-compose run --entrypoint bash llm -c 'vllm serve ./m -tp 8'",
    "docker compose exec llm vllm serve ./m -tp 8",
    "apptainer exec --nv --cleanenv i.sif vllm serve ./m -tp 8",
    "podman run --device nvidia.com/gpu=all -v /m:/m:ro docker.io/vllm/vllm-openai:v0.16.0-cu130 ./m -tp 8",
]


@pytest.mark.parametrize("line", FORMS)
@pytest.mark.parametrize("one_string", [False, True])
def test_every_form_means_the_same_launch(line: str, one_string: bool) -> None:
    given_words = [line] if one_string else shlex.split(line)
    command = parse_command(line if one_string else given_words)
    assert (command.engine, command.form, command.argv, command.model) == ("vllm", "serve", PLAIN, "./m")
    assert command.render(command.argv) == given_words
    changed = (*PLAIN[:1], "--dtype", "bfloat16", "--served-model-name", "a b; $X `c` 'd'")
    again = parse_command(command.render(changed))
    assert again.argv == changed
    assert again.env == command.env
    assert again.image_release == command.image_release


def test_the_older_entry_point() -> None:
    for line in (
        "python -m vllm.entrypoints.openai.api_server --model ./m -tp 8",
        "torchrun --nproc-per-node 8 -m vllm.entrypoints.openai.api_server --model ./m -tp 8",
        "python -m torch.distributed.run --nnodes 2 -m vllm.entrypoints.openai.api_server --model ./m -tp 8",
    ):
        command = parse_command(line)
        assert command.form == "module"
        assert command.model == "./m"
        assert command.argv == ("--model", "./m", "-tp", "8")


def test_the_model_need_not_come_first() -> None:
    assert parse_command("vllm serve -tp 8 ./m").model == "./m"
    assert parse_command("vllm serve --enforce-eager ./m").model == "./m"
    assert parse_command("vllm serve --model=./m").model == "./m"
    assert parse_command("vllm serve --port 1").model is None


def test_lines_and_quotes() -> None:
    text = 'vllm serve ./m \\\n  --hf-overrides \'{"a": 1}\' \\\n  --served-model-name "x y"  # as last week\n'
    assert parse_command(text).argv == ("./m", "--hf-overrides", '{"a": 1}', "--served-model-name", "x y")


def test_redirections_stay() -> None:
    command = parse_command("vllm serve ./m 2>&1 > log --port 1 && echo done")
    assert command.argv == ("./m", "--port", "1")
    assert command.render(["./m"]) == ["vllm serve ./m 2>&1 > log && echo done"]


def test_variables_are_expanded_only_from_the_command() -> None:
    command = parse_command("bash -c 'export M=./m; vllm serve $M --port ${PORT} --host ${HOST:-0.0.0.0}'")
    assert command.argv == ("./m", "--port", "${PORT}", "--host", "0.0.0.0")
    assert any("$PORT is not set" in note for note in command.notes)
    assert "${PORT}" in command.render([*command.argv, "--x"])[-1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "no command"),
        ("vllm", "starts no server"),
        ("vllm bench latency", "starts no server"),
        ("vllm sreve ./m", "did you mean 'serve'"),
        ("vlm serve ./m", "did you mean 'vllm'"),
        ("bash run.sh", "runs a script"),
        ("docker compose up", "docker run IMAGE"),
        ("docker run", "image"),
        ("docker run some/image:1 --model ./m", "entry point"),
        ("bash -c 'vllm serve $(cat m)'", "must be run by a shell"),
        ("bash -c 'vllm serve `cat m`'", "must be run by a shell"),
        ("bash -c 'vllm serve ${M%/}'", "plain variable"),
        ('bash -c "vllm serve \'m"', "unbalanced"),
        ("vllm serve 'm", "unbalanced"),
        ("vllm serve \0", "NUL"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_sentence(line: str, words: str) -> None:
    with pytest.raises(UsageError, match=".*".join(words.split(" ")[:1])) as caught:
        parse_command(line)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_image_names_the_release() -> None:
    assert parse_command("docker run vllm/vllm-openai:v0.16.0 m").image_release == "0.16.0"
    assert parse_command("docker run ghcr.io/x/vllm-openai:0.33.0-cu129 m").image_release == "0.33.0"
    assert parse_command("docker run localhost:5000/vllm-openai:v0.17.1 m").image_release == "0.17.1"
    latest = parse_command("docker run vllm/vllm-openai m")
    assert latest.image_release is None
    assert any("no release" in note for note in latest.notes)
    assert not latest.files_here
    assert parse_command("uv run --with 'vllm[audio]==0.16.0' vllm serve m").required_release == "0.16.0"


@pytest.mark.parametrize(
    ("line", "arrives"),
    [
        ("A=1 sudo vllm serve m", []),
        ("A=1 B=2 sudo -u me --preserve-env=B,C nohup vllm serve m", ["B"]),
        ("A=1 sudo -HE vllm serve m", ["A"]),
        ("A=1 sudo --preserve-env vllm serve m", ["A"]),
        ("A=1 sudo B=2 vllm serve m", ["B"]),
        ("A=1 doas vllm serve m", []),
        ("A=1 nohup sudo env B=2 vllm serve m", ["B"]),
        ("bash -c 'export A=1; sudo vllm serve m'", []),
        ("A=1 ssh host B=2 vllm serve m", ["B"]),
        ("A=1 nohup vllm serve m", ["A"]),
        ("A=1 apptainer exec --nv i.sif vllm serve m", ["A"]),
        ("A=1 apptainer exec --cleanenv i.sif vllm serve m", []),
        ("A=1 singularity run -C --env B=2 i.sif vllm serve m", ["B"]),
        ("APPTAINERENV_B=2 A=1 apptainer exec -e i.sif vllm serve m", ["B"]),
        ("A=1 docker compose run -e B=2 llm vllm serve m", ["B"]),
    ],
)
def test_a_variable_counts_only_where_it_arrives(line: str, arrives: list[str]) -> None:
    command = parse_command(line)
    assert list(command.env) == arrives
    told = not any(word in line for word in ("ssh", "docker"))
    lost = [name for name in ("A", "B") if f"{name}=" in line and name not in arrives and told]
    assert all(any(note.startswith(name) and "in front of" in note for note in command.notes) for name in lost)


def test_where_it_runs_and_on_what() -> None:
    assert parse_command("/opt/venv/bin/vllm serve m").prefix == "/opt/venv"
    assert parse_command("bash -c '. /v/bin/activate && vllm serve m'").prefix == "/v"
    assert parse_command("conda run -n x vllm serve m").conda_env == "x"
    assert parse_command("CUDA_VISIBLE_DEVICES=2,3 vllm serve m").visible_gpus == ("2", "3")
    assert parse_command("CUDA_VISIBLE_DEVICES= vllm serve m").gpu_count == 0
    assert parse_command("docker run --gpus '\"device=0,1\"' vllm/vllm-openai:v0.16.0 m").gpu_count == 2
    assert parse_command("docker run --gpus 4 vllm/vllm-openai:v0.16.0 m").gpu_count == 4
    assert parse_command("docker run --gpus all vllm/vllm-openai:v0.16.0 m").gpu_count is None


@pytest.mark.parametrize(
    "line",
    [
        "HF_TOKEN=hunter2 vllm serve m --api-key hunter2 hunter2 --port 1",
        "vllm serve m --api-key=hunter2 --hf-token hunter2",
        "docker run -e HF_TOKEN=hunter2 --env=OPENAI_API_KEY=hunter2 vllm/vllm-openai:v0.16.0 m",
        "bash -c 'export AWS_SECRET_ACCESS_KEY=hunter2; DB_PASSWORD=hunter2 vllm serve m --api-key hunter2'",
        "vllm serve https://me:hunter2@host/m",
    ],
)
def test_a_secret_is_never_shown(line: str) -> None:
    for command in (parse_command(line), parse_command(shlex.split(line))):
        shown = command.display([*command.argv, "--dtype", "half"])
        assert "hunter2" not in shown
        assert "$" in shown
        assert "hunter2" in " ".join(command.render(command.argv))  # only the display hides it


def test_ordinary_flags_are_not_taken_for_secrets() -> None:
    line = "vllm serve m --tokenizer t --max-num-batched-tokens 8192 --ssl-keyfile k.pem --tokens-only"
    assert parse_command(shlex.split(line)).display() == line


WORD = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=12)
HEADS = st.sampled_from([f for f in FORMS if f.endswith("./m -tp 8")]).map(lambda f: f.removesuffix("./m -tp 8"))


@settings(max_examples=200, deadline=None)
@given(HEADS, st.lists(WORD, max_size=6), st.lists(WORD, max_size=6))
def test_any_arguments_come_back(head: str, first: list[str], second: list[str]) -> None:
    command = parse_command([*shlex.split(head), *first])
    assert command.argv == tuple(first)
    assert parse_command(command.render(second)).argv == tuple(second)


@settings(max_examples=200, deadline=None)
@given(st.lists(WORD, max_size=6))
def test_any_arguments_come_back_through_a_shell_string(argv: list[str]) -> None:
    for start in (["bash", "-c", "cd /x; vllm serve ./m --y"], ["A=1 vllm serve ./m --y"]):
        assert parse_command(parse_command(start).render(argv)).argv == tuple(argv)


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(max_size=80),
        st.lists(st.text(max_size=20), max_size=6),
        st.binary(max_size=60).map(lambda b: b.decode("latin-1")),
    )
)
def test_noise_is_one_clear_error(noise: object) -> None:
    for prefix in ("", "bash -c ", "docker run ", "vllm serve ", "env "):
        line = prefix + noise if isinstance(noise, str) else [*prefix.split(), *noise]  # type: ignore[misc]
        with contextlib.suppress(UsageError):
            parse_command(line).display()


def test_sizes() -> None:
    big = "x" * (1 << 20)
    assert parse_command(["vllm", "serve", "m", "--x", big]).argv[-1] == big
    with pytest.raises(UsageError, match="MiB"):
        parse_command(["vllm", "serve", *[big] * 5])
    nested = "vllm serve m"
    for _ in range(12):
        nested = "bash -c " + shlex.quote(nested)
        if len(nested) > 1 << 20:
            break
    with pytest.raises(UsageError):
        parse_command(nested)


def test_a_container_is_given_as_many_gpus_as_it_is_given() -> None:
    def count(value: str) -> int | None:
        return parse_command(["docker", "run", "--gpus", value, "vllm/vllm-openai:v0.16.0", "m"]).gpu_count

    assert [count(value) for value in ("device=0", '"device=0"', "device=3", '"device=0,1"', "device=GPU-ab-1")] == [
        1, 1, 1, 2, 1,
    ]  # fmt: skip
    assert count('"device=0,1","capabilities=compute,utility"') == 2
    assert (count("count=2"), count("2"), count("count=-1"), count("all")) == (2, 2, None, None)
    cdi = [
        "podman",
        "run",
        "--device",
        "nvidia.com/gpu=0",
        "--device",
        "nvidia.com/gpu=2",
        "vllm/vllm-openai:v1.2.3",
        "m",
    ]
    assert parse_command(cdi).visible_gpus == ("0", "2")


def test_a_tool_pinned_to_a_release_is_the_server() -> None:
    for line in ("uvx vllm@0.16.0 serve ./m -tp 8", "uvx 'vllm[audio]@0.16.0' serve ./m -tp 8"):
        command = parse_command(shlex.split(line))
        assert (command.argv, command.required_release) == (PLAIN, "0.16.0")
        assert command.render(command.argv) == shlex.split(line)
