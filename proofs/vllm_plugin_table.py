"""Who serves sparse MLA in which release, without our plug-in and with it: the table of docs/vllm-plugin-releases.md.

    python proofs/vllm_plugin_table.py            # says whether the page agrees; exit code 1 if not
    python proofs/vllm_plugin_table.py --write    # writes the table into the page

A cell is vLLM's own choice by the release's rule book, and our backend's own rules (plugin/serves.py). vllm_plugin.py
holds both against the real selector of each release.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import sparse_table

from attnfit.engines.vllm import releases
from attnfit.engines.vllm.learn.generate import Generator
from attnfit.engines.vllm.plugin import serves
from attnfit.report.json import SELECTOR_FIELDS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "vllm-plugin-releases.md"
BEGIN, END = "<!-- proofs/vllm_plugin_table.py: begin -->", "<!-- proofs/vllm_plugin_table.py: end -->"
CAPABILITIES = ("8.0", "8.6", "8.9", "9.0", "10.0", "12.0", "12.1")
DTYPES, WIDTHS = ("float16", "bfloat16"), (576, 512)
CACHES = ("auto", "16-bit", "fp8_ds_mla", "fp8")
LETTERS = sparse_table.LETTERS
NOBODY = "-"
# What the judge can state: the selector's own fields. The rest of a question is the engine's configuration around it.
ASKED = {*SELECTOR_FIELDS, "num_heads", "num_kv_heads", "hf"}


def sparse_questions() -> Iterator[dict[str, Any]]:
    """The questions of the page, in its order."""
    for capability, dtype, width, cache in product(CAPABILITIES, DTYPES, WIDTHS, CACHES):
        yield sparse_table.config(capability, dtype, width, dtype if cache == "16-bit" else cache)


def other_questions(release: str, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Layers of every kind: a grid of dense MLA and of layers without MLA, then `count` that reach every branch."""
    mla = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    shapes = [{"use_mla": True, "head_size": 576, "hf": mla, "num_kv_heads": 1}]
    shapes += [{"head_size": size, "hf": {}, "num_kv_heads": 8} for size in (64, 128, 256)]
    for shape, capability, dtype, cache in product(shapes, CAPABILITIES, DTYPES, ("auto", "fp8")):
        yield {"capability": capability, "dtype": dtype, "kv_cache_dtype": cache, "num_heads": 16, **shape}
    yield {**sparse_table.config("12.0", "float16", 576, "auto"), "hf": {**sparse_table.SIZES[576], "index_topk": 8192}}
    generator = Generator(releases.resolve(release).book, seed)
    for found in generator.questions(count, dict.fromkeys(releases.resolve(release).book.environment, True)):
        capability = found["capability"]
        text = capability if isinstance(capability, str) else ".".join(map(str, capability))
        yield {**{key: value for key, value in found.items() if key in ASKED}, "capability": text}


def refusals(question: dict[str, Any], release: str) -> list[tuple[str, str, str]]:
    """What serves.py says of a question of the selector."""
    major, minor = question["capability"].split(".")
    return serves.refusals(
        dtype=question["dtype"],
        kv_cache_dtype=question.get("kv_cache_dtype") or "auto",
        head_size=question["head_size"],
        capability=(int(major), int(minor)),
        index_topk=(question.get("hf") or {}).get("index_topk"),
        release=release,
    )


def cell(release: str, question: dict[str, Any]) -> tuple[str | None, bool]:
    """(whom vLLM chooses without us, whether our backend serves it)."""
    q = question
    found = sparse_table.ask(release, q["capability"], q["dtype"], q["head_size"], q["kv_cache_dtype"])
    return found.chosen or None, not refusals(question, release)


def shown(theirs: str | None, ours: bool) -> str:
    letter = LETTERS.get(theirs, theirs) if theirs else NOBODY
    if theirs:
        return f"{letter} (T)" if ours else letter
    return "**T**" if ours else NOBODY


def table() -> str:
    """Markdown. Capabilities with the same lines share them."""
    lines: dict[str, list[tuple[str, ...]]] = {}
    combinations = list(product(CAPABILITIES, DTYPES, WIDTHS, CACHES))
    for (capability, dtype, width, cache), question in zip(combinations, sparse_questions(), strict=True):
        cells = [shown(*cell(release, question)) for release in serves.RELEASES]
        lines.setdefault(capability, []).append((dtype, str(width), cache, *cells))
    grouped: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for capability, found in lines.items():
        grouped.setdefault(tuple(found), []).append(capability)
    text = ["| capability | dtype | width | KV cache |" + "".join(f" {r} |" for r in serves.RELEASES),
            "|---|---|---|---|" + "---|" * len(serves.RELEASES)]  # fmt: skip
    for found, capabilities in grouped.items():
        for dtype, width, caches, cells in merged(found):
            text.append("| " + " | ".join([", ".join(capabilities), dtype, width, caches, *cells]) + " |")
    text += ["", "- **T**: nobody without the plug-in; ours by name, and by itself with `ATTNFIT_VLLM_AUTO=1`",
             "- `X (T)`: vLLM chooses X, with the plug-in too; ours by name",
             "- `X`: vLLM chooses X; ours refuses", f"- `{NOBODY}`: nobody, ours included",
             *(f"- {letter}: {name}" for name, letter in LETTERS.items())]  # fmt: skip
    return "\n".join(text)


def merged(lines: tuple[tuple[str, ...], ...]) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Lines of one capability with the caches that share all cells put together."""
    for dtype, width in product(DTYPES, map(str, WIDTHS)):
        by_cells: dict[tuple[str, ...], list[str]] = {}
        for line in lines:
            if line[:2] == (dtype, width):
                by_cells.setdefault(line[3:], []).append(line[2])
        for cells, caches in by_cells.items():
            yield dtype, width, ", ".join(caches), cells


def in_page(text: str) -> str:
    return text.split(BEGIN)[1].split(END)[0].strip("\n")


def stale() -> bool:
    return in_page(PAGE.read_text("utf-8")) != table()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    if parser.parse_args().write:
        page = PAGE.read_text("utf-8")
        PAGE.write_text(f"{page.split(BEGIN)[0]}{BEGIN}\n{table()}\n{END}{page.split(END)[1]}", "utf-8")
        return 0
    if stale():
        print(f"{PAGE.name} is not what the books and serves.py say: python proofs/vllm_plugin_table.py --write")
        return 1
    print(f"{PAGE.name} says what the books and serves.py say")
    return 0


if __name__ == "__main__":
    sys.exit(main())
