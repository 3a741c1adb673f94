"""Which sparse MLA runs where: the table of docs/kernels.md, from the rule books and from our kernels' own table.

    python proofs/sparse_table.py                    # says whether the page agrees; exit code 1 if not
    python proofs/sparse_table.py --write            # writes the table into the page
    python proofs/sparse_table.py --truth FILE...    # the books against the real engine's recorded answers
    python proofs/sparse_table.py --questions        # the page's questions, for proofs/real_selector.py to answer

A cell of an engine's release is its selector's own rule, asked through the public API for one layer of GLM-5 (width
576) or of a rope-free model (512) on 8 GPUs. A cell of ours is a configuration that exists: docs/kernel-fit.md shows
that each compiles and fits, docs/kernels-numerics.md that it computes the right thing in Triton's interpreter.
TRUTH is JSON lines, gzipped or not: {"config": question, "every_backend": {name: [reasons]}}, its name holding
`vllm-RELEASE`.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import re
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import attnfit
from attnfit.api import select
from attnfit.core import Capability, Selection, Status
from attnfit.engines.vllm.row import question_of, row
from attnfit.errors import AttnfitError

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "kernels.md"
BEGIN, END = "<!-- proofs/sparse_table.py: begin -->", "<!-- proofs/sparse_table.py: end -->"
RELEASES = ("0.16.0", "0.23.0", "0.28.0", "0.33.0")
CAPABILITIES = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1")
DTYPES, WIDTHS, CACHES = ("float16", "bfloat16"), (576, 512), ("16-bit", "fp8_ds_mla")
LETTERS = {
    "FLASHMLA_SPARSE": "A",
    "FLASHINFER_MLA_SPARSE": "B",
    "FLASHINFER_MLA_SPARSE_SM120": "C",
    "FLASHINFER_MLA_SPARSE_SM90": "D",
    "FLASH_ATTN_MLA_SPARSE": "E",
    "FLASH_ATTN_MLA_SPARSE_FA4": "F",
}
ANOTHER_LAYOUT = ("DSV4", "DSV41")  # DeepSeek-V4's backends, whose rows are others; its layers do not ask the selector
# config.json of GLM-5 (examples/glm-5) and of zai-org/GLM-5.3-Flash, as far as the selector's rules read it.
SIZES: dict[int, dict[str, Any]] = {
    576: {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256, "index_topk": 2048},
    512: {"kv_lora_rank": 512, "qk_rope_head_dim": 0, "qk_nope_head_dim": 256, "v_head_dim": 256, "index_topk": 2048},
}
NONE = "-"


def config(capability: str, dtype: str, width: int, kv_cache_dtype: str, heads: int = 8) -> dict[str, Any]:
    """The question of one sparse MLA layer, as the truth files state one."""
    return {"capability": capability, "head_size": width, "dtype": dtype, "kv_cache_dtype": kv_cache_dtype,
            "use_mla": True, "use_sparse": True, "num_heads": heads, "num_kv_heads": 1, "hf": SIZES[width]}  # fmt: skip


def questions() -> list[dict[str, Any]]:
    """Every question of the page, and what else its text says."""
    every = product(CAPABILITIES, DTYPES, WIDTHS)
    return [config(c, d, w, kv) for c, d, w in every for kv in (d, "fp8_ds_mla", "auto", "fp8")]


def ask(release: str, capability: str, dtype: str, width: int, kv_cache_dtype: str, heads: int = 8) -> Selection:
    """The selector's answer for one sparse MLA layer. Raises AttnfitError if the book cannot say."""
    question = question_of(config(capability, dtype, width, kv_cache_dtype, heads))
    found = select(question, engine=f"vllm=={release}")
    unknown = found.unknown or next((v.unknown for v in found.direct if v.status is Status.UNKNOWN), "")
    if unknown:
        raise AttnfitError(f"vllm {release} on {capability}: {unknown}")
    return found


def accepting(found: Selection) -> list[str]:
    """Backends that accept, the engine's own choice first; without those that are for another layout."""
    names = [v.backend for v in found.direct if v.status is Status.ACCEPTS]
    names = [name for name in names if not name.endswith(ANOTHER_LAYOUT)]
    return sorted(names, key=lambda name: name != found.chosen)


def in_tree(release: str, capability: str, dtype: str, width: int, cache: str) -> str:
    """The cell of a release. A 16-bit cache is asked for by its dtype's name: `auto` may end as another."""
    names = accepting(ask(release, capability, dtype, width, dtype if cache == "16-bit" else cache))
    return " ".join(LETTERS[name] for name in names) or NONE


