"""The traits `attnfit model` reads from real configs: writes docs/models.md, and compares with the engine's own.

    python proofs/models.py [--truth LAUNCHES.jsonl.gz] [--write]

The configs are those of tests/data/configs.json.gz. LAUNCHES are answers of a really installed vLLM of the same release
(proofs/real_launch.py): its parser, its config classes, its model classes built on pretended GPUs. Exits 1 on any
disagreement.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnfit.core import Capability, Model
from attnfit.engines.traits import LayerKind, Traits
from attnfit.engines.vllm.launch.traits import traits

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "models.md"
RELEASE = "0.33.0"
#: where a file is not simply a copy of the publisher's; none was compared with the hub
ORIGIN = {
    "google__gemma-3-27b-it": "reconstructed",
    "ibm-granite__granite-4.0-h-1b": "reconstructed, without its head counts",
    "zai-org__GLM-4.5-Air": "reconstructed",
    "zai-org__GLM-5.3-Flash": "reconstructed",
    "moonshotai__Kimi-Linear-48B-A3B-Instruct": "trimmed",
    "tiiuae__Falcon-H1-0.5B-Base": "second hand, a key is missing",
    **dict.fromkeys(
        (
            "Qwen__Qwen3.5-122B-A10B", "Qwen__Qwen3.5-35B-A3B", "Qwen__Qwen3.5-397B-A17B",
            "moonshotai__Kimi-K2.5", "nvidia__Qwen3.5-397B-A17B-NVFP4", "nvidia__Kimi-K2.5-NVFP4",
        ),
        "vision part trimmed",
    ),
}  # fmt: skip
#: trait -> the engine's name in `model_arch_config`, or in `model`
ARCH = {
    "hidden_layers": "total_num_hidden_layers", "hidden_size": "hidden_size",
    "attention_heads": "total_num_attention_heads", "kv_heads": "total_num_kv_heads", "head_size": "head_size",
    "experts": "num_experts", "experts_per_token": "num_experts_per_token", "vocab_size": "vocab_size",
    "model_type": "model_type",
}  # fmt: skip
MODEL = {"architecture": "architecture", "quantization": "quantization", "max_model_len": "max_model_len"}
#: flags that change what a model is, or how many of its layers a rank has
CHANGING = ("--max-model-len", "--hf-overrides", "--speculative-config", "-sc", "--pipeline-parallel-size", "-pp",
            "--quantization", "-q", "--disable-sliding-window", "--config-format", "--model-impl")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", help="answers of the real engine, JSON lines, gzipped")
    parser.add_argument("--write", action="store_true", help="write docs/models.md")
    args = parser.parse_args()
    models = dict(read())
    if args.write:
        found = {name: traits(model, RELEASE) for name, model in models.items()}
        PAGE.write_text(page(found), "utf-8")
        print(f"{PAGE.relative_to(ROOT)}: {len(found)} models")
    if args.truth:
        sys.exit(1 if compare(models, args.truth) else 0)


def read() -> Iterator[tuple[str, Model]]:
    """Every real config at hand."""
    packed = gzip.decompress((ROOT / "tests" / "data" / "configs.json.gz").read_bytes())
    for name, files in sorted(json.loads(packed).items()):
        yield name, Model(path=name, config=files["config"], hf_quant=files["hf_quant"])


def page(found: dict[str, Traits]) -> str:
    understood = sum(not each.unknown for each in found.values())
    head = f"""# Real models as attnfit reads them

{len(found)} configs as vLLM {RELEASE} reads them; {understood} are understood in full. Written by
`python proofs/models.py --write`, which with `--truth` also compares every trait with the real engine's config and
model classes ([proofs.md](proofs.md)). `attnfit model` shows the same for any model, and the key of each trait.

Compared in November 2026 with a really installed vLLM {RELEASE}, each config once, without flags, on capability 10.0:
49 models, 735 traits, 0 disagreements; the other 6 the engine refuses itself. And with the launches of an earlier grid,
of mixed flags and capabilities: 46 models, 3,259 traits, 0 disagreements.

