"""Cold `attnfit where` and `attnfit which`, process start to process end, over directories with a config.json.

    python benchmarks/fleet.py [--engine vllm==0.33.0] [--gpu h100x8] DIR...

Prints the median, the 90th percentile and the longest, of the clock and of the processor (which says more on a busy
machine), and how the answers came out. No engine sources are used
but those in ATTNFIT_CACHE; set it to an empty directory to measure what is shipped.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ATTNFIT = [sys.executable, "-m", "attnfit.cli"]


def timed(words: list[str]) -> tuple[float, float, dict[str, object]]:
    start, used = time.perf_counter(), _processor()
    done = subprocess.run([*ATTNFIT, *words, "--json"], capture_output=True, check=False)
    took = time.perf_counter() - start
    if done.returncode not in (0, 3):
        sys.exit(f"{' '.join(words)} exited {done.returncode}: {done.stderr.decode()}")
    return took, _processor() - used, json.loads(done.stdout)


def _processor() -> float:
    """Seconds of processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _said(times: list[float]) -> str:
    times.sort()
    return f"{times[len(times) // 2]:.2f} / {times[len(times) * 9 // 10]:.2f} / {times[-1]:.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--engine", default="vllm==0.33.0")
    parser.add_argument("--gpu", default="h100x8")
    args = parser.parse_args()
    models = sorted(str(path.parent) for folder in args.folders for path in folder.rglob("config.json"))
    asked = {
        f"where --engine {args.engine}": ["where", "--engine", args.engine],
        f"which --engine {args.engine.partition('==')[0]}": ["which", "--gpu", args.gpu, "--engine", args.engine],
        "which, every engine": ["which", "--gpu", args.gpu],
    }
    for name, words in asked.items():
        clock: list[float] = []
        processor: list[float] = []
        answers: Counter[str] = Counter()
        for model in models:
            took, used, answer = timed([words[0], model, *words[1:]])
            clock.append(took)
            processor.append(used)
            if "engines" in answer:
                for engine in answer["engines"]:  # type: ignore[attr-defined]
                    answers.update(s["answer"] for s in engine["spans"] for _ in s["releases"])
            else:
                covered = [gpu for gpu in answer["gpus"] if gpu["capability"]]  # type: ignore[attr-defined]
                answers.update(gpu["answer"] for gpu in covered)
        counted = ", ".join(f"{count} {answer}" for answer, count in answers.most_common())
        print(
            f"{name}, {len(models)} models: clock {_said(clock)}, processor {_said(processor)}; {counted}", flush=True
        )


if __name__ == "__main__":
    main()
