"""What benchmarks/kernels.py can say without a GPU: bytes by design against the least, and what the compiler says."""

from __future__ import annotations

import argparse
import sys
from itertools import product
from typing import Any

import msgspec

from attnfit.errors import AttnfitError
from attnfit.inputs import kernel_fit
from attnfit.kernels.mla.cost import Design, Shape, cost, design_of, head_blocks, least

SMS = 188  # multiprocessors of the GPU that splits are counted for: an RTX PRO 6000
CACHES = {"576": {}, "512": {"d_r": 0}, "fp8_ds_mla": {"packed": True}}
FIGURES = ("case", "kernel", "capability", "verdict", "num_warps", "num_stages", "shared", "registers", "spill_stores",
           "spill_loads", "tensor_memory", "instructions", "occupancy")  # fmt: skip


def static(args: argparse.Namespace) -> dict[str, Any]:
    """{"bytes": a row for each shape and implementation, "compiled": a row for each distinct kernel}."""
    capabilities = args.cc or list(kernel_fit.CAPABILITIES)
    unknown = [c for c in capabilities if c not in kernel_fit.CAPABILITIES]
    if unknown:
        sys.exit(f"no kernels of ours for {', '.join(unknown)}; --cc takes {', '.join(kernel_fit.CAPABILITIES)}")
    return {
        "sms": SMS,
        "bytes": [row for c in capabilities for row in moved(c, args.tokens, args.heads)],
        "compiled": compiled(capabilities),
    }


def moved(capability: str, tokens: list[int], heads: list[int]) -> list[dict[str, Any]]:
    """Bytes of one call on one layer, by what they are for."""
    major, _, minor = capability.partition(".")
    found = []
    for (cache, fields), t, h in product(CACHES.items(), tokens, heads):
        shape = Shape(t, h, **fields)
        for name, design in designs(shape, (int(major), int(minor))).items():
            parts = cost(shape, design)
            found.append({
                "capability": capability, "tokens": t, "heads": h, "cache": cache, "implementation": name,
                "heads_per_program": design.block_h, "row_loads": head_blocks(shape, design.block_h),
                "splits": design.splits, **parts._asdict(), "moved": parts.moved, "least": least(shape),
            })  # fmt: skip
    return found


def bytes_table(capability: str = "12.0") -> str:
    """Markdown: one query token of one layer among many (a prefill), and what a lone one (a decode) pays for splits."""
    text = ["| heads | cache | implementation | heads a program | row asked for | rows, KiB | all, KiB | of the least |"
            " alone: splits | partials, KiB |", "|--:|---|---|--:|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    many, one = ({(r["heads"], r["cache"], r["implementation"]): r for r in moved(capability, [t], [16, 64, 128])}
                 for t in (4096, 1))  # fmt: skip
    wanted = sorted((key for key in many if key[1] != "512"), key=lambda key: (key[0], key[1] == "fp8_ds_mla"))
    for heads, cache, name in wanted:
        row = many[heads, cache, name]
        alone = one[heads, cache, name]
        cells = (heads, cache, name, row["heads_per_program"], row["row_loads"], kib(row["rows"] / 4096),
                 kib(row["moved"] / 4096), f"{row['moved'] / row['least']:.2f}", alone["splits"],
                 kib(alone["partials"]))  # fmt: skip
        text.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(text)


def kib(count: float) -> str:
    return f"{count / 1024:,.0f}"


def designs(shape: Shape, capability: tuple[int, int]) -> dict[str, Design]:
    """Of the implementations whose source says what they load. vLLM's: vllm/v1/attention/ops/xpu_mla_sparse.py."""
    found = {"latent": design_of("latent", shape, capability, SMS)}
    if not shape.packed:
        found["virtual_blocks"] = design_of("virtual_blocks", shape, capability, SMS)
        found["vLLM xpu_mla_sparse"] = Design(16, value_again=True)
    return found


def compiled(capabilities: list[str]) -> list[dict[str, Any]]:
    """Resources, occupancy and instruction mix, from `attnfit kernels fit`'s machine. Exits 3 if it cannot say."""

    def tell(done: int, of: int) -> None:
        if sys.stderr.isatty():
            print(f"\rcompiling {done} of {of}", end="\n" if done == of else "", file=sys.stderr)

    try:
        answer = kernel_fit.ask(capabilities, progress=tell)
    except AttnfitError as why:
        print(why, file=sys.stderr)
        sys.exit(3)
    rows = msgspec.to_builtins(answer)["rows"]
    return [{name: row.get(name) for name in FIGURES} for row in rows]
