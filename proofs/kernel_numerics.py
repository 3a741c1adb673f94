"""How far our sparse MLA kernels lie from the float64 reference in Triton's interpreter: the tables of the docs.

    TRITON_INTERPRET=1 python proofs/kernel_numerics.py [--seeds 3]

proofs/kernels.py --numerics runs it under each Triton. Cases and measure are those of tests/kernels (mla_cases.py).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections import defaultdict
from pathlib import Path

import torch
import triton

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/kernels"))
from mla_cases import CAST_FLOOR, MANY_KEYS, PARAMETERS, Distance, allowed, call, distance, make
from pairwise import pairwise

from attnfit.kernels import interpreter


def measured(seeds: int) -> list[tuple[dict, Distance]]:
    """Every case of the cover, another cover and other numbers for each seed."""
    found = []
    for seed in range(seeds):
        for number, case in enumerate([*pairwise(PARAMETERS, allowed, seed), *MANY_KEYS]):
            inputs = make(case, 1000 * seed + number)
            found.append((case, distance(inputs, *call(case, inputs))))
    return found


def table(found: list[tuple[dict, Distance]], *names: str) -> list[str]:
    """Markdown: a row for each combination of the parameters named."""
    groups = defaultdict(list)
    for case, far in found:
        groups[tuple(str(case[name]) for name in names)].append(far)
    lines = [f"| {' | '.join(names)} | cases | cells | typical case | worst case | worst LSE |"]
    lines += [f"|{'---|' * len(names)}{'---:|' * 5}"]
    for key in sorted(groups):
        far = groups[key]
        typical, worst = statistics.median(d.out for d in far), max(d.out for d in far)
        figures = f"{len(far)} | {sum(d.cells for d in far):,} | {typical:.2f} | {worst:.2f}"
        lines += [f"| {' | '.join(key)} | {figures} | {max(d.lse for d in far):.1f} |"]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    if not interpreter.interpreting():
        sys.exit("set TRITON_INTERPRET=1")
    warnings.simplefilter("ignore", RuntimeWarning)  # log of an empty token's total, 0
    torch.set_num_threads(1)
    interpreter.patch()
    found = measured(args.seeds)
    floors = ", ".join(f"{floor:.1e} ({dtype})".replace("torch.", "") for dtype, floor in CAST_FLOOR.items())
    print(f"Triton {triton.__version__}, {args.seeds} seeds; one cast floor: {floors}\n")
    print("\n".join([*table(found, "dtype", "cache"), "", *table(found, "values", "dtype"), "", *table(found, "way")]))


if __name__ == "__main__":
    main()
