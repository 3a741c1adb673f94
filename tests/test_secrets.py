"""A key, token or password that stands in a command or in a variable is never shown; the rest of the command is."""

from __future__ import annotations

import shlex

import pytest

from attnfit.engines.vllm.flags import known_releases, load_table
from attnfit.inputs.command import parse_command
from attnfit.inputs.secrets import clean, hide, is_secret

WORD = "Zx9SECRETkq"


@pytest.mark.parametrize("flag", ["--api-key", "--hf-token"])
def test_every_beginning_of_a_secret_flag_is_one_because_argparse_takes_it(flag: str) -> None:
    for end in range(3, len(flag) + 1):
        for words in ([flag[:end], WORD], [f"{flag[:end]}={WORD}"]):
            line = ["vllm", "serve", "m", *words, "--dtype", "half"]
            for shown in (
                " ".join(hide(line)),
                parse_command(line).display(),
                parse_command(shlex.join(line)).display(),
            ):
                assert WORD not in shown, words
                assert shown.endswith("--dtype half")
            assert WORD not in clean(f"refused: {WORD}", line)


@pytest.mark.parametrize("flag", ["--api-kee", "--api-kye", "--apikey", "--api_key", "--hf-tokn", "--hftoken"])
def test_a_misspelt_secret_flag_is_one_too(flag: str) -> None:
    assert WORD not in " ".join(hide(["vllm", "serve", "m", flag, WORD]))


def test_of_the_engines_own_flags_only_those_that_hold_a_secret_are_hidden() -> None:
    found = {option for release in known_releases() for flag in load_table(release).flags for option in flag.options}
    credentials = {"--allow-credentials", "--no-allow-credentials"}  # switches
    assert {option for option in found if is_secret(option)} - credentials == {"--api-key", "--hf-token"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            f"echo {WORD} | huggingface-cli login --token {WORD} && vllm serve m --dtype half",
            "huggingface-cli login --token $TOKEN && vllm serve m --dtype half",
        ),
        (f"wrapper --token {WORD} vllm serve m", "wrapper --token $TOKEN vllm serve m"),
        (f"vllm serve m --api-key {WORD} {WORD} > log", "vllm serve m --api-key $API_KEY $API_KEY > log"),
        (f"gateway --api-key {WORD} vllm serve m", "gateway --api-key $API_KEY vllm serve m"),
    ],
)
def test_only_the_secret_word_is_hidden_and_the_command_stays_usable(text: str, shown: str) -> None:
    assert hide([text])[0].endswith(shown)
    if "|" not in text and ">" not in text:
        assert " ".join(hide(shlex.split(text))) == shown


@pytest.mark.parametrize("url", ["http://u:SECRET@localhost:1", "https://SECRET@hub.example/x", "http://:SECRET@h"])
def test_no_password_of_an_address_is_printed_wherever_it_came_from(url: str) -> None:
    said = clean(f"a/b is no path here, and {url} cannot be reached", [])
    assert "SECRET" not in said
    assert said.endswith(" cannot be reached")
