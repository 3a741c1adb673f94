"""Where no line is an engine's nothing is claimed, but for a message that is quoted; and what was written first."""

from __future__ import annotations

import pytest

from explain_logs import answer, kind

FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
FRAME = '  File "/opt/venv/lib/python3.12/site-packages/{}", line 7, in f\n    f()\n'
OTHERS = {
    "a client": (
        "Traceback (most recent call last):\n" + FRAME.format("litellm/main.py")
        + f"litellm.APIConnectionError: vllm: {FULL}\n"
    ),
    "a client, its error alone": f"litellm.exceptions.InternalServerError: vllm: {FULL}\n",
    "another client": "Traceback (most recent call last):\n" + FRAME.format("openai/_base_client.py") + f"{FULL}\n",
    "another engine": f"2026-11-20 10:00:00,123 - lmdeploy - ERROR - engine.py:1 - {FULL}\n",
    "a harness": f"2026-11-20 10:00:00,123 - bench.runner - ERROR - vllm said: {FULL}\n",
    "a history": (
        f"commit {'0a1b2c3d' * 5}\nAuthor: A <a@example.org>\nDate:   Mon Nov 30 10:00:00 2026\n\n"
        f"    Say more of {FULL}\n"
    ),
    "a short history": f"0a1b2c3 Handle {FULL.partition(': ')[2]}\nfedcba9 Tests\n",
    "a source file": (
        "# SPDX-License-Identifier: Apache-2.0\nimport torch\nfrom vllm.config import ModelConfig\n\n\n"
        "def verify(config: ModelConfig) -> None:\n    raise ValueError(\n"
        f'        "{FULL}"\n    )\n'
    ),
    "an issue": f"Hi, after upgrading vLLM I get {FULL} Any idea?\n",
    "an issue, by several": "We tried the model on two A100s and got CUDA out of memory after a minute.\n",
    "an issue, told": "When loading the model with vLLM on one GPU it crashes with CUDA out of memory.\n",
    "a long text that only names an engine": "vLLM notes\n" + "line of notes\n" * 20 + f"{FULL}\n",
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_is_claimed_of_a_text_that_no_engine_wrote(name: str) -> None:
    found = answer(OTHERS[name])
    assert (found.verdict, found.cause) == ("no log of an engine", None)


@pytest.mark.parametrize(
    "quoted",
    [
        FULL,
        f"RuntimeError: Worker failed with error '{FULL}'",
        "the launch:\nvllm serve org/m\n" + FULL,
        "Traceback (most recent call last):\n" + FRAME.format("torch/nn/modules/module.py") + FULL,
        "import torch\nx = torch.zeros(1 << 40, device='cuda')\n" + FULL,
        f"ERROR 11-20 10:00:00 [core.py:1] {FULL}",
        f"2026-11-20 10:00:00,123 - vllm.worker - ERROR - {FULL}",
    ],
)
def test_a_few_quoted_lines_are_answered(quoted: str) -> None:
    assert kind(quoted + "\n") == "gpu-memory"


BEGUN = "(APIServer pid=1) INFO 11-30 08:00:05 [api_server.py:233] vLLM API server version 0.32.0\n"
LATER = (
    "(Worker_TP0 pid=9) ERROR 11-30 08:10:35 [multiproc_executor.py:751] torch.distributed.DistStoreError: Timed out"
    " after 601 seconds waiting for clients. 1/2 clients joined.\n"
)
EARLIER = (
    "(Worker_TP1 pid=8) ERROR 11-30 08:00:31 [multiproc_executor.py:751] torch.AcceleratorError: CUDA error: no kernel"
    " image is available for execution on the device\n"
)


@pytest.mark.parametrize("log", [LATER + EARLIER, EARLIER + LATER], ids=["joined", "in order"])
def test_of_two_workers_the_one_that_failed_first_by_the_clock_is_answered(log: str) -> None:
    assert kind(BEGUN + log) == "no-kernel-image"


def test_where_no_time_is_printed_and_where_it_is_the_same_the_order_of_the_lines_decides() -> None:
    for old, new in (("11-30 08:00:31 ", ""), ("08:00:31", "08:10:35")):
        assert kind(BEGUN + LATER + EARLIER.replace(old, new)) == kind(BEGUN + LATER)


def test_a_year_that_turned_is_no_earlier_time() -> None:
    assert kind(BEGUN + LATER.replace("11-30", "12-31") + EARLIER.replace("11-30", "01-01")) == kind(BEGUN + LATER)


def test_in_a_loop_the_cause_of_the_first_start_is_named_where_it_is_another() -> None:
    start = BEGUN.replace("vLLM API server version 0.32.0", "non-default args: {'model': 'org/m'}")
    error = "(EngineCore pid=9) ERROR 11-30 08:00:37 [core.py:34] "
    first = "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8)."
    then = (
        "ValueError: Free memory on device (1.0/80.0 GiB) on startup is less than desired GPU memory utilization"
        " (0.9, 72.0 GiB)."
    )
    died = "\n(EngineCore pid=9) ERROR 11-30 08:00:38 [core.py:9] EngineCore failed to start.\n"
    found = answer(start + error + first + died + (start + error + then + died) * 3)
    assert any("number 1 (line 2)" in note and "AF217" in note for note in found.notes)
    alike = answer((start + error + first + died) * 3)
    assert not any("the first that failed" in note for note in alike.notes)
