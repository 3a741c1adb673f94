"""Will it fit, against a real vLLM 0.33.0: KV cache specs, groups, blocks, tokens; parameters of rank 0.

    LD_LIBRARY_PATH=STUB python proofs/memory.py ENGINE_PYTHON [--launches N] [--seed S] [--answers FILE]

ENGINE_PYTHON has vLLM 0.33.0 (docs/proofs.md says how). Every config of tests/data/configs.json.gz is launched at
tensor parallel size 1, 2 and 8, and N times with random flags; attnfit must plan the KV cache to the byte and its range
of weights must hold the engine's. Exits 1 on any disagreement, and says how much was unknown.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from attnfit.engines.vllm.fit.config_weights import derive  # noqa: E402
from attnfit.engines.vllm.fit.groups import pool  # noqa: E402
from attnfit.engines.vllm.fit.kernel_blocks import layout, packed  # noqa: E402
from attnfit.engines.vllm.fit.memory import served  # noqa: E402
from attnfit.engines.vllm.fit.scheduler import batch, hybrid, limits  # noqa: E402
from attnfit.engines.vllm.fit.specs import Built, layer_specs  # noqa: E402
from attnfit.engines.vllm.fit.weights import rank_weights, shard_of  # noqa: E402
from attnfit.engines.vllm.launch.state import Refusal, Unknown  # noqa: E402
from fit_cases import built, configs  # noqa: E402

PRETENDED = 80 << 30  # memory of the judge's GPU
CAPABILITIES = ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"]
FLAGS = [
    ["--dtype", "float32"], ["--dtype", "float16"],
    ["--kv-cache-dtype", "fp8"], ["--kv-cache-dtype", "bfloat16"], ["--kv-cache-dtype", "turboquant_4bit_nc"],
    ["--kv-cache-dtype", "int8_per_token_head"], ["--block-size", "64"], ["--block-size", "256"],
    ["--enable-expert-parallel"], ["--data-parallel-size", "2", "--enable-expert-parallel"],
    ["--decode-context-parallel-size", "2"], ["--no-enable-prefix-caching"], ["--mamba-cache-mode", "align"],
    ["--max-num-batched-tokens", "4096"], ["--max-num-seqs", "64"], ["--max-model-len", "8192"],
    ["--disable-hybrid-kv-cache-manager"], ["--speculative-config", '{"method":"mtp","num_speculative_tokens":1}'],
    ["--runner", "pooling"], ["--enforce-eager"], ["--no-async-scheduling"],
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", help="a Python with vLLM 0.33.0")
    parser.add_argument("--launches", type=int, default=200, help="with random flags, beside the plain ones")
    parser.add_argument("--no-plain", action="store_true", help="only those with random flags")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--answers", type=Path, help="keep the engine's answers here; what lies there is not asked again"
    )
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    if args.answers is None or not args.answers.exists():
        plain = [] if args.no_plain else _plain()
        rows = _judge(args.engine, plain + _mixed(args.launches, random.Random(args.seed)))
        if args.answers is not None:
            args.answers.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    else:
        rows = [json.loads(line) for line in args.answers.read_text("utf-8").splitlines()]
    for row in rows:
        if "memory" not in row:
            counts["did not pass"] += 1
            continue
        for problem in _compare(row, counts):
            counts["wrong"] += 1
            print(row["name"], row["capability"], *row["flags"], problem, sep=" ")
    print(dict(counts))
    sys.exit(1 if counts["wrong"] or not counts["plans"] else 0)


def _plain() -> list[tuple[str, str, list[str]]]:
    return [
        (name, "10.0" if "NVFP4" in name else "9.0", ["-tp", size] if size != "1" else [])
        for name in sorted(configs())
        for size in ("1", "2", "8")
    ]


def _mixed(fresh: int, chance: random.Random) -> list[tuple[str, str, list[str]]]:
    names, mixed = sorted(configs()), []
    for _ in range(fresh):
        flags = chance.choice([[], ["-tp", "2"], ["-tp", "4"], ["-tp", "8"]])
        some = [word for flag in chance.sample(FLAGS, chance.randint(0, 2)) for word in flag]
        mixed.append((chance.choice(names), chance.choice(CAPABILITIES), [*flags, *some]))
    return mixed


def _judge(engine: str, launches: list[tuple[str, str, list[str]]]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as place:
        for name, files in configs().items():
            directory = Path(place, name)
            directory.mkdir()
            (directory / "config.json").write_text(json.dumps(files["config"]), "utf-8")
            if files.get("hf_quant"):
                (directory / "hf_quant_config.json").write_text(json.dumps(files["hf_quant"]), "utf-8")
        asked = [
            {"model": str(Path(place, name)), "name": name, "capability": capability, "flags": flags, "measure": True}
            for name, capability, flags in launches
        ]
        lines = "".join(json.dumps(launch) + "\n" for launch in asked)
        done = subprocess.run(
            [engine, str(ROOT / "proofs" / "real_launch.py")], input=lines, capture_output=True, text=True, check=True
        )
        return [json.loads(line) for line in done.stdout.splitlines()]


def _compare(row: dict[str, Any], counts: Counter[str]) -> list[str]:
    real = row["memory"]
    try:
        b = built(row["name"], tuple(row["flags"]), row["capability"])
        found = _plan(b)
    except (Unknown, Refusal) as reason:
        counts[f"unknown plan: {reason}"[:90]] += 1
        return _weights(row, counts)
    counts["plans"] += 1
    bound = limits(b.cfg, batch(b.cfg, b.capability, PRETENDED, "fake").tokens)
    problems = []
    declared: Counter[Any] = Counter()
    for spec in layer_specs(b):
        page = spec.page_bytes if spec.kind else None
        declared[(spec.layer_class, spec.kind, spec.block_size, page)] += spec.count
    if declared != Counter({tuple(key): n for *key, n in real["declared"]}):
        problems.append(f"specs: {dict(declared)} for {real['declared']}")
    if found.bytes_per_block != real["bytes_per_block"]:
        problems.append(f"bytes per block: {found.bytes_per_block} for {real['bytes_per_block']}")
    for free, blocks, tokens, more in real["fits"]:
        counts["figures"] += 1
        got = served(found, bound, free, b.cfg.max_model_len)
        ours = (got.capacity and tuple(got.capacity)) or (None, got.longest)
        if ours != ((blocks, tokens, more) if blocks is not None else (None, tokens)):
            problems.append(f"{free} bytes free: {ours} for {(blocks, tokens, more)}")
    return problems + _weights(row, counts)


def _plan(b: Built) -> Any:
    specs = [packed(spec, layer, b) for spec, layer in zip(layer_specs(b), b.layers, strict=True)]
    kept = [spec for spec in specs if spec.kind is not None]
    return pool(kept, layout(b, kept), hybrid=hybrid(b.cfg))


def _weights(row: dict[str, Any], counts: Counter[str]) -> list[str]:
    try:
        cfg = built(row["name"], tuple(row["flags"]), row["capability"]).cfg
        derived = derive(cfg)
    except (Unknown, Refusal):
        counts["unknown weights"] += 1
        return []
    counts["weights"] += 1
    shard = shard_of(cfg)
    low, high = rank_weights(derived.low, shard).rank.low, rank_weights(derived.high, shard).rank.high
    real = row["memory"]["weights"]
    return [] if low <= real <= high else [f"weights: {low} to {high} for {real}"]


if __name__ == "__main__":
    main()
