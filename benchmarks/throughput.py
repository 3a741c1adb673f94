"""Whole selector questions (every backend, all reasons) a second, in one process, from a rule book.

python benchmarks/throughput.py [--release 0.33.0] [--questions 20000]
"""

from __future__ import annotations

import argparse
import time

from attnfit.engines import engine
from attnfit.learn.generate import questions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", default="0.33.0")
    parser.add_argument("--questions", type=int, default=20_000)
    args = parser.parse_args()
    release = engine("vllm").release(args.release)
    asked = list(questions(args.release, args.questions, seed=1))
    release.select(asked[0])
    started = time.perf_counter()
    for question in asked:
        release.select(question)
    seconds = time.perf_counter() - started
    print(f"{len(asked) / seconds:,.0f} questions a second ({len(asked)} random ones, vLLM {args.release})")


if __name__ == "__main__":
    main()