All files are copies kept by public projects; none was compared with the hub. Marked are those that are more than
that: *reconstructed* (put together from other public sources), *trimmed*, *second hand*. *Refused*: the engine itself
does not take the file as it stands (an unknown model type, an unsupported class); what is shown follows from its keys.

Layers: what has a KV cache or a state, as the model class builds it. Heads: query/KV.

"""
    rows = ["| model | architecture | layers | heads | head size | experts | length | dtype, quantisation | file |"]
    rows.append("|---|---|---|---|---|---|---|---|---|")
    for name, each in found.items():
        v = {trait.name: trait.value for trait in each.traits}
        layers = "<br>".join(map(layer, each.layers)) or "unknown: " + "; ".join(each.unknown)
        experts = f"{v['experts']}, {v.get('experts_per_token')} a token" if v.get("experts") else ""
        kv = v.get("kv_cache_dtype")
        quantised = [str(v.get("dtype")), *([str(v["quantization"])] if v.get("quantization") else [])]
        quantised += [f"KV {kv}"] if kv and kv != "auto" else []
        refused = ["refused"] if any("refused" in note for note in each.notes) else []
        marks = ", ".join([*([ORIGIN[name]] if name in ORIGIN else []), *refused])
        rows.append(
            f"| {name.replace('__', '/')} | {v.get('architecture')} | {layers} "
            f"| {v.get('attention_heads')}/{v.get('kv_heads')} | {v.get('head_size')} | {experts} "
            f"| {v.get('max_model_len')} | {', '.join(quantised)} | {marks} |"
        )
    return head + "\n".join(rows) + "\n"


def layer(kind: LayerKind) -> str:
    return f"{kind.count} {kind.kind}" + (f" {kind.window}" if kind.window else "")


def compare(models: dict[str, Model], truth: str) -> int:
    """Disagreements with the real engine, printed."""
    seen, refused, fields, wrong = set(), set(), 0, 0
    with gzip.open(truth, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            name, flags = row["name"], row.get("flags") or []
            if name not in models:
                continue
            if "model_arch_config" not in row:
                refused.add(name)
                continue
            if any(flag.partition("=")[0] in CHANGING for flag in flags):
                continue
            seen.add(name)
            gpu = Capability.parse(row["capability"])  # some classes of layers are chosen by it
            read_there = traits(models[name], RELEASE, gpu)
            for trait, ours, theirs in both(read_there, row):
                fields += 1
                if ours != theirs:
                    wrong += 1
                    print(f"{name} {trait}: attnfit {ours!r}, the engine {theirs!r} ({' '.join(flags)})")
    print(f"{len(seen)} models, {fields} traits compared, {wrong} disagreements")
    print("the engine refuses their config: " + (", ".join(sorted(refused - seen)) or "none"))
    print("not among the answers: " + (", ".join(sorted(set(models) - seen - refused)) or "none"))
    return wrong


def both(found: Traits, row: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    ours = {trait.name: trait.value for trait in found.traits}
    for trait, theirs in ARCH.items():
        yield trait, ours.get(trait) or 0, row["model_arch_config"][theirs] or 0
    for trait, theirs in MODEL.items():
        yield trait, ours.get(trait), row["model"][theirs]
    yield "config_class", ours.get("config_class") or "", text_class(row, ours)
    yield "MLA", any(k.kind.startswith("MLA") for k in found.layers), row["model_arch_config"]["is_deepseek_mla"]
    if row["ok"]:
        built: dict[str, int] = {}
        for kind in found.layers:
            built[kind.layer_class] = built.get(kind.layer_class, 0) + kind.count
        theirs: dict[str, int] = {}
        for entry in row["kv_layers"]:
            theirs[entry["layer_class"]] = theirs.get(entry["layer_class"], 0) + entry["count"]
        yield "layers", built, theirs


def text_class(row: dict[str, Any], ours: dict[str, Any]) -> Any:
    """The engine names the class of the whole config; where the language model has one of its own, ours names that."""
    return row["model"]["config_class"] if "text_model_type" not in ours else ours.get("config_class")


if __name__ == "__main__":
    main()
