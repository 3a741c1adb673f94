"""How long `attnfit check` takes with a plan: cold, from process start to process end, and the share of the plan.

    python benchmarks/planner.py [--runs 7] [--witness SOURCE]

From books and the shipped forms; with --witness (a wheel, a tree, "vllm==0.33.0") also from the engine's own code.
User CPU seconds stand beside the wall's: on a busy machine only the former can be compared.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GLM, QWEN = (str(ROOT / "examples" / name) for name in ("glm-5", "qwen3.5-397b-nvfp4"))
SGLANG = ["python", "-m", "sglang.launch_server", "--model-path", QWEN, "--tp", "8",
          "--attention-backend", "flashinfer", "--enable-flashinfer-allreduce-fusion"]  # fmt: skip
VLLM = ["vllm", "serve", GLM, "--tensor-parallel-size", "8", "--dtype", "float16"]
CASES = (  # what is asked, the GPU, the release, the launch
    ("story 1: two flags", "rtx-pro-6000-server", "sglang==0.5.9", SGLANG),
    ("story 2 on 0.33.0: a flag", "rtx-pro-6000-server", "vllm==0.33.0", VLLM),
    ("story 2 on 0.16.0: other releases, the other engine", "rtx-pro-6000-server", "vllm==0.16.0", VLLM),
    ("nothing helps: everything is looked at", "t4", "vllm==0.33.0", VLLM),
)


def timed(words: list[str], runs: int, env: dict[str, str]) -> tuple[list[float], list[float]]:
    """Wall and user seconds of each run, after one that warms the file cache."""
    wall, user = [], []
    for _ in range(runs + 1):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, time.perf_counter()
        subprocess.run(words, capture_output=True, env={**os.environ, **env}, check=False)
        wall.append(time.perf_counter() - began)
        user.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
    return wall[1:], user[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--witness", help="an engine source that answers in place of the book")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as empty:
        for name, gpu, engine, launch in CASES:
            check = [sys.executable, "-m", "attnfit", "check", "--gpu", gpu, "-n", "8", "--engine", engine]
            env = {"ATTNFIT_CACHE": empty, "ATTNFIT_OFFLINE": "1"}
            if args.witness:
                if not engine.startswith(args.witness.partition("==")[0]) or engine != args.witness:
                    continue
                check, env = [*check, "--witness", args.witness], {}
            whole, user = timed([*check, "--", *launch], args.runs, env)
            plain, plain_user = timed([*check, "--quiet", "--", *launch], args.runs, env)
            print(f"{name}: {statistics.median(whole):.2f} s, worst {max(whole):.2f}", end="; ")
            print(f"user {statistics.median(user):.2f} s", end="; ")
            print(f"without the plan {statistics.median(plain):.2f} s, user {statistics.median(plain_user):.2f} s")


if __name__ == "__main__":
    main()
