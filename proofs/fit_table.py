"""What sparse MLA's configurations take: the table of docs/kernel-fit.md, from an answer of `attnfit kernels fit`.

    attnfit kernels fit --json > answer.json
    python proofs/fit_table.py answer.json [--write]

Says whether the page agrees (exit code 1 if not), or writes the table into the page. `proofs/kernels.py` asks the same
of what it compiled with the page's Triton.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "kernel-fit.md"
BEGIN, END = "<!-- proofs/fit_table.py: begin -->", "<!-- proofs/fit_table.py: end -->"
TRITON = "3.8.0"  # whose figures the page shows
KERNEL = "sparse_mla_latent_kernel"
COLUMNS = {  # heading -> the cache, and the heads whose launches are meant
    "576, up to 16 heads": ("576", 16),
    "576, up to 32": ("576", 20),
    "576, more": ("576", 128),
    "fp8_ds_mla, up to 16": ("fp8_ds_mla", 16),
    "fp8_ds_mla, more": ("fp8_ds_mla", 128),
}


def table(answer: dict[str, Any]) -> str:
    """Markdown: a row for each capability; heads x keys of a program, then the most bytes and registers of a launch."""
    lines = ["| | limit | " + " | ".join(COLUMNS) + " |", "|---|--:|" + "---|" * len(COLUMNS)]
    for capability in answer["capabilities"]:
        rows = [row for row in answer["rows"] if (row["capability"], row["kernel"]) == (capability, KERNEL)]
        cells = [_cell(rows, cache, heads) for cache, heads in COLUMNS.values()]
        lines.append(f"| {capability} | {rows[0]['limit']:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(rows: list[dict[str, Any]], cache: str, heads: int) -> str:
    mine = [row for row in rows if row["case"].split()[2:4] == [cache, f"H={heads}"]]
    sizes = {f"{row['constexprs']['BLOCK_H']}x{row['constexprs']['BLOCK_N']}" for row in mine}
    most = max(row["shared"] for row in mine), max(row["registers"] for row in mine)
    return f"{'/'.join(sorted(sizes))}: {most[0]:,}, {most[1]}"


def on_the_page() -> str:
    """The table as it stands in docs/kernel-fit.md."""
    return PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answer", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    answer = json.loads(args.answer.read_text("utf-8"))
    if answer["triton"] != TRITON:
        sys.exit(f"the page shows the figures of Triton {TRITON}; this answer is of {answer['triton']}")
    made = table(answer)
    if args.write:
        before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}", "utf-8")
    elif made != on_the_page():
        sys.exit(f"the page shows another table; this answer makes\n{made}")


if __name__ == "__main__":
    main()
