"""The plug-in in stock vLLM on a pretended GPU: registration, the selector's choice, construction, forward.

    python proofs/vllm_plugin.py --venv 0.33.0=VENV [--venv 0.32.0=VENV ...]
    python proofs/vllm_plugin.py --ci            # makes a venv with one release (about 10 GB); fewer random questions

Each part runs in a child with the venv's python, in which attnfit is found like an installed distribution: its source
on PYTHONPATH, and a folder with its entry points. The venvs are not changed. Exits 1 if anything is not as promised;
what could not be asked is counted as unknown. With --ci a machine that cannot install vLLM skips it, and says so.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import engine
import random_launches
import vllm_plugin_table as table
from vllm_plugin_cases import TOO_OLD, V32, batches, launch_wrong, launches

from attnfit.engines.vllm.plugin import serves

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CI_RELEASE, CI_SEED = "0.33.0", 1


class Figures:
    """What was asked, and what of it was wrong or unknown."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, int, int, int]] = []

    def add(self, release: str, what: str, asked: int, wrong: list[str], unknown: int = 0) -> None:
        self.rows.append((release, what, asked, len(wrong), unknown))
        print(f"{release:7} {what}: {asked} asked, {len(wrong)} wrong, {unknown} unknown", flush=True)
        for text in wrong[:5]:
            print(f"    WRONG {text}", flush=True)

    def wrong(self) -> int:
        return sum(row[3] for row in self.rows)

    def print(self) -> None:
        print("\n| release | what | asked | wrong | unknown |\n|---|---|---:|---:|---:|")
        for release, what, *figures in self.rows:
            print(f"| {release} | {what} | " + " | ".join(f"{n:,}" for n in figures) + " |")


