"""The table of docs/books.md, from what the shipped books say of themselves.

python -m attnfit.engines.vllm.learn.figures
"""

from __future__ import annotations

import json
from pathlib import Path

from attnfit.engines.vllm import book, releases

HEAD = (
    "| release | backends | questions | disagreements | unknown | branches reached | texts reached | file |",
    "|---|---:|---:|---:|---:|---:|---:|---:|",
)


def table(folder: Path = book.BOOKS) -> list[str]:
    """One line per shipped book, as markdown."""
    lines = list(HEAD)
    for version in releases.shipped():
        raw = (folder / f"{version}.json").read_bytes()
        written = json.loads(raw)
        replay = written["provenance"]["replay"]
        branches, texts = (f"{got} of {all_}" for got, all_ in (replay["branches"], replay["texts"]))
        lines.append(
            f"| {version} | {len(written['backends'])} | {replay['questions']:,} | {replay['disagreements']} "
            f"| {replay['unknown']} | {branches} | {texts} | {len(raw) / 1000:.0f} KB |"
        )
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
