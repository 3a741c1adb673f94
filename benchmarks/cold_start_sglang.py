"""Cold `attnfit check` for SGLang, from process start to process end: from the compact form, and through the witness.

    python benchmarks/cold_start_sglang.py [--release 0.5.9 0.5.23] [--source DIR] [--runs 10]

The compact form is shipped for a few releases (skipped where it is not there). The witness runs a release's own files:
from attnfit's cache, where `attnfit learn sglang==X` puts them, or from DIR/RELEASE. Measured with every candidate
asked (a report) and with the launch alone (`--quiet`). No weights, no GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from cold_start import timed

from attnfit.engines.sglang import answers
from attnfit.engines.sglang.distribution import DISTRIBUTION
from attnfit.witness import cache

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "examples" / "glm-5"
LAUNCH = ["python", "-m", "sglang.launch_server", "--model-path", str(MODEL), "--tp-size", "8"]


def command(release: str, *options: str) -> list[str]:
    own = ["--gpu", "rtx-pro-6000", "-n", "8", "--engine", f"sglang=={release}", *options]
    return [sys.executable, "-m", "attnfit", "check", *own, "--", *LAUNCH]


def measure(name: str, release: str, runs: int, env: dict[str, str], *options: str) -> None:
    """One line for a report, one for the launch alone."""
    for what, flag in (("report", ()), ("launch alone", ("--quiet",))):
        seconds = timed(command(release, *options, *flag), runs, env)
        print(f"{release:8} {name:13} {what:13} median {statistics.median(seconds):.3f} s, worst {max(seconds):.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", nargs="+", default=["0.5.9", "0.5.23"])
    parser.add_argument("--source", type=Path, help="a folder that holds a tree of each release, by its name")
    parser.add_argument("--runs", type=int, default=10)
    args = parser.parse_args()
    for release in args.release:
        with tempfile.TemporaryDirectory() as empty:
            if release in answers.shipped():
                measure("compact form", release, args.runs, {"ATTNFIT_CACHE": empty, "ATTNFIT_OFFLINE": "1"})
            else:
                print(f"{release:8} compact form  SKIPPED: none is shipped for it")
        if args.source:
            measure("witness", release, args.runs, {}, "--witness", str(args.source / release))
        elif cache.kept(DISTRIBUTION, f"{DISTRIBUTION.name}-{release}") is not None:
            measure("witness", release, args.runs, {"ATTNFIT_OFFLINE": "1"})
        else:
            print(f"{release:8} witness       SKIPPED: `attnfit learn {DISTRIBUTION.name}=={release}` first")


if __name__ == "__main__":
    main()
