"""Build a release's compact form, or prove it.

    python -m attnfit.engines.sglang.learn build 0.5.9 SOURCE --models DIR --models DIR --kept FILE
    python -m attnfit.engines.sglang.learn prove 0.5.9 SOURCE --models DIR --models DIR --launches 10000 --seed 1

SOURCE is what `--witness` takes: a tree, a wheel, an sdist, "sglang==X". --models: folders of checkpoints (directories
with config.json) or of bare .json files. --kept: answers that were given so far, so that a build can be broken off.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from pathlib import Path

from attnfit.engines.sglang.compact import FOLDER
from attnfit.engines.sglang.distribution import DISTRIBUTION
from attnfit.engines.sglang.learn.ask import Release
from attnfit.engines.sglang.learn.build import build
from attnfit.engines.sglang.learn.domain import entities
from attnfit.witness import sources


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["build", "prove"])
    parser.add_argument("version")
    parser.add_argument("source")
    parser.add_argument("--models", type=Path, action="append", required=True)
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--tiers", type=int, help="so many tiers of the domain's profiles; all")
    parser.add_argument("--probes", type=int, help="so many profiles to tell models and capabilities apart; all")
    parser.add_argument("--date", default=datetime.date.today().isoformat(), help="when the form was made")
    parser.add_argument("--launches", type=int, default=10_000)
    parser.add_argument("--isolated", type=int, default=0, help="of those, so many are asked of the isolated child")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:6.0f} s] {text}", file=sys.stderr, flush=True)

    source = sources.find(DISTRIBUTION, args.source)
    models = entities(args.models)
    if args.what == "build":
        kept = args.kept or Path(f"cells-{args.version}.jsonl")
        made = {
            "from": f"sglang {args.version}, its Python files",
            "how": "python -m attnfit.engines.sglang.learn build: its own argument resolution and constructors, run",
            "when": args.date,
        }
        form = build(Release(source.root, args.version, kept, say), models, made, say, args.tiers, args.probes)
        text = json.dumps(form, separators=(",", ":"), sort_keys=True)
        (FOLDER / f"{args.version}.json").write_text(text + "\n", encoding="utf-8")
        say(f"{len(text) / 1000:.0f} kB, {len(form['outcomes'])} outcomes, {len(form['rows'])} rows")
        return 0
    from attnfit.engines.sglang.learn.prove import prove

    return prove(source, args.version, models, args.launches, args.isolated, args.seed, say)


if __name__ == "__main__":
    raise SystemExit(main())
