"""Reading the header of one large GGUF file: attnfit, the `gguf` package, hf-mem, each in processes of its own.

    python benchmarks/headers.py [--runs 7] [--size 400]

The file is made for the run: the keys of GLM-5, a vocabulary of 154,880 words with 321,649 merges, 1,809 tensors of
SIZE GB, of which nothing is written (a sparse file). Measured inside each process: seconds to import, seconds to read,
and peak memory of the whole process; bytes where the reader says how many it asked for. hf-mem reads from the hub
only, so it gets the file through its own HTTP client with the network replaced by the file; it is left out where it is
not installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TOKENS, MERGES, TENSORS = 154_880, 321_649, 1_809


def make(path: Path, gigabytes: int) -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    from gguf_bytes import Builder, Typed

    keys = json.loads((ROOT / "tests" / "data" / "gguf_keys.json").read_text())["zai-org/GLM-5"]["keys"]
    values: dict[str, Any] = {key: value for key, value in keys.items() if not isinstance(value, dict)}
    values["tokenizer.ggml.tokens"] = [f"token{i}" for i in range(TOKENS)]
    values["tokenizer.ggml.token_type"] = Typed("i32", [1] * TOKENS)
    values["tokenizer.ggml.merges"] = [f"tok en{i}" for i in range(MERGES)]
    rows = gigabytes * 10**9 // TENSORS // 144
    tensors = [(f"blk.{i}.ffn_down.weight", (256, rows), 12, i * -(-rows * 144 // 32) * 32) for i in range(TENSORS)]
    path.write_bytes(Builder().header(values, tensors))
    os.truncate(path, path.stat().st_size + TENSORS * (rows * 144 + 32) + 32)


def ours(path: str) -> Callable[[], dict[str, Any]]:
    from attnfit.inputs.gguf import read_gguf
    from attnfit.inputs.gguf.traits import describe

    def read() -> dict[str, Any]:
        found = describe(read_gguf(path))
        return {"tensors": len(found.files.tensors), "vocabulary": found.config["vocab_size"]}

    return read


def package(path: str) -> Callable[[], dict[str, Any]]:
    from gguf import GGUFReader

    def read() -> dict[str, Any]:
        found = GGUFReader(path)
        words = found.get_field("tokenizer.ggml.tokens")
        return {"tensors": len(found.tensors), "vocabulary": len(words.data) if words else 0}

    return read


def hf_mem(path: str) -> Callable[[], dict[str, Any]]:
    import httpx2
    from hf_mem.gguf.fetch import fetch_gguf_metadata

    asked = 0

    def served(request: Any) -> Any:
        nonlocal asked
        first, last = (int(x) for x in request.headers["range"].removeprefix("bytes=").split("-"))
        with open(path, "rb") as file:
            file.seek(first)
            data = file.read(last - first + 1)
        asked += len(data)
        return httpx2.Response(206, content=data)

    async def fetched() -> Any:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(served)) as client:
            return await fetch_gguf_metadata(client, "https://huggingface.co/a/b/resolve/main/c.gguf")

    def read() -> dict[str, Any]:
        asyncio.run(fetched())
        return {"bytes": asked}

    return read


READERS = {"attnfit": ours, "gguf": package, "hf-mem": hf_mem}


def one(name: str, path: str) -> None:
    """The child: reads once and says what it cost."""
    begun = time.perf_counter()
    read = READERS[name](path)
    ready = time.perf_counter()
    said = read()
    done = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    print(json.dumps({"import": ready - begun, "read": done - ready, "peak": peak, **said}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--size", type=int, default=400, help="GB of tensors, not written")
    parser.add_argument("--read", nargs=2, metavar=("READER", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        return make(Path(args.read[1]), args.size) if args.read[0] == "make" else one(*args.read)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.gguf"
        # not here: a child's peak memory starts from its parent's
        subprocess.run([sys.executable, __file__, "--size", str(args.size), "--read", "make", str(path)], check=True)
        print(f"header of {path.stat().st_size / 1e9:.0f} GB, medians of {args.runs} runs")
        for name in READERS:
            measure(name, path, args.runs)


def measure(name: str, path: Path, runs: int) -> None:
    found = []
    for _ in range(runs + 1):  # the first warms the file cache
        child = [sys.executable, __file__, "--read", name, str(path)]
        done = subprocess.run(child, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{name}: {(done.stderr.strip().splitlines() or ['no answer'])[-1]}")
            return
        found.append(json.loads(done.stdout))
    figures = {key: statistics.median(run[key] for run in found[1:]) for key in ("import", "read", "peak")}
    rest = ", ".join(f"{key} {value:,}" for key, value in found[-1].items() if key not in figures)
    print(
        f"{name:8} import {figures['import']:.3f} s, read {figures['read']:.3f} s, "
        f"peak memory {figures['peak']:.0f} MiB; {rest}"
    )


if __name__ == "__main__":
    main()