def our_configs() -> Any:
    """kernels/mla/configs.py, which imports neither torch nor Triton, without its package, which does."""
    file = Path(attnfit.__file__).parent / "kernels" / "mla" / "configs.py"
    spec = importlib.util.spec_from_file_location("our_configs", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["our_configs"] = module
    spec.loader.exec_module(module)
    return module


def ours(configs: Any, capability: str, width: int, cache: str) -> str:
    """Both dtypes are alike for us; packed rows hold 512 latent and 64 rotary values."""
    known = tuple(Capability.parse(capability)) in configs.CAPABILITIES
    return "yes" if known and not (cache == "fp8_ds_mla" and width == 512) else NONE


def cells() -> dict[str, list[tuple[str, ...]]]:
    """Capability -> its lines: dtype, width, cache, one cell a release, ours."""
    configs = our_configs()
    return {
        capability: [
            (dtype, str(width), cache, *(in_tree(release, capability, dtype, width, cache) for release in RELEASES),
             ours(configs, capability, width, cache))
            for dtype, width, cache in product(DTYPES, WIDTHS, CACHES)
        ]
        for capability in CAPABILITIES
    }  # fmt: skip


def table() -> str:
    """Markdown. Capabilities with the same lines share them, and lines of one capability that are alike are one."""
    found = cells()
    grouped: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for capability, lines in found.items():
        grouped.setdefault(tuple(lines), []).append(capability)
    text = ["| capability | dtype | width | cache |" + "".join(f" vLLM {r} |" for r in RELEASES) + " attnfit |",
            "|---|---|---|---|" + "---|" * len(RELEASES) + "---|",
            "| *evidence* | | | |" + " *rule* |" * len(RELEASES) + " *fits, interpreter* |"]  # fmt: skip
    for same, capabilities in grouped.items():
        for alike in merged(same):
            text.append("| " + " | ".join([", ".join(capabilities), *alike]) + " |")
    text += ["", *(f"- {letter}: {name}" for name, letter in LETTERS.items()), f"- `{NONE}`: nobody"]
    return "\n".join(text)


def merged(lines: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Lines of one group, fewer where the cells are the same whatever the dtype, or whatever the rest is."""
    if len({line[3:] for line in lines}) == 1:
        return [("any", "any", "any", *lines[0][3:])]
    by_dtype = {dtype: [line for line in lines if line[0] == dtype] for dtype in DTYPES}
    if len({tuple(line[1:] for line in mine) for mine in by_dtype.values()}) == 1:
        return [("any", *line[1:]) for line in by_dtype[DTYPES[0]]]
    return list(lines)


def against(path: Path) -> tuple[int, int, int]:
    """(rows of sparse MLA layers with one of our widths, verdicts of their sparse backends, verdicts that differ)."""
    release = re.search(r"vllm-(\d+\.\d+\.\d+)", path.name)
    if release is None:
        raise AttnfitError(f"{path.name} names no release: vllm-X.Y.Z")
    rows = verdicts = differ = 0
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for line in map(json.loads, file):
            asked = line["config"]
            if not (asked.get("use_mla") and asked.get("use_sparse") and asked["head_size"] in WIDTHS):
                continue
            rows += 1
            question = question_of(asked)
            mine = row(question, select(question, engine=f"vllm=={release[1]}"))
            for name in LETTERS.keys() & line["every_backend"].keys():
                verdicts += 1
                differ += mine["every_backend"].get(name) != line["every_backend"][name]
            differ += mine["chosen"] != line["chosen"]
    return rows, verdicts, differ


def in_page(text: str) -> str:
    """What stands between the markers. Raises AttnfitError if they are not there."""
    if BEGIN not in text or END not in text:
        raise AttnfitError(f"{PAGE.name} has no markers {BEGIN} and {END}")
    return text.split(BEGIN)[1].split(END)[0].strip("\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--write", action="store_true", help="write the table into the page")
    how.add_argument("--truth", type=Path, nargs="+", metavar="FILE", help="recorded answers of the real engine")
    how.add_argument("--questions", action="store_true", help="print the page's questions as JSON lines")
    args = parser.parse_args()
    if args.questions:
        print("\n".join(map(json.dumps, questions())))
        return 0
    if args.truth:
        found = {path: against(path) for path in args.truth}
        for path, (rows, verdicts, differ) in found.items():
            print(f"{path.name}: {rows} questions, {verdicts} verdicts of sparse backends, {differ} differ")
        return int(any(differ for _, _, differ in found.values()))
    page, now = PAGE.read_text("utf-8"), table()
    if args.write:
        PAGE.write_text(page.replace(in_page(page), now), "utf-8")
        return 0
    if in_page(page) != now:
        print(f"{PAGE.name} is not what the books say: python proofs/sparse_table.py --write")
        return 1
    print(f"{PAGE.name} says what the books say")
    return 0


if __name__ == "__main__":
    sys.exit(main())
