"""Damaged files by the hundred thousand: configs, safetensors headers, GGUF headers. None may be a fault of ours.

    python proofs/mutations.py [--count 200000] [--seed N]

Every mutant must be read, refused in one sentence (AttnfitError) or be unknown, within 2 seconds and 300 MB of memory.
Configs go the whole way of `attnfit model`: config class, sizes, layers, quantisation, text; GGUF headers, half
of them damaged in their bytes and half in their values, as far as a launch. Prints the worst of each and exits 1 on the
first fault, with the seed that makes it again.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import random
import resource
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnfit import engines
from attnfit.core import Capability, Gpu, Model
from attnfit.engines import Circumstances
from attnfit.engines.vllm.launch.traits import traits
from attnfit.errors import AttnfitError
from attnfit.inputs.gguf import read_set
from attnfit.inputs.gguf.traits import describe
from attnfit.inputs.safetensors import read_header
from attnfit.report.model import render
from attnfit.understand import ModelReport

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from gguf_bytes import Builder, Bytes, Typed  # noqa: E402

CONFIGS: dict[str, dict[str, Any]] = json.loads(
    gzip.decompress((ROOT / "tests" / "data" / "configs.json.gz").read_bytes())
)
NAMES = sorted(CONFIGS)
VLLM = engines.engine("vllm")
MOST_SECONDS, MOST_MIB = 2.0, 300
JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 7, 64, 2**31, 2**63, 10**30, 10**400, 0.5, -0.0, float("nan"), float("inf"), "",
    "64", "auto", [], {}, [[]], {"a": 1}, [None], ["x"], [1, "x"], "\x00", "full_attention", "fp8", [128, 128],
    "x" * 999, {"quant_method": 7}, {"quant_method": "fp8"}, {"quant_algo": "NVFP4", "quant_method": "modelopt"},
    [0] * 99, {"rope_type": "yarn", "factor": 0}, {"config_groups": {"g": {"weights": 3}}}, [{"a": []}],
]  # fmt: skip
PIECES = [b"9" * 30, b"[", b"{", b'"', b"-1", b"1e400", b"null", b"\xed\xa0\x80", b"\0", b"\xff" * 8, b"[[[[", b'{"a":']


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200_000, help="mutants in all")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    args = parser.parse_args()
    kinds: list[tuple[str, float, Callable[[random.Random], str]]] = [
        ("configs", 0.3, config),
        ("safetensors headers", 0.35, safetensors),
        ("GGUF headers", 0.35, gguf),
    ]
    for name, share, one in kinds:
        worst, outcomes = 0.0, dict.fromkeys(("read", "refused", "unknown"), 0)
        count = int(args.count * share)
        for number in range(count):
            rng = random.Random(f"{args.seed}/{name}/{number}")
            started = time.perf_counter()
            try:
                outcomes[one(rng)] += 1
            except Exception as error:
                print(f"{name} {number} of seed {args.seed}: {type(error).__name__}: {error}")
                raise SystemExit(1) from error
            worst = max(worst, time.perf_counter() - started)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> (20 if sys.platform == "darwin" else 10)
        print(f"{count:,} {name}: {outcomes}; slowest {worst:.2f} s; {memory} MiB at most so far")
        if worst > MOST_SECONDS or memory > MOST_MIB:
            raise SystemExit(1)


def config(rng: random.Random) -> str:
    files = CONFIGS[rng.choice(NAMES)]
    both = {"config": copy.deepcopy(files["config"]), "hf_quant": copy.deepcopy(files["hf_quant"])}
    for _ in range(rng.randint(1, 6)):
        level: Any = both["hf_quant"] if both["hf_quant"] and rng.random() < 0.2 else both["config"]
        while (inner := [k for k, v in level.items() if isinstance(v, dict) and v]) and rng.random() < 0.5:
            level = level[rng.choice(inner)]
        if level:
            key = rng.choice(sorted(level, key=str))
            if rng.random() < 0.3:
                del level[key]
            else:
                level[key] = copy.deepcopy(rng.choice(JUNK))
    release = rng.choice(("0.33.0", "0.33.0", "0.23.0", "0.16.0"))
    found = traits(Model(path="x", config=both["config"], hf_quant=both["hf_quant"]), release)
    render(ModelReport(model="x", engine="vllm", traits=found))
    return "unknown" if found.unknown else "read"


def _packed(header: Any, data: int) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"\0" * data


_TENSORS = {
    f"model.layers.{i}.w": {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i in range(40)
}
SAFETENSORS = _packed(_TENSORS | {"__metadata__": {"format": "pt"}}, 160)
ARRAYS = {"int32": "i32", "bool": "bool", "float32": "f32"}


def _gguf(keys: dict[str, Any], version: int, order: str) -> bytes:
    values = {
        key: value if not isinstance(value, dict) else Typed(ARRAYS[value["kind"]], value["values"])
        for key, value in keys.items()
        if not isinstance(value, dict) or "values" in value
    }
    words = [f"word{i}" for i in range(60)]
    return Builder(version, order).header(
        {**values, "tokenizer.ggml.tokens": words, "scores": Typed("f32", [0.5] * 60), "nested": [[1], [3]]},
        [(f"blk.{i}.attn_q.weight", (256, 2), 12, 288 * i) for i in range(30)],
    )


KEYS = [model["keys"] for model in json.loads((ROOT / "tests" / "data" / "gguf_keys.json").read_text()).values()]
ODD: list[Any] = [
    0, 1, 2, 3, 7, 64, 2**32 - 1, -1.0, 0.5, float("nan"), True, False, "", "llama", "\x00", "x" * 2000, ["a", "b"], [],
    *({"kind": kind, "values": values} for kind in ARRAYS for values in ([], [1], [0, 1], [1] * 100)),
]  # fmt: skip
GGUF = [_gguf(keys, version, order) for keys in KEYS for version, order in ((3, "<"), (3, "<"), (1, "<"), (3, ">"))]


def damaged(rng: random.Random, good: bytes) -> bytes:
    data = bytearray(good)
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0 if at < len(data):
                data[at] = rng.randrange(256)
            case 1:
                del data[at : at + rng.randint(1, 60)]
            case 2:
                data[at:at] = rng.choice(PIECES)
            case 3:
                data[at : at + 8] = struct.pack("<Q", rng.choice((0, 1, 2**31, 2**40, 2**63, 2**64 - 1)))
            case _:
                del data[at:]
        if not data:
            break
    return bytes(data)


def safetensors(rng: random.Random) -> str:
    data = damaged(rng, SAFETENSORS)
    return _headed(read_header, Bytes(data, rng.choice((len(data), 1 << 40, len(data))), "x.safetensors"))


def gguf(rng: random.Random) -> str:
    data = damaged(rng, rng.choice(GGUF)) if rng.random() < 0.5 else _odd_values(rng)
    source = Bytes(data, rng.choice((len(data), 1 << 40, len(data))), "x.gguf")
    return _headed(lambda source: _launched(rng, source), source)


def _odd_values(rng: random.Random) -> bytes:
    """A sound header whose keys hold what they should not, or are missing."""
    keys = dict(rng.choice(KEYS))
    for _ in range(rng.randint(1, 4)):
        key = rng.choice(sorted(keys))
        if rng.random() < 0.25:
            del keys[key]
        else:
            keys[key] = rng.choice(ODD)
    return _gguf(keys, rng.choice((1, 3)), rng.choice("<>"))


def _launched(rng: random.Random, source: Bytes) -> None:
    """As far as a launch: traits, and the release's own way with the file."""
    found = describe(read_set(source, lambda name: None))
    release = rng.choice(("0.12.0", "0.23.0", "0.33.0"))
    model, gpu = Model(path="/x.gguf", config=found.config, gguf=found), Gpu(name="", capability=Capability(12, 0))
    launch = VLLM.release(release).launch(Circumstances(model, gpu, (), env={}))
    if any("that attnfit cannot follow" in said for said in launch.unknown):
        raise RuntimeError(f"{release}: {launch.unknown}")


def _headed(reader: Callable[[Any], Any], source: Bytes) -> str:
    try:
        reader(source)
    except AttnfitError as error:
        said = str(error)
    else:
        return "read"
    if "\n" in said or len(said) > 600:
        raise RuntimeError(f"not one sentence: {said}")
    return "refused"


if __name__ == "__main__":
    main()
