"""The command line: what goes to stdout and stderr, exit codes, and what text looks like (tests/snapshots)."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from attnfit import cli

ROOT = Path(__file__).parent.parent
SNAPSHOTS = Path(__file__).parent / "snapshots"
LAUNCH = ["--", "vllm", "serve", "examples/glm-5", "--tensor-parallel-size", "8"]
SM120 = ["check", "--gpu", "rtx-pro-6000-server", "-n", "8", "--engine", "vllm==0.33.0"]


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("NO_COLOR", "TERM", "ATTNFIT_GPU", "ATTNFIT_ENGINE"):
        monkeypatch.delenv(name, raising=False)


def run(*words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["attnfit", *words])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    out, err = capsys.readouterr()
    return int(exit_.value.code or 0), out, err


class Run:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._fixtures = {"monkeypatch": monkeypatch, "capsys": capsys}

    def __call__(self, *words: str) -> tuple[int, str, str]:
        return run(*words, **self._fixtures)  # type: ignore[arg-type]


@pytest.fixture
def attnfit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(monkeypatch, capsys)


def same_as_snapshot(name: str, text: str) -> None:
    """ATTNFIT_WRITE_SNAPSHOTS=1 writes them anew; read the diff before you commit it."""
    path = SNAPSHOTS / name
    if os.environ.get("ATTNFIT_WRITE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("passes.txt", [*SM120, *LAUNCH], 0),
        ("refused-by-the-selector.txt", [*SM120, *LAUNCH, "--dtype", "float16"], 1),
        ("misspelt-flag.txt", [*SM120, *LAUNCH, "--dtpye", "float16"], 1),
        ("quiet.txt", [*SM120, "--quiet", *LAUNCH, "--dtype", "float16"], 1),
        ("fix.txt", [*SM120, "--fix", *LAUNCH, "--dtype", "float16"], 1),
        ("story-2.txt", [*SM120[:-1], "vllm==0.16.0", *LAUNCH, "--dtype", "float16"], 1),
    ],
)
def test_text_is_what_it_was(attnfit: Run, name: str, words: list[str], code: int) -> None:
    got, out, err = attnfit(*words)
    assert (got, err) == (code, "")
    same_as_snapshot(name, out)


def test_no_line_is_wider_than_80_columns_but_a_command_to_copy(attnfit: Run) -> None:
    _, out, _ = attnfit(*SM120, "--all", *LAUNCH, "--dtype", "float16")
    assert not [line for line in out.splitlines() if len(line) > 80 and "vllm serve" not in line]


def test_json_has_the_documented_keys_and_the_exit_code(attnfit: Run) -> None:
    code, out, _ = attnfit(*SM120, "--json", *LAUNCH, "--dtype", "float16")
    answer = json.loads(out)
    assert answer["schema"] == 1
    assert answer["exit_code"] == code == 1
    documented = (ROOT / "docs" / "json.md").read_text("utf-8")
    for key in [*answer, *answer["launch"], *answer["launch"]["selector_configs"][0]]:
        assert f"`{key}`" in documented, f"{key} is not documented"
    assert all(reason["where"] for b in answer["launch"]["selector_configs"][0]["backends"] for reason in b["reasons"])


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["check", *LAUNCH], 2, "no GPU"),
        (["check", "--gpu", "h9000", *LAUNCH], 2, "unknown GPU 'h9000'"),
        (["check", "--gpu", "h200x8", "-n", "4", *LAUNCH], 2, "-n says 4"),
        (["check", "--gpu", "h200", "--engine", "vllm==", *LAUNCH], 2, "no release behind"),
        (["check", "--gpu", "h200", "--engine", "vllm>=0.16", *LAUNCH], 2, "names no single release"),
        (["check", "--gpu", "h200", "--engine", "vllm==banana", *LAUNCH], 2, "banana"),
        (["check", "--gpu", "h200", "--engine", "vllm==0.9.0", *LAUNCH], 3, "0.12.0"),
        (["check", "--gpu", "h200", "--env", "flashinfer", *LAUNCH], 2, "FACT=yes"),
        (["check", "--gpu", "h200", "--", "vllm", "serve", "no/such/dir/x"], 2, "no/such/dir/x"),
        (["check", "--gpu", "h200", "--", "vllm", "serve", "zai-org/GLM-5"], 3, "zai-org/GLM-5"),
        (["check", "--gpu", "h200", "--no-such-option"], 2, "No such option"),
        (["check", "--gpu", "h200", "--", "ls", "-l"], 2, "ls"),
    ],
)
def test_bad_input_is_one_error_with_the_right_exit_code(attnfit: Run, words: list[str], code: int, says: str) -> None:
    got, out, err = attnfit(*words)
    assert got == code
    assert out == ""
    assert says in err
    assert "Traceback" not in err


def test_a_fault_of_ours_is_one_sentence_too(attnfit: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr("attnfit.api.check", broken)
    code, _, err = attnfit(*SM120, *LAUNCH)
    assert code == 2
    assert "internal error, ZeroDivisionError: boom" in err
    assert "Traceback" not in err


SECRET = "sEcReTvAlUe123456789"


@pytest.mark.parametrize(
    "command",
    [
        ["HF_TOKEN=@", "vllm", "serve", "examples/glm-5", "--dtype", "float16", "--api-key", "@"],
        ["vllm", "serve", "examples/glm-5", "--api-kye", "@"],
        ["vllm", "serve", "examples/glm-5", "--authorization", "Bearer @"],
        ["vllm", "serve", "examples/glm-5", "--hf-tok", "@"],
        ["vllm", "serve", "examples/glm-5", "--ssl-keyfile-password=@"],
        ["vllm", "serve", "examples/glm-5", "@"],
        ["vllm", "serve", "examples/glm-5", "--dtype", "float16", "--hf-overrides", '{"api_key": "@"}'],
        ["vllm", "serve", "examples/glm-5", "--speculative-config", '{"token": "@"'],
        ["vllm", "serve", "https://user:@@huggingface.co/a/b"],
        [
            "docker",
            "run",
            "-e",
            '"HF_TOKEN=@"',
            "vllm/vllm-openai:v0.33.0",
            "--model",
            "examples/glm-5",
            "--dtype",
            "half",
        ],
        ["srun", "--export=ALL,HF_TOKEN=@", "vllm", "serve", "examples/glm-5", "--dtype", "float16"],
        ["bash", "-c", 'curl -H "Authorization: Bearer @" x; vllm serve examples/glm-5 --dtype float16'],
    ],
)
def test_secrets_in_the_command_are_not_printed(attnfit: Run, command: list[str]) -> None:
    words = [word.replace("@", SECRET, 1) for word in command]
    for form in ([], ["--json"], ["--fix"]):
        _, out, err = attnfit(*SM120, *form, "--", *words)
        assert SECRET not in out + err, form


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--num-gpu-blocks-override", "0"], "more than 0"),
        (["--max-num-seqs", "99999"], "give --max-num-batched-tokens 99999 too"),
        (["--tensor-parallel-size", "8", "--data-parallel-size", "8"], "64 GPUs are needed"),
    ],
)
def test_what_nobody_means_does_not_pass(attnfit: Run, flags: list[str], says: str) -> None:
    code, out, _ = attnfit(*SM120, *LAUNCH[:4], *flags)
    assert code == 3
    assert says in " ".join(out.split())


def test_a_launch_without_flags_can_be_refused_too(attnfit: Run) -> None:
    code, out, err = attnfit("check", "examples/glm-5", "--gpu", "t4", "--engine", "vllm==0.33.0")
    assert (code, err) == (1, "")
    assert "because: compute capability 7.5 and sparse MLA attention: either alone is served" in " ".join(out.split())
    assert "no change found; the engine stops at stage selector" in " ".join(out.split())


def test_visible_gpus_are_the_gpus_there_are(attnfit: Run) -> None:
    code, _, _ = attnfit(*SM120, "--quiet", "--", "CUDA_VISIBLE_DEVICES=0", *LAUNCH[1:])
    assert code == 1


@pytest.mark.parametrize("counted", [[], ["-n", "1"]])
@pytest.mark.parametrize("hides", ["", "-1", "-1,0", ","])
def test_a_launch_that_hides_every_gpu_is_one_error_however_many_there_are(
    attnfit: Run, counted: list[str], hides: str
) -> None:
    for front in ([f"CUDA_VISIBLE_DEVICES={hides}"], ["sudo", f"CUDA_VISIBLE_DEVICES={hides}"]):
        code, out, err = attnfit("check", "--gpu", "h200", *counted, "--", *front, *LAUNCH[1:])
        assert (code, out) == (2, "")
        assert f"no GPU is visible to the server: the command sets CUDA_VISIBLE_DEVICES='{hides}'; drop it" in err


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve", "vllm serve --port 1", "vllm serve --config", "bash -c 'vllm serve'", "sglang serve",
        "python -m sglang.launch_server", "docker run vllm/vllm-openai:v0.33.0", "ssh box vllm serve",
    ],
)  # fmt: skip
def test_a_launch_that_names_no_model_is_one_error(attnfit: Run, command: str) -> None:
    code, out, err = attnfit("check", "--gpu", "h200", "--", *shlex.split(command))
    assert (code, out) == (2, "")
    assert "the command names no model: add one to it" in err
    assert "fault of attnfit" not in err


def test_an_unknown_environment_fact_is_an_error_that_lists_the_known(attnfit: Run) -> None:
    code, _, err = attnfit(*SM120, "--env", "flashinfre=no", *LAUNCH)
    assert code == 2
    assert "did you mean 'flashinfer'?" in err


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(attnfit: Run, tmp_path: Path) -> None:
    pipe = tmp_path / "flags.yaml"
    os.mkfifo(pipe)
    code, _, err = attnfit(*SM120, *LAUNCH, "--config", str(pipe))
    assert code == 2
    assert "no regular file" in err


def test_defaults_come_from_flag_then_variable_then_file(
    attnfit: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "attnfit"
    folder.mkdir()
    (folder / "attnfit.toml").write_text('[check]\ngpu = "h200x8"\nengine = "vllm==0.33.0"\n', "utf-8")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert "H200" in attnfit("check", *LAUNCH)[1]
    monkeypatch.setenv("ATTNFIT_GPU", "b200x8")
    assert "B200" in attnfit("check", *LAUNCH)[1]
    assert "H100" in attnfit("check", "--gpu", "h100x8", *LAUNCH)[1]


def test_colour_is_for_terminals_and_for_those_who_ask(attnfit: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" not in attnfit(*SM120, *LAUNCH)[1]
    assert "\x1b[" in attnfit("--color", "always", *SM120, *LAUNCH)[1]


def test_lists_know_what_check_knows(attnfit: Run) -> None:
    assert "vllm    0.33.0" in attnfit("engines")[1]
    assert "FLASHINFER_MLA_SPARSE_SM120" in attnfit("backends", "--engine", "vllm==0.33.0")[1]
    rows = json.loads(attnfit("gpus", "--json")[1])["gpus"]
    assert any(row["name"].startswith("H200") and row["capability"] == "9.0" for row in rows)


def test_diff_says_what_changes_between_two_releases(attnfit: Run) -> None:
    code, out, _ = attnfit(
        "diff", "vllm", "0.16.0", "0.33.0", "examples/glm-5", "--gpu", "rtx-pro-6000-server", "-n", "8"
    )
    assert code == 0
    assert "FLASHINFER_MLA_SPARSE_SM120 is new and accepts" in out


def test_completion_scripts_for_three_shells(attnfit: Run) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_ATTNFIT_COMPLETE" in attnfit("completion", shell)[1]


def test_the_way_of_check_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['attnfit', 'check', 'examples/glm-5', '--gpu', 'h200x8', '--quiet']\n"
        "from attnfit.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'vllm', 'numpy', 'rich', 'pynvml', 'asyncio', 'yaml'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--json", "--quiet"], "--json and --quiet"),
        (["--fix", "--json"], "--json and --fix"),
        (["--fix", "--quiet"], "--quiet and --fix"),
        (["--env", "flashinfer=no", "--env", "flashinfer=yes"], "both yes and no of flashinfer"),
    ],
)
def test_options_that_contradict_each_other_are_an_error(attnfit: Run, words: list[str], says: str) -> None:
    code, out, err = attnfit(*SM120, *words, *LAUNCH)
    assert (code, out) == (2, "")
    assert says in err


@pytest.mark.parametrize("option", [["--fix"], ["--quiet"], ["--all"], ["--strict"], ["--witness", "installed"]])
def test_an_option_that_a_batch_would_ignore_is_an_error(attnfit: Run, tmp_path: Path, option: list[str]) -> None:
    lines = tmp_path / "lines"
    lines.write_text("", "utf-8")
    code, _, err = attnfit("check", "--batch", str(lines), *option)
    assert code == 2
    assert f"leave {option[0]} away" in err


def test_a_batch_counts_the_gpus_given_for_all_lines() -> None:
    from attnfit.batch import answers

    (reply,) = answers([b'{"command": "vllm serve examples/glm-5 -tp 8"}'], gpu="h200", count=4, engine="vllm==0.33.0")
    assert "World size (8) is larger than the number of available GPUs (4)" in reply["error"]


def test_the_password_in_hf_endpoint_is_not_printed(attnfit: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://u:{SECRET}@localhost:1")
    for words in (["check", "--gpu", "h200", "a/b"], ["model", "a/b"], ["check", "--gpu", "h200", "--json", "a/b"]):
        _, out, err = attnfit(*words)
        assert SECRET not in out + err


@pytest.mark.parametrize("questions", ["-5", "0", "999"])
def test_no_book_is_written_from_too_few_questions(attnfit: Run, questions: str) -> None:
    code, _, err = attnfit("learn", "vllm==0.33.0", "--offline", "--questions", questions)
    assert code == 2
    assert "x>=1000" in err


def test_learn_asks_the_engine_whose_release_is_given(attnfit: Run, tmp_path: Path) -> None:
    """An engine without rule books keeps the release's source files at hand, and says where."""
    (tmp_path / "python" / "sglang" / "srt").mkdir(parents=True)
    code, out, err = attnfit("learn", str(tmp_path))
    assert (code, out.strip(), err) == (0, str(tmp_path / "python"), "")
    code, _, err = attnfit("learn", str(tmp_path), "--folder", str(tmp_path / "books"))
    assert code == 2
    assert "no rule books" in err
    (tmp_path / "vllm" / "platforms").mkdir(parents=True)
    code, _, err = attnfit("learn", str(tmp_path))
    assert "vllm" in err


