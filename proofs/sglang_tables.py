"""What SGLang allows and picks for a few families of models, release by release, read off its own code.

    python proofs/sglang_tables.py [--release 0.5.9 ...] [--source DIR] [--json FILE]

Each release is asked by the witness: its sources are those in attnfit's cache, else they come from the user's package
index; with --source from DIR/RELEASE. Printed are two tables. The first says which backends the check for hybrid
GDN models lets through on Blackwell, and which of the words it looks at. The second says what a plain launch gets.
A cell in brackets is refused; `?` is what the witness does not know. With --json the cells are written down as well.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import sglang_rows
from sglang import located

from attnfit.engines.sglang import releases
from attnfit.engines.sglang.witness import Child
from attnfit.errors import AttnfitError, UnknownAnswer

# A GPU of each capability: name, GiB
GPUS = {
    "8.0": ("NVIDIA A100-SXM4-80GB", 80),
    "9.0": ("NVIDIA H100 80GB HBM3", 80),
    "10.0": ("NVIDIA B200", 180),
    "11.0": ("NVIDIA Thor", 122),
    "12.0": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 96),
}
HYBRID, NEXT = "Qwen__Qwen3.5-397B-A17B", "Qwen__Qwen3-Next-80B-A3B"
CHECKED = ("triton", "trtllm_mha", "fa4", "flashinfer", "torch_native")
GDN = "hybrid GDN"  # how the check's own message names what it is about
# Which words decide, on SM10.0: words, whether the check lets them through if it reads the base flag, the pair where
# both are set, or the pair as resolved. Two equal flags would become the base flag.
READS = (
    ("--attention-backend torch_native --prefill-attention-backend triton --decode-attention-backend trtllm_mha",
     (False, True, True)),
    ("--attention-backend triton --decode-attention-backend torch_native", (True, True, False)),
    ("--attention-backend triton --prefill-attention-backend torch_native --decode-attention-backend flex_attention",
     (True, False, False)),
)  # fmt: skip
READERS = ("the base flag", "the pair where both are set, else the base flag", "the pair as resolved")
# Rows of the second table: name, model, capabilities, words
PLAIN = (
    ("Llama 3.1 8B", "meta-llama__Llama-3.1-8B-Instruct", ("8.0", "9.0", "10.0", "11.0", "12.0"), ""),
    ("DeepSeek-V3", "deepseek-ai__DeepSeek-V3", ("8.0", "9.0", "10.0", "11.0", "12.0"), ""),
    ("Qwen3-Next", NEXT, ("9.0", "10.0", "11.0", "12.0"), ""),
    ("Qwen3.5", HYBRID, ("9.0", "10.0", "11.0", "12.0"), ""),
    ("Qwen3.5, flashinfer asked", HYBRID, ("10.0",), "--attention-backend flashinfer"),
    ("Llama 3.1 8B, trtllm_mha asked", "meta-llama__Llama-3.1-8B-Instruct", ("9.0", "10.0", "12.0"),
     "--attention-backend trtllm_mha"),
    ("GLM-5", "zai-org__GLM-5", ("9.0", "10.0", "12.0"), ""),
)  # fmt: skip
Answer = dict[str, Any]


class Asked:
    """One release, asked one launch at a time, on one GPU."""

    def __init__(self, child: Child, models: dict[str, Any]) -> None:
        self.child, self.models = child, models

    def ask(self, model: str, capability: str, words: str) -> Answer:
        name, memory = GPUS[capability]
        case: Any = {
            "model": f"/models/{model}",
            "config": self.models[model]["config"],
            "hf_quant": self.models[model]["hf_quant"],
            "files": None,
            "capability": capability,
            "gpu_name": name,
            "gpu_mem_gb": float(memory),
            "gpus": 8,
            "argv": ["--model-path", f"/models/{model}", "--tp-size", "8", *words.split()],
            "variables": {},
            "facts": {},
        }
        try:
            answer: Any = self.child.ask(case)
        except AttnfitError as error:
            answer = {"ok": None, "unknown": [str(error)]}
        return dict(answer)


def let_through(answer: Answer) -> bool | None:
    """Whether the check for hybrid GDN models lets it through; None where the launch does not come that far."""
    if answer["ok"]:
        return True
    return False if answer["ok"] is False and GDN in str(answer["message"]) else None


def hybrid(asked: Asked) -> dict[str, str]:
    """One row of the first table."""
    row = {}
    for capability in ("10.0", "11.0", "12.0"):
        said = {name: asked.ask(NEXT, capability, f"--attention-backend {name}") for name in CHECKED}
        passed = [name for name, answer in said.items() if let_through(answer)]
        earlier = [name for name, answer in said.items() if let_through(answer) is None and answer["ok"] is False]
        unsure = [f"{name}?" for name, answer in said.items() if answer["ok"] is None]
        row[f"SM{capability}"] = " ".join(passed + unsure) + (
            f" (before it: no {' '.join(earlier)})" if earlier else ""
        )
    seen = tuple(let_through(asked.ask(NEXT, "10.0", words)) for words, _ in READS)
    reader = [name for at, name in enumerate(READERS) if seen == tuple(each[1][at] for each in READS)]
    row["reads"] = reader[0] if reader else f"? {seen}"
    return row


def cell(answer: Answer) -> str:
    """What a launch gets."""
    if answer["ok"]:
        one, other = answer["prefill"], answer["decode"]
        chosen = one if one == other else f"{one}+{other}"
        kernels = answer["resolved"].get("dsa_decode_backend") or answer["resolved"].get("nsa_decode_backend")
        return f"{chosen} ({kernels})" if chosen in ("nsa", "dsa") else str(chosen)
    if answer["ok"] is None:
        return "?"
    if "Transformers does not recognize" in str(answer["message"]):
        return "[type unknown]"
    chosen = answer["resolved"].get("attention_backend") if answer["resolved"] else None
    return f"[{chosen}]" if chosen else "[refused]"


def plain(asked: Asked) -> dict[str, str]:
    """One column of the second table."""
    return {
        f"{name}, SM{capability}": cell(asked.ask(model, capability, words))
        for name, model, capabilities, words in PLAIN
        for capability in capabilities
    }


def printed(title: str, rows: dict[str, dict[str, str]]) -> None:
    """A Markdown table: a line a row."""
    columns = list(next(iter(rows.values())))
    print(f"\n{title}\n\n| | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}")
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells[column] for column in columns)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", nargs="+", default=list(releases.known()))
    parser.add_argument("--source", type=Path, help="a folder that holds a tree of each release, by its name")
    parser.add_argument("--json", type=Path, help="write the cells there as well")
    args = parser.parse_args()
    models = sglang_rows.models()
    gdn: dict[str, dict[str, str]] = {}
    defaults: dict[str, dict[str, str]] = {}
    try:
        found = located(args.release, args.source)
    except UnknownAnswer as error:
        print(f"SKIPPED: the source files of SGLang are not here and cannot be fetched ({error})")
        return
    for release in args.release:
        child = Child(found[release])
        asked = Asked(child, models)
        gdn[release], defaults[release] = hybrid(asked), plain(asked)
        child.close()
        print(".", end="", file=sys.stderr, flush=True)
    printed("What the check for hybrid GDN models lets through on Blackwell", gdn)
    turned = {name: {release: cells[name] for release, cells in defaults.items()} for name in defaults[args.release[0]]}
    printed("What a launch gets", turned)
    if args.json:
        args.json.write_text(json.dumps({"hybrid": gdn, "defaults": defaults}, indent=1) + "\n")


if __name__ == "__main__":
    main()
