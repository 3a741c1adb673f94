"""The shipped compact forms of SGLang against the releases' own code, on fresh random launches.

    python proofs/sglang_form.py [--launches 10000] [--seed 1] [--release 0.5.9]

The models are those of tests/data, as the forms know them. Every launch is asked of the isolated child; its sources are
those in attnfit's cache, else they come from the user's package index. Each difference is listed, and the exit status
is 1. `--ci` asks 300 launches of each form.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import sglang_rows

from attnfit.engines.sglang import compact
from attnfit.engines.sglang.distribution import DISTRIBUTION
from attnfit.engines.sglang.learn.domain import entities
from attnfit.engines.sglang.learn.prove import prove
from attnfit.errors import UnknownAnswer
from attnfit.witness import sources

CI_LAUNCHES = 300


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ci", action="store_true")
    parser.add_argument("--launches", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--release", nargs="+", default=list(compact.releases()))
    args = parser.parse_args()
    launches = CI_LAUNCHES if args.ci else args.launches
    started, status = time.monotonic(), 0

    def say(text: str) -> None:
        if not text.endswith("compared"):
            print(f"[{time.monotonic() - started:5.0f} s] {text}", flush=True)

    with tempfile.TemporaryDirectory() as home:
        models = laid_out(Path(home))
        for release in args.release:
            say(f"SGLang {release}")
            try:
                source = sources.find(DISTRIBUTION, f"sglang=={release}")
            except UnknownAnswer as error:
                say(f"SKIPPED: {error}")
                continue
            status |= prove(source, release, entities([models]), launches, launches, args.seed, say)
    return status


def laid_out(home: Path) -> Path:
    """The models of the repository, as directories."""
    for name, model in sglang_rows.models().items():
        folder = home / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(model["config"]))
        if model["hf_quant"] is not None:
            (folder / "hf_quant_config.json").write_text(json.dumps(model["hf_quant"]))
    return home


if __name__ == "__main__":
    sys.exit(main())
