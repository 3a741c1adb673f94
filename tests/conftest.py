"""No test reaches the network: unless it starts a hub of its own, the hub is an address that nobody answers at."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from attnfit.deploy import tree
from replay import Played, Stage

settings.register_profile("untimed", deadline=None)  # a deadline is a timed assert: it fails where others work too
settings.load_profile("untimed")

# huggingface_hub reads these when it is first imported
_home = tempfile.mkdtemp(prefix="attnfit-tests-")
os.environ.update(HF_ENDPOINT="http://127.0.0.1:9", HF_HOME=_home)
os.environ.update(HF_HUB_DISABLE_TELEMETRY="1", DO_NOT_TRACK="1")
for _name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",
              "HF_OIDC_RESOURCE", "VLLM_USE_MODELSCOPE"):  # fmt: skip
    os.environ.pop(_name, None)


def pytest_unconfigure() -> None:
    shutil.rmtree(_home, ignore_errors=True)


@pytest.fixture(autouse=True)
def _nobodys_reaper() -> Iterator[None]:
    """A test that runs an engine in this process makes it take in orphans, and the next tests' would stay zombies."""
    yield
    tree.prctl(tree.PR_SET_CHILD_SUBREAPER, 0)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    for pid in made.alive():  # whatever the test did wrong
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def play(stage: Stage) -> Iterator[Any]:
    started: list[Played] = []

    def start(*options: str, **how: Any) -> Played:
        started.append(stage.start("--grace", "2", *options, **how))
        return started[-1]

    yield start
    for each in started:
        each.close()
