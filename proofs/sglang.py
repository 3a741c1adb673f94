"""SGLang's witness against the real engine's own answers.

    python proofs/sglang.py                          # every recorded row of every release that has some
    python proofs/sglang.py --release 0.5.9 0.5.23
    python proofs/sglang.py --more                   # those of the releases between, on five capabilities
    python proofs/sglang.py --truth FILE... --models DIR [--source DIR]

A release's sources are those in attnfit's cache, else they come from the user's package index; with --source from
DIR/RELEASE. The rows of the repository are tests/data/sglang-rows.jsonl.gz (sglang_rows.py says what a row is); with
--truth whole files of the oracle, with the models in DIR. One line a release: rows, equal, wrong, unknown. Compared are
verdict, stage, message, file and line, the pair of backends, the classes built and every resolved field the row has.
Each wrong answer is listed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import sglang_rows
from sglang_rows import PLACE, Row, plain

from attnfit.engines.sglang.distribution import DISTRIBUTION
from attnfit.engines.sglang.witness import Child
from attnfit.errors import AttnfitError, UnknownAnswer
from attnfit.witness import sources
from attnfit.witness.cache import Source

CI_RELEASES = ["0.5.9", "0.5.23"]  # all rows; of the other releases the first few
CI_FEW = 40
TOLD = 1900  # characters of a message: the oracle keeps 2000
# The release's own patch of transformers, through which every config goes. It is not applied in the witness, so a
# refusal of a config class is placed in the line that asked for the config.
PATCHES = "srt/utils/hf_transformers_patches.py"
LINES = 4  # a statement over several lines is placed at its first or its last, depending on the Python
DONE = ("prefill", "decode", "backend_class", *sglang_rows.PARTS)


class Judge:
    """One process's children, one a release."""

    def __init__(self, found: dict[str, Source], configs: dict[str, Any], home: Path) -> None:
        self.found, self.configs, self.home = found, configs, home
        self.children: dict[str, Child] = {}

    def answer(self, row: Row) -> Row:
        """What the witness says of a row's launch, in a row's form."""
        release, model = row["release"], self.configs[row["model"]]
        named = json.loads(json.dumps(row["argv"]).replace(f"{PLACE}/", f"{self.home}/"))
        path = f"{self.home}/{row['model']}"
        case: Any = {
            "model": path,
            "config": model["config"],
            "hf_quant": model["hf_quant"],
            "files": ["config.json", *(["hf_quant_config.json"] if model["hf_quant"] else [])],
            "argv": ["--model-path", path, *named],
            "variables": {},
            "facts": {},
            **{key: row[key] for key in ("capability", "gpu_name", "gpus")},
            "gpu_mem_gb": float(row["gpu_mem_gb"]),
        }
        try:
            if release not in self.children:
                self.children[release] = Child(self.found[release])
            said: Any = self.children[release].ask(case)
        except AttnfitError as error:
            self.children.pop(release).close()
            return {"ok": None, "unknown": [str(error)]}
        at = said.get("where")
        said = {**said, "where": f"{at['file']}:{at['line']}" if at else None}
        back: Row = json.loads(json.dumps(said).replace(f"{self.home}/", f"{PLACE}/"))
        return back


_judge: Judge


def _start(*given: Any) -> None:
    global _judge
    _judge = Judge(*given)


def _ask(row: Row) -> tuple[Row, Row, float]:
    began = time.monotonic()
    return row, _judge.answer(row), time.monotonic() - began


def differs(row: Row, said: Row) -> list[str]:
    """What an answer has otherwise than the real engine, in words."""
    found = []
    for key in ("ok", "stage", *(DONE if row["ok"] else ())):
        if key in row and row[key] != said.get(key):
            found.append(f"{key} is {row[key]!r}, not {said.get(key)!r}")
    message, other = ((plain(text) or "")[:TOLD] for text in (row["message"], said.get("message")))
    if message != other:
        found.append(f"it says {message!r}, not {other!r}")
    if not _same_place(row["where"], said.get("where")):
        found.append(f"that stands in {row['where']}, not in {said.get('where')}")
    resolved = said.get("resolved") or {}
    for name, value in (row["resolved"] or {}).items():
        if resolved.get(name) != value:
            found.append(f"{name} becomes {value!r}, not {resolved.get(name)!r}")
    return found


