"""The Triton kernels that attnfit loads with stand-ins, against those of a real, installed vLLM, without a GPU.

    python proofs/kernels_against_engine.py --python VENV/bin/python [--release 0.33.0] [--capability 12.0 ...]

For a spread of shapes (MLA decode, unified attention, gated delta rule) both record what their backends launch, under
the same torch and Triton; launch by launch, kernel, constexprs, options and the digest of what Triton would compile
must be equal. Without --python it makes a virtual environment with that release (10 GB). Exits 1 if one launch differs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from engine import install, with_stub

from attnfit.inputs.kernel_fit import limit_of

HERE = Path(__file__).resolve().parent
CAPABILITIES = ("8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
DTYPES = ("bfloat16", "float16")
GDN = {  # key heads, value heads; 128 wide both
    "Qwen3-Next-80B-A3B": (16, 32),
    "Qwen3.5-397B-A17B": (16, 64),
    "Qwen3.5-27B": (16, 48),
}
COMMON = {
    "sms": 132,
    "device_name": "fake",
    "cuda_major": 13,
    "max_model_len": 32768,
    "env": {"wheel": True, "flashinfer": False},
}


def latent() -> list[dict[str, Any]]:
    return [
        {"kernel": "mla-decode", "num_heads": heads, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "dtype": dtype,
         "kv_cache_dtype": cache, "block_size": 16, **COMMON}
        for heads, dtype, cache in itertools.product((16, 32, 64, 128), DTYPES, ("auto", "fp8"))
    ]  # fmt: skip


def paged(count: int, rng: random.Random) -> list[dict[str, Any]]:
    def one() -> dict[str, Any]:
        heads, kv_heads = rng.choice(((32, 32), (32, 8), (64, 8), (16, 2), (8, 1), (28, 4), (40, 8)))
        return {
            "kernel": "unified-attention", "num_heads": heads, "num_kv_heads": kv_heads, "dtype": rng.choice(DTYPES),
            "head_size": rng.choice((64, 80, 96, 128, 192, 256)), "kv_cache_dtype": rng.choice(("auto", "auto", "fp8")),
            "block_size": rng.choice((16, 32, 64)), "sliding_window": rng.choice((None, None, 128, 1024, 4096)),
            "sinks": rng.random() < 0.3, "softcap": rng.choice((None, None, 50.0)), **COMMON,
        }  # fmt: skip

    return [one() for _ in range(count)]


def delta() -> list[dict[str, Any]]:
    return [
        {"kernel": "gdn", "linear_num_key_heads": keys // tp, "linear_num_value_heads": values // tp,
         "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "dtype": dtype,
         "state_dtype": state, "gdn_prefill_backend": "triton", **COMMON}
        for (keys, values), tp in itertools.product(GDN.values(), (1, 2, 4, 8))
        for dtype, state in itertools.product(DTYPES, ("float32", "bfloat16"))
        if dtype == "bfloat16" or state == "float32"
    ]  # fmt: skip


def rows(python: str, job: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [python, HERE / "real_kernels.py"],
        input=json.dumps(job), capture_output=True, text=True, cwd=HERE,
        env={**with_stub(folder), "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines()]
    if len(found) != len(job["asks"]):
        sys.exit(f"{len(found)} of {len(job['asks'])} answers: {done.stderr[-2000:]}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python")
    parser.add_argument("--release", default="0.33.0")
    parser.add_argument("--capability", nargs="*", default=CAPABILITIES)
    parser.add_argument("--paged", type=int, default=60, help="random shapes of unified attention")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    asks = latent() + paged(options.paged, random.Random(options.seed)) + delta()
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = options.python or install(folder, options.release)
        asked = "import importlib.util as u; print(u.find_spec('vllm').submodule_search_locations[0])"
        found = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)
        root = str(Path(found.stdout.strip()).parent)
        for capability in options.capability:
            job = {"capability": capability, "limit": limit_of(capability), "asks": [{**a, "root": root} for a in asks]}
            ours, theirs = (rows(python, {**job, "real": real}, folder) for real in (False, True))
            count: Counter[str] = Counter()
            for ask, mine, real in zip(asks, ours, theirs, strict=True):
                _compare(capability, ask, mine, real, count)
            print(capability, dict(count), flush=True)
            total += count
    print("all", dict(total))
    return 1 if total["different"] or not total["equal"] else 0


def _compare(
    capability: str, ask: dict[str, Any], mine: dict[str, Any], real: dict[str, Any], count: Counter[str]
) -> None:
    count["asks"] += 1
    if mine["failed"] or real["failed"]:
        same = bool(mine["failed"]) == bool(real["failed"])
        count["both fail" if same else "different"] += 1
        print(capability, "failed" if same else "DIFFERENT", ask, "|", mine["failed"][:300], "|", real["failed"][:300])
    a, b = mine["launches"], real["launches"]
    if len(a) != len(b):
        count["different"] += 1
        print(capability, "DIFFERENT", ask, [each["kernel"] for each in a], [each["kernel"] for each in b])
        return
    for one, other in zip(a, b, strict=True):
        if one == other:
            count["equal"] += 1
            continue
        count["different"] += 1
        print(capability, "DIFFERENT", ask, {key: (one[key], other[key]) for key in one if one[key] != other[key]})


if __name__ == "__main__":
    sys.exit(main())
