"""Cold `attnfit check` against the real engine's own answer, in one run on one machine.

    python benchmarks/cold_start.py [--engine-python VENV/bin/python --libcuda DIR]

Measured from process start to process end: `attnfit check` on a config of this repository, and (with
--engine-python) a process that imports the installed vLLM and asks its selector one question: no weights, no GPU.
DIR holds a stub libcuda.so.1 for machines without a driver (docs/proofs.md says how to build one).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "examples" / "glm-5"
CHECK = [sys.executable, "-m", "attnfit", "check", "--gpu", "rtx-pro-6000", "-n", "8", "--engine", "vllm==0.33.0",
         "--", "vllm", "serve", str(MODEL), "--tensor-parallel-size", "8"]  # fmt: skip


def timed(argv: list[str], runs: int, env: dict[str, str] | None = None, stdin: str = "") -> list[float]:
    """Wall seconds of each run, after one run that warms the file cache."""
    seconds = []
    for _ in range(runs + 1):
        started = time.perf_counter()
        subprocess.run(
            argv, input=stdin, text=True, capture_output=True, env={**os.environ, **(env or {})}, check=False
        )
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine-python", help="python of a venv with the real vLLM")
    parser.add_argument("--libcuda", help="folder with a stub libcuda.so.1")
    parser.add_argument("--runs", type=int, default=21)
    args = parser.parse_args()

    own = timed(CHECK, args.runs)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / (1 if sys.platform == "darwin" else 1024)
    print(f"attnfit check: median {statistics.median(own):.3f} s, worst {max(own):.3f} s, {args.runs} runs")
    print(f"peak memory:   {peak / (1024 if sys.platform == 'darwin' else 1):.1f} MiB")
    if args.engine_python:
        env = {"LD_LIBRARY_PATH": args.libcuda} if args.libcuda else None
        ask = [args.engine_python, str(ROOT / "proofs" / "real_selector.py")]
        asked = {"capability": "12.0", "head_size": 576, "dtype": "bfloat16", "use_mla": True, "use_sparse": True}
        question = json.dumps(asked) + "\n"
        engine = timed(ask, max(1, args.runs // 7), env, question)
        median = statistics.median(engine)
        print(f"the engine:    median {median:.2f} s (import and select only), {len(engine)} runs")
        print(f"ratio:         {median / statistics.median(own):.0f}")


if __name__ == "__main__":
    main()
