"""The kernels' own tests, under each Triton we support, and whether everything we launch fits every GPU it is made for.

    python proofs/kernels.py [--python VENV/bin/python] [--numerics]

Without --python it makes a virtual environment with `attnfit[kernels,kernels-dev]` in a temporary folder. No GPU is
needed: numbers come from Triton's interpreter, fits from the compiler. --numerics prints how far results lie from the
float64 reference (the tables of docs/kernels-numerics.md) in place of all that. Exits 1 if a test fails or a kernel
does not fit or spills. With --ci a machine that cannot install torch skips the proof, and says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fit_table

HOME = Path(__file__).resolve().parent.parent
# The tests ran with it. Wheels for CPUs exist of every torch; where pip finds none, it takes a far larger one.
TORCH = "2.13.0"
PYTHON = "python3.11"  # preferred, else the one that runs this
TRITONS = ("3.8.0", "3.9.0")  # the first is what torch 2.14 brings; the second has no block pointers any more
EVERYTHING = ("tests/kernels",)
NUMBERS = tuple(
    f"tests/kernels/test_{name}.py" for name in ("interpreter", "sparse_mla", "indexer", "index_topk", "index_cache")
)
# With --ci, under each Triton: compiling takes minutes. One of each kind of tensor core, the least shared memory.
FEWER = (("8.6", "9.0", "10.0", "12.0"), ("9.0", "12.0"))
TOO_OLD = "7.5"  # Turing: float16 tensor cores, but 65,536 bytes of shared memory


def install(folder: Path) -> str:
    """A venv with torch, attnfit as it lies here, and what the tests need. Raises CalledProcessError."""
    base = shutil.which(PYTHON) or sys.executable
    if subprocess.run([base, "-c", ""], capture_output=True).returncode:  # a launcher without its Python
        base = sys.executable
    subprocess.run([base, "-m", "venv", folder / "venv"], check=True)
    python = str(folder / "venv/bin/python")
    pip(python, "install", f"torch=={TORCH}", "-e", f"{HOME}[kernels,kernels-dev]")
    return python


def pip(python: str, *arguments: str | Path) -> None:
    command = [python, "-m", "pip", "--disable-pip-version-check", *arguments[:1], "-q", *arguments[1:]]
    subprocess.run(command, check=True, stdout=sys.stderr)


def with_triton(python: str, version: str, folder: Path) -> dict[str, str]:
    """The environment in which `python` imports that Triton: its own, or one in a folder put in front."""
    code = "import triton; print(triton.__version__)"
    own = subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRITON_", "ATTNFIT_"))}
    front = [] if own == version else [str(folder / f"triton-{version}")]
    if front:
        pip(python, "install", "--no-deps", "--target", front[0], f"triton=={version}")
    path = os.pathsep.join([*front, *filter(None, [kept.get("PYTHONPATH")])])
    environment = {**kept, "PYTHONPATH": path, "ATTNFIT_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    return {**environment, "TRITON_CACHE_DIR": str(folder / f"triton-cache-{version}")}


def tests(python: str, files: tuple[str, ...], env: dict[str, str]) -> tuple[int, str]:
    """Exit code and output of pytest, with its closing line."""
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=", "--durations=3", "-q", *files]
    done = subprocess.run(command, cwd=HOME, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def fits(python: str, env: dict[str, str], *capabilities: str) -> tuple[int, str]:
    """How many launches of ours do not fit or spill on those capabilities (default: all), and what to say of them."""
    answer = asked(python, env, *(word for capability in capabilities for word in ("--cc", capability)))
    rows: list[dict[str, Any]] = answer["rows"]
    fit = [row for row in rows if row["verdict"] == "fits"]
    spilling = [row for row in fit if row["spill_stores"]]
    capabilities = ", ".join(answer["capabilities"])
    said = [f"fit, Triton {answer['triton']}: {len(fit)} of {len(rows)} launches fit {capabilities}; "
            f"{len(spilling)} spill; {answer['seconds']:.0f} s"]  # fmt: skip
    bad = [row for row in rows if row not in fit] + spilling
    said += [f"  WRONG {row['capability']} {row['case']}: {row['verdict']} {row['message']}" for row in bad]
    said += [f"  WRONG {failure}" for failure in answer["failures"]]
    lines = fit_table.table(answer).splitlines() if answer["triton"] == fit_table.TRITON else []
    stale = [line for line in lines if line not in fit_table.on_the_page().splitlines()]
    said += [f"  WRONG docs/kernel-fit.md does not show {line}" for line in stale]
    old = asked(python, env, "--cc", TOO_OLD)
    refused = old["verdict"] == "does not fit"
    said += [f"  {TOO_OLD}: {old['verdict']}" if refused else f"  WRONG {TOO_OLD}: {old['verdict']}"]
    return len(bad) + len(answer["failures"]) + len(stale) + (not refused or not rows), "\n".join(said)


def asked(python: str, env: dict[str, str], *more: str) -> dict[str, Any]:
    """The answer of `attnfit kernels fit --json`."""
    command = [python, "-m", "attnfit", "kernels", "fit", "--json", *more]
    done = subprocess.run(command, cwd=HOME, env=env, capture_output=True, text=True)
    if done.returncode not in (0, 1, 3):
        sys.exit(f"attnfit kernels fit: {done.stderr[-3000:]}")
    return json.loads(done.stdout)


def prove(python: str, environments: dict[str, dict[str, str]], short: bool) -> int:
    """Prints what was measured; how much of it is wrong."""
    wrong = 0
    with ThreadPoolExecutor(len(environments)) as pool:  # the interpreter keeps one core busy, each
        subsets = [EVERYTHING, *[NUMBERS] * (len(environments) - 1)]
        runs = [
            pool.submit(tests, python, files, env) for files, env in zip(subsets, environments.values(), strict=True)
        ]
        for version, run in zip(environments, runs, strict=True):
            code, output = run.result()
            print(f"== tests, Triton {version}\n{output}", flush=True)
            wrong += code != 0
    for number, env in enumerate(environments.values()):
        bad, said = fits(python, env, *(FEWER[number] if short else ()))
        print(said, flush=True)
        wrong += bad
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="of a venv with attnfit[kernels,kernels-dev]; default: make one")
    parser.add_argument("--numerics", action="store_true", help="only print the tables of docs/kernels-numerics.md")
    parser.add_argument("--seeds", type=int, default=3, help="of --numerics")
    parser.add_argument("--ci", action="store_true", help="shorter; skips, aloud, what cannot be installed")
    args = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            python = args.python or install(folder)
            environments = {version: with_triton(python, version, folder) for version in TRITONS}
        except (subprocess.CalledProcessError, OSError) as error:
            if not args.ci:
                raise
            print(f"SKIPPED: torch {TORCH} and Triton {', '.join(TRITONS)} cannot be installed here ({error})")
            return
        print(f"installed in {time.monotonic() - started:.0f} s", flush=True)
        if args.numerics:
            for env in environments.values():
                command = [python, HOME / "proofs/kernel_numerics.py", "--seeds", str(args.seeds)]
                subprocess.run(command, check=True, env={**env, "TRITON_INTERPRET": "1"})
            return
        wrong = prove(python, environments, short=args.ci)
    print(f"kernels: {time.monotonic() - started:.0f} s, {wrong} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
