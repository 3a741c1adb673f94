"""The shipped answers against a real, installed vLLM: selector questions and whole launches, without a GPU.

    python proofs/engine.py [--python VENV/bin/python] [--release 0.33.0] [--questions 3000] [--launches 1000]

Without --python it makes a virtual environment with that vLLM in a temporary folder (about 10 GB). Whole launches are
judged on 0.33.0 only. Exits 1 if one answer is wrong; unknown answers are counted and listed, not forgiven silently.
With --ci a machine that cannot install the engine skips the proof, and says so.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from random_launches import launches, models

from attnfit.batch import answers
from attnfit.engines.vllm import releases
from attnfit.engines.vllm.learn.generate import Generator
from attnfit.report.json import SELECTOR_FIELDS

HERE = Path(__file__).resolve().parent
LAUNCH_RELEASE = "0.33.0"
# What the judge can state: the selector's own fields. The rest of a question is the engine's configuration around it.
ASKED = {*SELECTOR_FIELDS, "num_heads", "num_kv_heads", "hf", "backend"}
CI = {"questions": 800, "launches": 100, "seed": 1}  # the same each time: a landing must not hang on chance


def made(folder: Path, name: str, release: str) -> str:
    """The Python of the venv with that distribution that is there already; "" where none is."""
    there = folder / "engine/bin/python"
    said = f"import importlib.metadata as m; print(m.version({name!r}))"
    if (
        not there.is_file()
        or subprocess.run([there, "-c", said], capture_output=True, text=True).stdout.strip() != release
    ):
        return ""
    return str(there)


def install(folder: Path, release: str) -> str:
    """A venv with that release, or the one that is there already. Raises CalledProcessError."""
    if there := made(folder, "vllm", release):
        return there
    base = sys.executable
    subprocess.run([base, "-m", "venv", folder / "uv"], check=True)
    subprocess.run([folder / "uv/bin/python", "-m", "pip", "install", "-q", "uv"], check=True)
    subprocess.run([base, "-m", "venv", folder / "engine"], check=True)
    python = str(folder / "engine/bin/python")
    uv = [str(folder / "uv/bin/uv"), "pip", "-q", "--cache-dir", str(folder / "cache")]
    subprocess.run([*uv, "install", "--python", python, f"vllm=={release}"], check=True)
    # flashinfer's own requirement and cuda-python's can disagree about cuda-bindings; docs/proofs.md
    if subprocess.run([python, "-c", "import flashinfer"], capture_output=True, env=with_stub(folder)).returncode:
        subprocess.run([*uv, "uninstall", "--python", python, "cuda-python"], check=True)
        subprocess.run(
            [*uv, "install", "--reinstall", "--no-deps", "--python", python, "cuda-bindings==13.2.0"], check=True
        )
    return python


def with_stub(folder: Path) -> dict[str, str]:
    """The environment with a libcuda.so.1 that loads and has no driver behind it."""
    stub = folder / "stub"
    stub.mkdir(exist_ok=True)
    library = stub / "libcuda.so.1"
    if not library.exists():
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", library, HERE / "libcuda_stub.c"], check=True)
    # Without written bytecode every child would compile the engine and its libraries anew, for minutes.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "LD_LIBRARY_PATH": str(stub)}


def judge(script: str, python: str, items: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The real engine's answers, in the order of `items`."""
    numbered = [json.dumps({**item, "_n": n}) for n, item in enumerate(items)]
    done = subprocess.run(
        [python, HERE / script],
        input="\n".join(numbered),
        capture_output=True,
        text=True,
        env=with_stub(folder),
        cwd=HERE,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    if len(rows) != len(items):
        sys.exit(f"{script}: {len(rows)} answers to {len(items)} items\n{done.stderr[-3000:]}")
    return sorted(rows, key=lambda row: row.get("_n", row.get("config", {}).get("_n", 0)))


def plain(text: str | None) -> str | None:
    """A message without device names, object dumps and lists that only restate the release."""
    if text is None:
        return None
    text = re.sub(r"0x[0-9a-f]+", "0x", text)
    text = re.sub(r"input_value=.*|Supported architectures: .*", "", text, flags=re.DOTALL)
    return re.sub(r"on [^()]*\(compute", "on (compute", text).strip()


def selector(python: str, release: str, count: int, seed: int, folder: Path) -> int:
    """Wrong answers to `count` fresh questions; a third of them name a backend (the generator sees to it)."""
    book = releases.resolve(release).book
    generator = Generator(book, seed)
    present = dict.fromkeys(book.environment, True)
    questions = [
        {**{k: v for k, v in q.items() if k in ASKED}, "capability": _text(q["capability"])}
        for q in generator.questions(count, present)
    ]
    theirs = judge("real_selector.py", python, questions, folder)
    lines = [json.dumps({"engine": f"vllm=={release}", "question": q}).encode() for q in questions]
    wrong = unknown = 0
    for question, ours, real in zip(questions, answers(lines), theirs, strict=True):
        if "oracle_error" in real:
            sys.exit(f"the judge failed on {question}: {real['oracle_error']}")
        unknown += "unknown" in ours
        keys = ["chosen", "every_backend", *(() if "raises" in real else ("valid", "refused", "engine_message"))]
        differs = [key for key in keys if ours.get(key) != real.get(key)]
        if differs and "unknown" not in ours:
            wrong += 1
            if wrong <= 3:
                print(f"  WRONG {differs} {question}\n    ours {[ours.get(k) for k in differs]}\n    real "
                      f"{[real.get(k) for k in differs]}")  # fmt: skip
    print(f"selector {release}: {count} questions, {wrong} wrong, {unknown} unknown", flush=True)
    return wrong


def _text(capability: Any) -> str:
    return capability if isinstance(capability, str) else ".".join(map(str, capability))


def whole_launches(python: str, count: int, seed: int, folder: Path) -> int:
    """Wrong answers to `count` random launches."""
    items = list(launches(models(folder / "models"), count, seed))
    theirs = judge("real_launch.py", python, items, folder)
    lines = [json.dumps({"engine": f"vllm=={LAUNCH_RELEASE}", **item}).encode() for item in items]
    counted: collections.Counter[str] = collections.Counter()
    for item, ours, real in zip(items, answers(lines), theirs, strict=True):
        if "DeepSeek-V4" in item["model"] and item["capability"].startswith("8."):
            counted["not judged (its kernels do not exist below 9.0; the engine's constructors do not say so)"] += 1
            continue
        if "problem" in ours:
            counted["wrong"] += 1
            print(f"  WRONG no answer: {ours['problem']} {_shown(item)}")
            continue
        if ours["ok"] is None:
            counted["unknown"] += 1
            print(f"  unknown {ours['unknown']} {_shown(item)}")
            continue
        differs = list(differences(ours, real))
        counted["wrong" if differs else "exact"] += 1
        for difference in differs:
            print(f"  WRONG {difference} {_shown(item)}")
    print(f"launches {LAUNCH_RELEASE}: {count}, {dict(counted)}", flush=True)
    return counted["wrong"]


def _shown(item: dict[str, Any]) -> str:
    return f"{Path(item['model']).name} {item['capability']} {' '.join(item['flags'])}"


def differences(ours: dict[str, Any], real: dict[str, Any]) -> list[str]:
    """What differs, as far as the engine came."""
    keys = ["ok", "stage", "dtype", "kv_cache_dtype", "block_size"]
    if real["ok"]:
        keys += ["kv_cache_dtype_after_init", "block_size_after_load"]
    found = [f"{key}: {ours[key]!r}, real {real[key]!r}" for key in keys if key in real and ours[key] != real[key]]
    if plain(ours["error"]) != plain(real["error"]):
        found.append(f"error: {ours['error']!r}, real {real['error']!r}")
    asked, really = [_questions(side["selector_configs"], counts=real["ok"]) for side in (ours, real)]
    if asked != really if real["ok"] else not set(really) <= set(asked):
        found.append(f"questions: {sorted(set(asked) ^ set(really))[:2]}")
    return found


def _questions(rows: list[dict[str, Any]], counts: bool) -> list[str]:
    """Questions asked before a refusal, in order; counts only where construction went through."""
    keys = ["role", "selected", "config", "num_heads", "layer_class", "chosen", *(["count"] if counts else [])]
    return [json.dumps([row[key] for key in keys], sort_keys=True) for row in rows if not row.get("after_refusal")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="of a venv that has the release; default: make one")
    parser.add_argument("--release", default=LAUNCH_RELEASE)
    parser.add_argument("--questions", type=int, default=3_000)
    parser.add_argument("--launches", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**9), help="default: a new one each time")
    parser.add_argument("--folder", type=Path, help="where the venv is made and stays; default: a temporary one")
    parser.add_argument("--ci", action="store_true", help=f"{CI}")
    args = parser.parse_args()
    questions = CI["questions"] if args.ci else args.questions
    count = CI["launches"] if args.ci else args.launches
    seed = CI["seed"] if args.ci else args.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            python = args.python or install(folder, args.release)
        except (subprocess.CalledProcessError, OSError) as error:
            if not args.ci:
                raise
            print(f"SKIPPED: vLLM {args.release} cannot be installed here ({error})")
            return
        wrong = selector(python, args.release, questions, seed, folder) if questions else 0
        if args.release == LAUNCH_RELEASE and count:
            wrong += whole_launches(python, count, seed, folder)
    sys.exit(f"{wrong} wrong" if wrong else 0)


if __name__ == "__main__":
    main()