def installed(folder: Path) -> str:
    """A PYTHONPATH on which importlib.metadata finds attnfit and its entry points."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    info = folder / "installed" / f"attnfit-{project['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: attnfit\nVersion: {project['version']}\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    info.joinpath("entry_points.txt").write_text("\n".join(lines))
    return os.pathsep.join([str(ROOT / "src"), str(info.parent)])


def child(
    script: str, python: str, items: list[dict[str, Any]], folder: Path, **variables: str
) -> list[dict[str, Any]]:
    """The lines that a child prints."""
    kept = {k: v for k, v in engine.with_stub(folder).items() if not k.startswith(("ATTNFIT_", "VLLM_", "TRITON_"))}
    done = subprocess.run(
        [python, HERE / script],
        input="\n".join(map(json.dumps, items)),
        capture_output=True,
        text=True,
        env={**kept, "PYTHONPATH": installed(folder), **variables},
        cwd=HERE,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or not rows:
        sys.exit(f"{script} with {python}: exit code {done.returncode}, {len(rows)} lines\n{done.stderr[-3000:]}")
    return rows


def load(release: str, python: str, folder: Path, figures: Figures, _: argparse.Namespace) -> None:
    rows = child("vllm_plugin_load.py", python, [], folder)
    figures.add(release, "registration", len(rows), [f"{r['case']}: {w}" for r in rows for w in r["wrong"]])


TEXTS = {
    "head_size": "head_size not supported",
    "dtype": "dtype not supported",
    "kv_cache_dtype": "kv_cache_dtype not supported",
    "capability": "compute capability not supported",
}


def expected_texts(question: dict[str, Any], release: str) -> list[str]:
    """What the selector must say of our backend for a sparse MLA layer without anything special."""
    texts, combined = [], ""
    for what, required, observed in table.refusals(question, release):
        if what in TEXTS and not required.startswith(("the model's", "head_size", "bfloat16 for")):
            texts.append(TEXTS[what])
        elif not combined:
            combined = f"{what}: {required} required but got {observed}"
    return [*texts, combined] if combined else texts


def choice(release: str, python: str, folder: Path, figures: Figures, args: argparse.Namespace) -> None:
    sparse = list(table.sparse_questions())
    others = list(table.other_questions(release, args.questions, args.seed))
    questions = [{**q, "_n": n} for n, q in enumerate([*sparse, *others])]
    rows: dict[tuple[int, str], list[dict[str, Any]]] = collections.defaultdict(list)
    for row in child("vllm_plugin_choice.py", python, questions, folder):
        rows[row["n"], row["mode"]].append(row)
    changed, by_itself, refusals, cells, named = ([] for _ in range(5))
    own = failed = asked_named = 0
    for q in questions:
        n = q["_n"]
        got = {mode: rows[n, mode][0] for mode in ("without", "with", "auto")}
        if any(row["error"] for row in got.values()):
            failed += 1
            continue
        texts, before, auto = got["with"]["ours"], got["without"]["chosen"], got["auto"]["chosen"]
        if release == "0.16.0" and texts:  # its selector drops the block size before it asks (platforms/cuda.py:314)
            texts = [text for text in texts if text != "block_size not supported"]
        same = ("chosen", "message", "rest", "valid")
        changed += [f"{k}: {q}" for k in same if got["without"][k] != got["with"][k]]
        changed += [f"rest: {q}"] if got["without"]["rest"] != got["auto"]["rest"] else []
        # Where a predicate of vLLM's own raises, on a config that lacks a field, there is no choice to be the last of.
        nobody = "No valid attention backend" in (got["without"]["message"] or "")
        wanted = before or ("OURS" if texts == [] and nobody else None)
        by_itself += [f"{auto}, not {wanted}: {q}"] if auto != wanted else []
        if n < len(sparse):
            refusals += [f"{texts}: {q}"] if texts != expected_texts(q, release) else []
            theirs, ours = table.cell(release, q)
            cells += [f"{before} {texts}, not {theirs} {ours}: {q}"] if (before, not texts) != (theirs, ours) else []
        elif texts is not None:
            own += 1
            plain = set(TEXTS.values())
            combined = [t for t in expected_texts(q, release) if t not in plain]
            mine = [t for t in texts if t in plain or " required but got " in t]
            wrong = {t for t in mine if t in plain} != {t for t in expected_texts(q, release) if t in plain}
            wrong |= [t for t in mine if t not in plain] != combined
            refusals += [f"{texts}, not {expected_texts(q, release)}: {q}"] if wrong else []
        for row in rows[n, "named"]:
            asked_named += 1
            right = row["chosen"] == ("OURS" if texts == [] else None)
            named += [] if right else [f"{row['name']}: {row['chosen']}: {q}"]
    total = len(questions)
    figures.add(release, "selector: nothing changes without ATTNFIT_VLLM_AUTO", total, changed, failed)
    figures.add(release, "selector: with it, only where nobody was chosen", total, by_itself, failed)
    figures.add(release, "selector: our backend by name", asked_named, named)
    figures.add(release, "our class's refusals against serves.py", len(sparse) + own, refusals)
    figures.add(release, "the table of the docs against the real selector", len(sparse), cells)


def launch(release: str, python: str, folder: Path, figures: Figures, args: argparse.Namespace) -> None:
    rows = child("vllm_plugin_launch.py", python, list(launches(release, folder, args.ci)), folder)
    wrong, unknown = [], 0
    for row in rows:
        shown = f"{Path(row['model']).name} {row['capability']} {' '.join(row['flags'])} {row['variables'] or ''}"
        if not row["ok"] and TOO_OLD in row["error"]:
            unknown += 1
            print(f"    not asked: {shown}: this venv cannot read that model ({row['error'][:160]!r})", flush=True)
            continue
        wrong += [f"{text}: {shown}" for text in launch_wrong(row)]
    figures.add(release, "whole launches, from flags to the bound KV cache", len(rows), wrong, unknown)


def forward(release: str, python: str, folder: Path, figures: Figures, args: argparse.Namespace) -> None:
    model = next(str(place) for place in random_launches.models(folder / "models") if place.name == V32)
    for how, variables in (("float64 path", {}), ("interpreter", {"TRITON_INTERPRET": "1"})):
        items = [{"model": model, **batch} for batch in batches(release, args.ci)]
        rows = child("vllm_plugin_forward.py", python, items, folder, **variables)
        wrong = [f"{text}: { {k: v for k, v in row.items() if k != 'model'} }" for row in rows for text in row["wrong"]]
        figures.add(release, f"forward on CPU tensors, {how}", len(items), wrong, len(items) - len(rows))
        for dtype in serves.DTYPES:
            mine = [row for row in rows if row["dtype"] == dtype and "out" in row]
            if mine:
                print(f"    {dtype}: out within {max(r['out'] for r in mine):.1e}, lse within "
                      f"{max(r['lse'] for r in mine):.1e}; slots by {collections.Counter(r['slots'] for r in mine)}, "
                      f"merged by {collections.Counter(r['merged_by'] for r in mine)}", flush=True)  # fmt: skip


def indexer(release: str, python: str, folder: Path, figures: Figures, _: argparse.Namespace) -> None:
    for how, variables in (("float64 path", {}), ("interpreter", {"TRITON_INTERPRET": "1"})):
        # As vLLM sets it for DSA models from 0.30.0 on; until 0.32.0 it is read when an operator is decorated.
        variables = {"ATTNFIT_VLLM_INDEXER": "1", "VLLM_USE_BREAKABLE_CUDAGRAPH": "1", **variables}
        rows = child("vllm_plugin_indexer.py", python, [], folder, **variables)
        wrong = [f"{row['check']}: {text}" for row in rows for text in row["wrong"]]
        figures.add(release, f"our indexer: graphs split, steps, picks; {how}", len(rows), wrong)


def fused(release: str, python: str, folder: Path, figures: Figures, _: argparse.Namespace) -> None:
    """Our kernel compiles everywhere; vLLM's own before attention, in float16 too, wherever e4m3 does: from 8.9 on."""
    wrong = []
    rows = child("vllm_plugin_fused.py", python, [], folder)
    for row in rows:
        fails = row["kernel"] != "rows_kernel" and row["capability"] < 89
        if fails != (row["error"] is not None) or (fails and "fp8e4nv not supported" not in row["error"]):
            wrong.append(f"{row}")
    theirs = sum(row["kernel"] != "rows_kernel" for row in rows)
    figures.add(release, f"rows compiled for 8.0 to 12.0, and {theirs} launches of vLLM's fused code", len(rows), wrong)


