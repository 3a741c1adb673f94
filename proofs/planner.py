"""Plans of random launches against `attnfit check` itself: every offer is sound, minimal, and the same each time.

    python proofs/planner.py [--count 5000] [--seed 1] [--out FILE]

The launches are those of random_launches.py on the real configs of tests/data, each on a random GPU of the catalogue
and in a random release; one in five is SGLang's, answered by the shipped forms. What is checked stands in
tests/planner_cases.py; nothing of the planner is asked but its answer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from random_launches import launches, models  # noqa: E402

from attnfit.engines import engine  # noqa: E402
from attnfit.errors import AttnfitError  # noqa: E402
from attnfit.gpus import catalogue  # noqa: E402
from planner_cases import ask, wrong  # noqa: E402

SGLANG = {
    "--attention-backend": (
        "triton",
        "flashinfer",
        "fa3",
        "trtllm_mha",
        "trtllm_mla",
        "flashmla",
        "cutlass_mla",
        "fa4",
    ),
    "--kv-cache-dtype": ("auto", "fp8_e4m3", "fp8_e5m2", "bfloat16"),
    "--page-size": ("1", "32", "64", "128"),
    "--prefill-attention-backend": ("triton", "fa3"),
    "--decode-attention-backend": ("triton", "flashinfer"),
    "--enable-flashinfer-allreduce-fusion": (),
    "--dsa-decode-backend": ("trtllm", "flashmla_kv"),
    "--no-such-flag": (),
}


def said(launch: dict[str, Any], pick: random.Random, gpus: list[str]) -> tuple[list[str], tuple[str, int, str]]:
    """The words of a launch, and where it is asked: GPU, how many, release."""
    sglang = pick.random() < 0.2
    release = pick.choice(engine("sglang" if sglang else "vllm").at_hand())
    where = (pick.choice(gpus), pick.choice((1, 2, 4, 8, 8, 8)), f"{'sglang' if sglang else 'vllm'}=={release}")
    if not sglang:
        return ["vllm", "serve", launch["model"], *launch["flags"]], where
    words = ["python", "-m", "sglang.launch_server", "--model-path", launch["model"], "--tp", str(where[1])]
    for flag in pick.sample(list(SGLANG), pick.choice((0, 1, 1, 2))):
        words += [flag, pick.choice(SGLANG[flag])] if SGLANG[flag] else [flag]
    return words, where


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    pick = random.Random(args.seed)
    gpus = [entry.name for entry in catalogue() if entry.capability is not None]
    seen: Counter[str] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(ATTNFIT_CACHE=f"{folder}/cache", ATTNFIT_OFFLINE="1", HF_HUB_OFFLINE="1")
        for number, launch in enumerate(launches(models(Path(folder)), args.count, args.seed), 1):
            words, where = said(launch, pick, gpus)
            try:
                report = ask(words, *where, planned=True)
                found = list(wrong(report, words, *where))
            except AttnfitError as error:
                seen[f"no answer: {type(error).__name__}"] += 1
                continue
            except Exception as error:  # a fault of ours, wherever: said, and the next launch is asked
                seen["internal errors"] += 1
                print(json.dumps({"words": words, "where": where, "internal error": repr(error)[:300]}), flush=True)
                continue
            offers = [step for step in report.steps if step.cost]
            seen[report.verdict] += 1
            if report.verdict in ("refused", "breaks"):
                seen["refused or breaks, with an offer" if offers else "refused or breaks, none found"] += 1
                seen["stopped early"] += report.plan.stopped_early
                seen["offers"] += len(offers)
                for step in offers:
                    seen[f"offers of kind {step.kind}"] += 1
            seen["wrong"] += len(found)
            for sentence in found:
                line = json.dumps({"words": words, "where": where, "wrong": sentence})
                print(line, flush=True)
                if args.out:
                    with args.out.open("a") as file:
                        file.write(line + "\n")
            if number % 250 == 0:
                print(f"{number} launches, {time.monotonic() - began:.0f} s: {dict(seen)}", flush=True)
    print(json.dumps({"launches": args.count, "seed": args.seed, **dict(seen)}, indent=1))
    return 1 if seen["wrong"] or seen["internal errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
