"""The real SGLang's own answers, as rows: how they are written down, read, and drawn from whole files of the oracle.

A row is one launch and what the real engine made of it: its argument resolution, checks, model config and backend
constructors, run with the real torch and transformers of the release on a machine without a GPU, for a pretended one.
Models are named; in words and messages they lie in `/models/NAME`.

    python proofs/sglang_rows.py [--each 250] OUT.jsonl.gz TRUTH...

draws, of each release in the oracle's files TRUTH, so many rows: every stage, message and model first.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
MORE = DATA / "sglang-rows-more.jsonl.gz"  # of the releases between, on five capabilities
ROWS, MODELS = DATA / "sglang-rows.jsonl.gz", ("configs.json.gz", "sglang-models.json.gz")
PLACE = "/models"
# GiB of a GPU, where an older file of the oracle does not say what it pretended
GIB = {"7.5": 16, "8.0": 80, "8.6": 48, "8.9": 48, "9.0": 80, "10.0": 180, "10.3": 268, "11.0": 122, "12.0": 96,
       "12.1": 119}  # fmt: skip
TOLD = ("ok", "stage", "message", "where", "prefill", "decode", "backend_class", "resolved")
PARTS = ("full_attn_backend_class", "linear_attn_backend_class", "linear_attn")  # older files do not tell them
Row = dict[str, Any]

# What the oracle makes up, and what its model folders lack: such rows are not the engine's own answers.
_MADE_UP = re.compile(r"StubObj|<stub |\bStubModule|\bStubBase|'Rec' object|_OpNamespace|fakeenv")
_NO_CODE = re.compile(r"does not appear to have a file named \S+\.py")
_LATE = ("publish", "model-runner-init", "backend-init")


def lines(file: Path) -> Iterator[Row]:
    """The JSON lines of a file, gzipped or not."""
    with gzip.open(file, "rt") if file.suffix == ".gz" else file.open() as stream:
        yield from (json.loads(line) for line in stream)


def models(*files: str) -> dict[str, Any]:
    """Name -> {"config": config.json, "hf_quant": hf_quant_config.json or None}, of this repository."""
    found: dict[str, Any] = {}
    for name in files or MODELS:
        found.update(json.loads(gzip.decompress((DATA / name).read_bytes())))
    return found


def models_in(folder: Path) -> dict[str, Any]:
    """The same of a folder that holds NAME/config.json or NAME.json."""
    found: dict[str, Any] = {}
    for file in [*folder.glob("*.json"), *folder.glob("*/config.json")]:
        quant = file.with_name("hf_quant_config.json") if file.name == "config.json" else None
        found[file.parent.name if quant else file.stem] = {
            "config": json.loads(file.read_text()),
            "hf_quant": json.loads(quant.read_text()) if quant and quant.exists() else None,
        }
    return found


def truth(file: Path) -> Iterator[Row]:
    """The rows of one of the oracle's files, without those where its harness is at fault."""
    for line in lines(file):
        case, out = (line["case"], line["out"]) if "case" in line else (line, line)
        if fault(out):
            continue
        gpus = case.get("n_gpus") or case.get("gpus") or 8
        capability = "{}.{}".format(*case["capability"])
        row = {
            "release": case["version"],
            "model": case["model"].rpartition("/")[2],
            "capability": capability,
            "gpu_name": case.get("gpu_name") or "GPU",
            "gpu_mem_gb": case.get("gpu_mem_gb") or GIB[capability],
            "gpus": gpus,
            "argv": ["--tp-size", str(case.get("tp", gpus)), *case["flags"]],
            **{key: out.get(key) for key in (*TOLD, *(PARTS if "case" in line else ()))},
        }
        row["backend_class"] = out.get("backend_class") or out.get("attn_backend_class")
        at = out.get("where")
        row["where"] = f"{at['file']}:{at['line']}" if isinstance(at, dict) else at
        if row["stage"] == "arg-parse" and row["where"]:
            row["stage"] = "arg-resolve"  # up to 0.5.18 ServerArgs resolves while it is constructed
        home = case["model"].rpartition("/")[0]
        yield json.loads(json.dumps(row).replace(f"{home}/", f"{PLACE}/")) if home else row


def fault(out: Row) -> str | None:
    """What of the harness an answer comes from, if it is none of the engine's."""
    message, at = str(out.get("message") or ""), out.get("where")
    file = at["file"] if isinstance(at, dict) else str(at or "")
    if out.get("ok"):
        return None
    if out.get("stage") == "harness":
        return "the run ended without an answer"
    if _MADE_UP.search(message):
        return "a made-up value reached the engine's code"
    if _NO_CODE.search(message):
        return "the model folder lacks the checkpoint's own code"
    if "intel_amx_backend.py" in file and out.get("error_type") in ("IndexError", "AttributeError"):
        return "the KV pool of a CPU is made up"
    if out.get("stage") in _LATE and not at:
        return "an exception outside the engine"
    return None


def plain(text: str | None) -> str | None:
    """A message, without what differs from run to run or with the Python it ran on."""
    if text is None:
        return None
    text = re.sub(r"^[\w. ]+: error: ", "error: ", text)
    text = re.sub(r"\{('[^{}]*')\}", lambda found: "{" + ", ".join(sorted(found[1].split(", "))) + "}", text)
    choices = r"(invalid choice: .*?) \(choose from ([^()]*)\)"
    return re.sub(choices, lambda found: f"{found[1]} {sorted(found[2].replace(chr(39), '').split(', '))}", text)


def drawn(rows: Sequence[Row], count: int, seed: int = 0) -> list[Row]:
    """A sample: one row of each kind (stage, words of the message, model, pair of backends), rarest first."""
    shuffled = list(rows)
    random.Random(seed).shuffle(shuffled)
    often: dict[Any, int] = {}
    for row in shuffled:
        for kind in _kinds(row):
            often[kind] = often.get(kind, 0) + 1
    seen: dict[Any, int] = {}
    chosen: list[Row] = []
    for most in range(1, len(shuffled)):
        for row in shuffled:
            if len(chosen) == count:
                return chosen
            wanted = [kind for kind in _kinds(row) if seen.get(kind, 0) < most]
            if wanted and not any(row is other for other in chosen):
                chosen.append(row)
                for kind in _kinds(row):
                    seen[kind] = seen.get(kind, 0) + 1
    return chosen


def _kinds(row: Row) -> list[tuple[str, Any]]:
    said = re.sub(r"\d+|'[^']*'|/\S+", "_", plain(row["message"]) or "")[:80]
    return [("stage", row["stage"]), ("said", (row["where"], said)), ("model", (row["model"], row["ok"])),
            ("pair", (row["prefill"], row["decode"])), ("gpu", row["capability"])]  # fmt: skip


def write(file: Path, rows: Iterable[Row]) -> None:
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    file.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("truth", type=Path, nargs="+")
    parser.add_argument("--each", type=int, default=250)
    args = parser.parse_args()
    by_release: dict[str, list[Row]] = {}
    for file in args.truth:
        for row in truth(file):
            by_release.setdefault(row["release"], []).append(row)
    chosen = [row for release in sorted(by_release) for row in drawn(by_release[release], args.each)]
    write(args.out, sorted(chosen, key=lambda row: (row["release"], row["model"], row["capability"], row["argv"])))
    print(f"{len(chosen)} rows of {', '.join(sorted(by_release))}: {args.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
