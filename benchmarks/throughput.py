"""Whole selector questions (every backend, all reasons) a second, in one process, from a rule book, as in `--batch`.

python benchmarks/throughput.py [--release 0.33.0] [--questions 20000]
"""

from __future__ import annotations

import argparse
import time

from attnfit.engines.vllm import releases
from attnfit.engines.vllm.learn.generate import Generator
from attnfit.engines.vllm.row import question_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", default="0.33.0")
    parser.add_argument("--questions", type=int, default=20_000)
    args = parser.parse_args()
    book = releases.resolve(args.release).book
    asked = [question_of(q) for q in Generator(book, seed=1).questions(args.questions, dict(book.environment))]
    book.select(asked[0], explained=False)
    started = time.perf_counter()
    for question in asked:
        book.select(question, explained=False)
    seconds = time.perf_counter() - started
    print(f"{len(asked) / seconds:,.0f} questions a second ({len(asked)} random ones, vLLM {args.release})")


if __name__ == "__main__":
    main()