RUN = {"load": load, "choice": choice, "launch": launch, "forward": forward, "indexer": indexer, "fused": fused}


def venvs(args: argparse.Namespace, folder: Path) -> dict[str, str]:
    """release -> python. Raises CalledProcessError or OSError where one cannot be made."""
    given = dict(pair.split("=", 1) for pair in args.venv)
    if not given:
        return {CI_RELEASE: engine.install(args.folder or folder, CI_RELEASE)}
    unknown = given.keys() - set(serves.RELEASES)
    if unknown:
        sys.exit(f"not a release of serves.py: {', '.join(sorted(unknown))}")
    return {release: path if Path(path).is_file() else f"{path}/bin/python" for release, path in given.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", action="append", default=[], metavar="X.Y.Z=PATH", help="a venv that has vLLM X.Y.Z")
    parser.add_argument("--folder", type=Path, help="of engine.py: where its venv is made, or lies already")
    parser.add_argument("--part", action="append", choices=tuple(RUN), help="default: all")
    parser.add_argument("--questions", type=int, default=2_000, help="random ones, beside the grid")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9), help="default: a new one each time")
    parser.add_argument("--ci", action="store_true")
    args = parser.parse_args()
    if args.ci:
        args.questions, args.seed = min(args.questions, 100), CI_SEED
    print(f"seed {args.seed}", flush=True)
    figures = Figures()
    stale = [f"{table.PAGE.name}: python proofs/vllm_plugin_table.py --write"] if table.stale() else []
    figures.add("all", "the page says what the books and serves.py say", 1, stale)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            found = venvs(args, folder)
        except (subprocess.CalledProcessError, OSError) as error:
            if not args.ci:
                raise
            print(f"SKIPPED: vLLM {CI_RELEASE} cannot be installed here ({error})")
            sys.exit("the page is stale" if stale else 0)
        for release, python in found.items():
            for part in args.part or RUN:
                began = time.monotonic()
                RUN[part](release, python, folder, figures, args)
                print(f"    {part}: {time.monotonic() - began:.0f} s", flush=True)
    figures.print()
    sys.exit(f"{figures.wrong()} wrong" if figures.wrong() else 0)


if __name__ == "__main__":
    main()
