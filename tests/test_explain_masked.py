"""What `attnfit explain` prints, in text and JSON, holds no key, token or password that stood in the log."""

from __future__ import annotations

import json

import pytest

from attnfit.report.explain import render
from attnfit.report.redact import masked, masked_all, redacted
from explain_logs import answer, kind

SECRETS = (
    "sk-proj-abcdefghij0123456789", "hf_abcdefghijklmnopqrstu", "ghp_abcdefghijklmnopqrstuvwxyz0123",
    "github_pat_11ABCDEFG0abcdefghijkl", "glpat-abcdefghijklmnopqrst", "xoxb-1234567890-abcdefghij",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA1234567890abcdefghijklmnopqrstu", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
)  # fmt: skip
SAID = (
    "could not log in with {}", "{{'api_key': ['{}'], 'max_tokens': 5}}", "hf_token='{}', top_k=1",
    'x "password": "{}"',
    "GET https://mirror.example/x?token={}&v=1", "Authorization: Bearer {}", "https://me:{}@mirror.example/x",
    "x-api-key: {}", "AZURE_KEY: '{}'", "wandb_api_key={}",
)  # fmt: skip


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("secret", [*SECRETS, "plain0secret1value2"])
def test_a_secret_is_hidden_however_it_was_printed(said: str, secret: str) -> None:
    if secret == "plain0secret1value2" and said.startswith("could not"):
        return  # nothing says that it is one
    line = said.format(secret)
    for shown in (masked(line), redacted(line), json.dumps(masked_all({"text": [line]}))):
        assert secret not in shown


def test_a_field_that_is_named_for_a_secret_has_no_value_in_the_answer() -> None:
    facts = {"api_key": ["a", "b"], "hf_token": "c", "max_tokens": 7, "tokenizer": "t", "model": "org/m"}
    assert masked_all(facts) == {**facts, "api_key": "$HIDDEN", "hf_token": "$HIDDEN"}


@pytest.mark.parametrize(
    "line",
    [
        "max_num_batched_tokens=8192, tokenizer='org/m', tokenizer_mode='auto', num_key_value_heads=8",
        "AssertionError: key 'model.layers.0.self_attn.q_proj.weight' is not among the tokens",
        "ValueError: basic attention, bearer of bad news: token 17 of 2048",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert masked(line) == line


@pytest.mark.parametrize(
    ("line", "gone"),
    [
        ("cannot reach tcp://gpu-node-17:29500", "gpu-node-17"), ("ssh alice@gpu-node-17", "gpu-node-17"),
        ("[fe80::1ff:fe23:4567:890a] is down", "fe80"), ("2001:db8::7 is down", "2001"),
        ("node gpu-node-17 died", "gpu-node-17"), (r"C:\Users\alice\models", "alice"), ("10.1.2.3 is down", "10.1.2.3"),
    ],
)  # fmt: skip
def test_what_is_pasted_names_no_machine_and_nobody(line: str, gone: str) -> None:
    assert gone not in redacted(line)


def test_what_is_pasted_keeps_what_was_said() -> None:
    line = "ValueError: No valid attention backend found for cuda with head_size=576 at selector.py:121"
    assert redacted(line) == line


@pytest.mark.parametrize("before", ["+ ", "$ ", "INFO: Running command: "])
def test_a_command_of_the_log_comes_back_whole_and_without_its_token(before: str) -> None:
    log = (
        f"{before}HF_TOKEN=abc vllm serve org/m --max-num-seqs 512\n(EngineCore_DP0 pid=1) ERROR 11-20 10:00:00 "
        "[core.py:1] ValueError: max_num_seqs (512) exceeds available Mamba cache blocks (301).\n"
    )
    assert "HF_TOKEN=$HF_TOKEN vllm serve org/m --max-num-seqs 301\n" in render(answer(log.encode()))


def test_a_line_that_launches_which_go_on_print_too_is_not_the_cause_of_another_failure() -> None:
    worker = "(Worker_TP0 pid=211) ERROR 11-20 10:01:02 [multiproc_executor.py:867]"
    log = (
        "(EngineCore_DP0 pid=150) ERROR 11-20 10:00:30 [fa_utils.py:64] Cannot use FA version 3 is not supported due "
        "to FA3 is only supported on devices with compute capability 9.0\n"
        f"{worker} Traceback (most recent call last):\n{worker} SafetensorError: MetadataIncompleteBuffer\n"
    )
    assert kind(log.encode()) != "fa-version"


@pytest.mark.parametrize(
    "request_line",
    [
        "(APIServer pid=1) INFO 11-20 10:01:00 [logger.py:41] Received request c-1: prompt: 'EngineDeadError?'",
        "[2026-11-20 10:01:00] Receive: obj=GenerateReqInput(text='Received sigquit from a child process')",
    ],
    ids=["vllm", "sglang"],
)
def test_a_request_that_quotes_an_engine_s_last_words_does_not_end_it(request_line: str) -> None:
    log = (
        "(APIServer pid=1) INFO 11-20 10:00:01 [utils.py:299] vLLM API server version 0.28.0, serving model\n"
        "(APIServer pid=1) INFO:     Application startup complete.\n"
        f"{request_line}\n"
        '(APIServer pid=1) INFO:     10.0.0.1:5000 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    )
    assert answer(log.encode()).verdict == "no failure"
