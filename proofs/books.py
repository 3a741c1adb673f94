"""The shipped rule books against the witness: fresh random questions, no disagreement.

    python proofs/books.py [--release 0.33.0 ...] [--questions 20000] [--seed N]

Without --release: every shipped book. Sources come from the user's package index and stay in attnfit's cache. One line
a release: questions, disagreements, unknowns, branches of the book that the questions went through, seconds.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time

from attnfit.engines.vllm import releases
from attnfit.engines.vllm.distribution import DISTRIBUTION
from attnfit.engines.vllm.learn.replay import replay
from attnfit.engines.vllm.witness.client import Witness
from attnfit.witness import sources

CI_RELEASES, CI_QUESTIONS = ["0.12.0", "0.16.0", "0.23.0", "0.33.0"], 3_000


def prove(version: str, questions: int, seed: int) -> int:
    """Disagreements of one release."""
    source = sources.find(DISTRIBUTION, f"vllm=={version}")
    book = releases.resolve(version).book
    started = time.monotonic()
    with Witness(
        source.root,
        version,
        source.env,
        modules=["attnfit.engines.vllm.learn.job"],
        cpu_seconds=3600,
        wall_seconds=300.0,
    ) as witness:
        found = replay(book, witness, questions, seed, source.env)
    seconds = time.monotonic() - started
    branches = "{} of {}".format(*found.branches)
    print(
        f"{version:8} {found.questions:6} questions  {found.disagreements} disagreements  {found.unknown} unknown  "
        f"{branches} branches  {seconds:.0f} s",
        flush=True,
    )
    for first in found.first[:1]:
        print(f"  first: {first}")
    return found.disagreements


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", nargs="+", help="default: every shipped book")
    parser.add_argument("--questions", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9), help="default: a new one each time")
    parser.add_argument("--ci", action="store_true", help=f"{CI_RELEASES}, {CI_QUESTIONS} questions each")
    args = parser.parse_args()
    versions = args.release or (CI_RELEASES if args.ci else releases.shipped())
    questions = CI_QUESTIONS if args.ci else args.questions
    print(f"seed {args.seed}")
    wrong = sum(prove(version, questions, args.seed) for version in versions)
    sys.exit(f"{wrong} disagreements" if wrong else 0)


if __name__ == "__main__":
    main()