def test_learn_says_so_where_no_engine_is_installed(attnfit: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    code, _, err = attnfit("learn", "installed")
    assert code == 3
    assert "no engine is installed" in err


@pytest.mark.parametrize("source", ["nowhere", "nothing==1.0", "x/y"])
def test_learn_names_the_engines_there_are(attnfit: Run, source: str) -> None:
    code, _, err = attnfit("learn", source)
    assert code == 2
    assert "vllm" in err
    assert "sglang" in err


@pytest.mark.parametrize(("given", "meant"), [("--task", None), ("--bogus", None), ("--dtpye", "--dtype")])
def test_only_a_flag_that_is_close_is_taken_for_the_one_meant(attnfit: Run, given: str, meant: str | None) -> None:
    _, out, _ = attnfit(*SM120, "--json", *LAUNCH, given, "x")
    detail = json.loads(out)["launch"]["detail"]
    assert detail.endswith(f"; did you mean {meant!r}?" if meant else f"unrecognized arguments: {given}")


def test_words_that_belong_to_no_flag_are_shown_where_they_can_be_no_key(attnfit: Run) -> None:
    _, out, _ = attnfit(*SM120, *LAUNCH, "foo", "bar.yaml", SECRET)
    assert "unrecognized arguments: foo bar.yaml ..." in out


def test_lists_fit_a_terminal_and_their_json_has_a_schema(attnfit: Run) -> None:
    documented = (ROOT / "docs" / "json.md").read_text("utf-8")
    for words in (["gpus"], ["engines"], ["backends"], ["backends", "--engine", "vllm==0.12.0"]):
        assert max(map(len, attnfit(*words)[1].splitlines())) <= 80
        found = json.loads(attnfit(*words, "--json")[1])
        assert found["schema"] == 1
        for key in [*found, *found[words[0]][0]]:
            assert f"`{key}`" in documented, key


def test_diff_takes_its_releases_in_either_form(attnfit: Run) -> None:
    end = ["examples/glm-5", "--gpu", "h200x8", "--json"]
    one = attnfit("diff", "vllm", "0.23.0", "0.33.0", *end)
    assert attnfit("diff", "vllm==0.23.0", "vllm==0.33.0", *end) == one
    found = json.loads(one[1])
    assert (found["schema"], found["old"]["release"], found["new"]["release"]) == (1, "0.23.0", "0.33.0")
    assert attnfit("diff", "vllm==0.23.0", "examples/glm-5", "--gpu", "h200x8")[0] == 2
