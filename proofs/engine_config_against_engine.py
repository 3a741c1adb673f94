"""Rows of the launch oracle (real_launch.py) against our stage create_engine_config: fields and words.

    V/bin/python proofs/real_launch.py --config-only < cases.jsonl > rows.jsonl
    python proofs/engine_config_against_engine.py rows.jsonl

A case names a model directory, a capability and flags. Prints the counts and every disagreement; exit 1 when there is
one. Refusals are compared up to the 3,000 characters the oracle keeps.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from attnfit.core import Capability
from attnfit.engines.vllm.flags import load_table, parse_flags
from attnfit.engines.vllm.launch.engine_config import resolve
from attnfit.engines.vllm.launch.state import EngineConfig, Refusal, Unknown

RELEASE = "0.33.0"
MODEL = {"num_heads_tp": "num_heads", "num_kv_heads_tp": "num_kv_heads"}  # the oracle's name -> ours
SAME = (
    "architecture", "model_type", "head_size", "use_mla", "is_hybrid", "is_mm_prefix_lm", "quantization",
    "sliding_window", "rswa_window", "max_model_len", "runner_type", "is_moe", "is_multimodal", "enforce_eager",
)  # fmt: skip
CACHE = (
    "mamba_cache_dtype", "mamba_ssm_cache_dtype", "mamba_block_size", "mamba_cache_mode", "enable_prefix_caching",
    "is_attention_free",
)  # fmt: skip


def ours(row: dict[str, Any]) -> EngineConfig:
    folder = Path(row["model_dir"])
    quant = folder / "hf_quant_config.json"
    argv = ["--model", row["model_dir"], *(row.get("flags") or []), *(row.get("added_flags") or [])]
    return resolve(
        json.loads((folder / "config.json").read_text()),
        json.loads(quant.read_text()) if quant.exists() else None,
        Capability.parse(row["capability"]),
        parse_flags(load_table(RELEASE), argv, form="module"),
        RELEASE,
        {},
        path=row["model_dir"],
        files=frozenset(p.name for p in folder.iterdir()),
        gpus=64,
    )


def fields(row: dict[str, Any], got: EngineConfig) -> dict[str, tuple[Any, Any]]:
    """name -> (ours, the engine's)."""
    out = {k: (getattr(got, k), row[k]) for k in ("dtype", "kv_cache_dtype", "block_size")}
    for key in (*SAME, *MODEL):
        if key in row["model"]:
            out[key] = (getattr(got, MODEL.get(key, key)), row["model"][key])
    for key, value in row.get("model_arch_config", {}).items():
        if hasattr(got.sizes, key):
            out[f"sizes.{key}"] = (getattr(got.sizes, key), value)
    for key in CACHE:
        if key in row.get("cache", {}):
            out[key] = (getattr(got, key), row["cache"][key])
    if "cudagraph_mode" in row:
        out["cudagraph_mode"] = (got.cudagraph_mode, row["cudagraph_mode"])
    return out


def main(files: list[str]) -> int:
    rows = [json.loads(line) for f in files for line in Path(f).read_text().splitlines()]
    rows = [r for r in rows if r["stage"] not in ("parse_flags", "crash")]
    wrong = unknown = 0
    for row in rows:
        says = row["error"] if row["stage"] == "create_engine_config" else None
        what = f"{row['model_dir']} {row['capability']} {row.get('flags')}"
        try:
            got = ours(row)
        except Unknown as missing:
            unknown += 1
            print(f"unknown  {what}\n         {missing}")
            continue
        except Refusal as refusal:
            if refusal.message[:3000] != (says or "")[:3000]:
                wrong += 1
                print(f"wrong    {what}\n    ours {refusal.message[:300]}\n    real {str(says)[:300]}")
            continue
        bad = {k: v for k, v in fields(row, got).items() if v[0] != v[1]} if says is None else {"refused": says[:300]}
        if bad:
            wrong += 1
            print(f"wrong    {what}\n    {bad}")
    print(f"{len(rows)} launches, {wrong} wrong, {unknown} unknown")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