def _same_place(one: str | None, other: str | None) -> bool:
    if one is None or other is None or one.startswith(PATCHES):
        return (one is None) == (other is None)
    (file, _, line), (other_file, _, other_line) = one.rpartition(":"), other.rpartition(":")
    return file == other_file and abs(int(line) - int(other_line)) <= LINES


def prove(rows: list[Row], found: dict[str, Source], configs: dict[str, Any], jobs: int) -> int:
    """Wrong answers of these rows; prints a line a release."""
    asked: Counter[str] = Counter()
    equal: Counter[str] = Counter()
    unknown: dict[str, Counter[tuple[bool, str]]] = {}
    wrong: list[tuple[Row, list[str]]] = []
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, model in configs.items():  # draft models are read from where the words say they lie
            (Path(folder) / name).mkdir()
            (Path(folder) / name / "config.json").write_text(json.dumps(model["config"]))
        with multiprocessing.get_context("fork").Pool(jobs, _start, (found, configs, Path(folder))) as pool:
            for row, said, took in pool.imap(_ask, rows, chunksize=8):
                release = row["release"]
                asked[release] += 1
                seconds.setdefault(release, []).append(took)
                if said["ok"] is None:
                    unknown.setdefault(release, Counter())[row["ok"], "; ".join(said["unknown"])[:160]] += 1
                elif what := differs(row, said):
                    wrong.append((row, what))
                else:
                    equal[release] += 1
    for row, what in wrong:
        gpu = f"{row['gpus']} x {row['gpu_name']} ({row['capability']}, {row['gpu_mem_gb']:g} GiB)"
        print(f"WRONG {row['release']}: {row['model']} on {gpu}: {' '.join(row['argv'])}\n  " + "\n  ".join(what))
    for release, count in asked.items():
        of = unknown.get(release, Counter())
        passes = sum(n for (ok, _), n in of.items() if ok)
        print(
            f"{release:13} {count:5} rows  {equal[release]} equal  {sum(r['release'] == release for r, _ in wrong)} "
            f"wrong  {of.total()} unknown ({of.total() / count:.1%}: {passes} that pass, {of.total() - passes} "
            f"refused)  median {sorted(seconds[release])[count // 2]:.2f} s a row",
            flush=True,
        )
        for (_, why), n in of.most_common(5):
            print(f"  unknown {n} times: {why}")
    return len(wrong)


def located(releases: Iterable[str], folder: Path | None) -> dict[str, Source]:
    """Each release's source files. Raises UnknownAnswer where no index can be reached."""
    return {
        release: sources.find(DISTRIBUTION, str(folder / release) if folder else f"{DISTRIBUTION.name}=={release}")
        for release in releases
    }


def few(rows: list[Row], releases: list[str], count: int) -> list[Row]:
    """All rows of these releases, and `count` of each other one, spread evenly."""
    others: dict[str, list[Row]] = {}
    for row in rows:
        if row["release"] not in releases:
            others.setdefault(row["release"], []).append(row)
    kept = [row for row in rows if row["release"] in releases]
    return kept + [row for each in others.values() for row in each[:: max(1, len(each) // count)][:count]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", nargs="+", help="default: every one that has rows")
    parser.add_argument("--truth", nargs="+", type=Path, help="files of the oracle, instead of the recorded rows")
    parser.add_argument("--more", action="store_true", help="the recorded rows of the other releases instead")
    parser.add_argument("--models", type=Path, help="the folder of the models that they name")
    parser.add_argument("--source", type=Path, help="a folder that holds a tree of each release, by its name")
    parser.add_argument("--every", type=int, default=1, help="take every n-th row")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--ci", action="store_true", help=f"{CI_RELEASES}, and {CI_FEW} rows of each other release")
    args = parser.parse_args()
    configs = sglang_rows.models()
    if args.models:
        configs.update(sglang_rows.models_in(args.models))
    files = args.truth or [sglang_rows.MORE if args.more else sglang_rows.ROWS]
    rows = [row for file in files for row in (sglang_rows.truth(file) if args.truth else sglang_rows.lines(file))]
    if args.ci:
        rows = few(rows, CI_RELEASES, CI_FEW)
    rows = [row for row in rows if not args.release or row["release"] in args.release][:: args.every]
    try:
        found = located(dict.fromkeys(row["release"] for row in rows), args.source)
    except UnknownAnswer as error:
        print(f"SKIPPED: the source files of SGLang are not here and cannot be fetched ({error})")
        return
    wrong = prove(rows, found, configs, args.jobs)
    sys.exit(f"{wrong} wrong" if wrong else 0)


if __name__ == "__main__":
    main()
