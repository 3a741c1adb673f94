"""The launches and batches of vllm_plugin.py, and what must come of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import random_launches

from attnfit.engines.vllm.plugin import indexers, serves

IMPL = "attnfit.engines.vllm.plugin.impl.TritonMLASparseImpl"
BUILDER = "attnfit.engines.vllm.plugin.metadata.TritonMLASparseMetadataBuilder"
INDEXERS = {f"attnfit.engines.vllm.plugin.indexer.{name}" for name in (
    "module.Indexer", "module.IndexerCache", "op.SparseIndexer")}  # fmt: skip
GENERIC = "vllm.model_executor.models.deepseek_v2."
GLM5, V32, FLASH = "zai-org__GLM-5", "deepseek-ai__DeepSeek-V3.2", "zai-org__GLM-5.3-Flash"
OWN = {"ATTNFIT_VLLM_INDEXER": "1"}
# The transformers that these releases bring, 4.57.6, reads no config of that type: `pip install -U transformers` first.
TOO_OLD = "but Transformers does not recognize this architecture"
HAS_FLASH = ("0.30.0", "0.32.0", "0.33.0")  # Glm5NextForCausalLM, models/registry.py (0.30.0:123)


def launches(release: str, folder: Path, ci: bool) -> Iterator[dict[str, Any]]:
    """float16 models on 8 GPUs: with vLLM's indexers where DeepGEMM has kernels, and with ours elsewhere. GLM-5.3-Flash
    in bfloat16, for its indexer has a weight of that type; in float16 it must be refused. Decode context parallelism
    must be refused where the release's indexer does not know of it (0.16.0 misses DeepGEMM before that)."""
    places = {place.name: str(place) for place in random_launches.models(folder / "models")}
    name = serves.NAME.lower() if release in serves.NAMED else serves.CUSTOM.lower()
    named = ["--attention-backend", name]
    packed = ["--kv-cache-dtype", "fp8_ds_mla"]
    wide = ["--dtype", "bfloat16", "--kv-cache-dtype", "bfloat16"]
    own = {} if indexers.deep_gemm_serves(release, (12, 0)) else OWN
    cases: list[tuple[str, str, list[str], dict[str, str]]] = [
        (GLM5, "12.0", named, own), (V32, "12.0", [*named, *packed], own),
        *([(FLASH, "12.0", named, {}), (FLASH, "12.0", [*named, *wide], {})] if release in HAS_FLASH else []),
        (GLM5, "8.0", [], {**OWN, "ATTNFIT_VLLM_AUTO": "1"}), (V32, "8.0", [*named, *packed], OWN),
    ]  # fmt: skip
    context = [*named, "--decode-context-parallel-size", "2"]
    if release != "0.16.0":  # whose proposer has another form
        mtp = {"method": "mtp", "num_speculative_tokens": 2}
        named_too = ["--speculative-config", json.dumps({**mtp, "attention_backend": name})]
        cases.append((V32, "12.0", [*named, *named_too], own))
        cases.append((V32, "8.0", ["--speculative-config", json.dumps(mtp)], {**OWN, "ATTNFIT_VLLM_AUTO": "1"}))
    cases.append((V32, "9.0" if release in serves.NO_DCP else "12.0", context, {}))
    if not ci:
        cases += [(V32, "12.0", named, own), (GLM5, "12.0", [*named, *packed], own), (GLM5, "8.9", named, OWN),
                  (V32, "8.9", [*named, *packed], OWN), (V32, "9.0", named, {})]  # fmt: skip
    for model, capability, flags, variables in cases:
        if release == "0.16.0" and packed[0] in flags:
            flags = named  # not in float16 there: the layer writes such rows itself
        if release == "0.16.0":
            flags = [*flags, "--swap-space", "0"]  # of the host's memory, 4 GiB a GPU by default
        flags = ["--dtype", "float16", "--tensor-parallel-size", "8", *flags]
        yield {"model": places[model], "capability": capability, "flags": flags, "variables": variables}


def launch_wrong(row: dict[str, Any]) -> Iterator[str]:
    if FLASH in row["model"] and row["flags"].count("--dtype") == 1:
        if "give --dtype bfloat16" not in (row["error"] or ""):
            yield f"not refused: {row['error']}"
        return
    if "--decode-context-parallel-size" in row["flags"] and row["capability"] == "9.0":
        if "answers would be silently wrong" not in (row["error"] or "") and "DeepGEMM" not in (row["error"] or ""):
            yield f"not refused: {row['error']}"
        return
    if not row["ok"]:
        yield f"{row['stage']}: {row['error'][:600]} {row.get('where')}"
        return
    found, flash = row["layers"], FLASH in row["model"]
    layers = found["impl"].get(IMPL, 0)
    drafts = row.get("draft", [])
    if set(found["impl"]) != {IMPL} or (layers != row["hidden_layers"] + len(drafts) and not flash):
        yield f"implementations {found['impl']} of {row['hidden_layers']} layers and {len(drafts)} of a draft"
    if ("--speculative-config" in row["flags"]) != bool(drafts) or not all(drafts):
        yield f"layers of a draft that read the target's buffer: {drafts}"
    if row["variables"].get("ATTNFIT_VLLM_INDEXER"):
        if set(found["indexer"]) != INDEXERS or not row["model_class"].startswith(GENERIC):
            yield f"indexers {found['indexer']} of {row['model_class']}"
    elif any("attnfit" in name for name in found["indexer"]):
        yield f"our indexer, unasked: {found['indexer']}"
    packed = "fp8_ds_mla" in row["flags"]
    mine = [builder for builder in row["builders"] if builder[0] == BUILDER]
    block, width = mine[0][2] if mine else None, 656 if packed else 512 if flash else 576
    if block not in row["kernel_block_sizes"] or (not flash and row["kernel_block_sizes"] != [block]):
        yield f"kernel block sizes {row['kernel_block_sizes']}, and {block} for our builder"
    kind = f"{'torch.uint8' if packed else 'torch.bfloat16' if flash else 'torch.float16'} [{block}, {width}] "
    if row["other_16_bit"]:
        yield f"parameters of another 16-bit type: {row['other_16_bit']}"
    if len(row["caches"]) != 1 or not all(k.startswith(kind) and n == layers for k, n in row["caches"].items()):
        yield f"caches {row['caches']}, not {layers} times {kind}"
    if mine != [[BUILDER, layers, block, "UNIFORM_BATCH"]]:
        yield f"builders {row['builders']}"
    if not any("serves sparse MLA layers" in line for line in row["said"]):
        yield f"the log says {row['said']}"


def batches(release: str, ci: bool) -> Iterator[dict[str, Any]]:
    """Batches for the implementation: every width, cache and dtype it serves, layers without an indexer, and ranks."""
    for seed in range(1 if ci else 3):
        for dtype in serves.DTYPES:
            packed = "auto" if release in serves.LAYER_WRITES_CACHE and dtype != "bfloat16" else "fp8_ds_mla"
            block = (16, 64, 48)[seed]
            some: list[dict[str, Any]] = [
                {"kv": packed, "block_size": block}, {"kv": "auto", "block_size": 64, "shared": True},
                {"kv": packed, "block_size": 16, "ranks": 4, "interleave": 8},
            ]  # fmt: skip
            if dtype == "float16" or not ci:
                some += [
                    {"kv": "auto", "block_size": block}, {"kv": dtype, "block_size": 64, "joined": True},
                    {"kv": "auto", "width": 512, "block_size": 64, "joined": True},
                    {"kv": "auto", "width": 512, "block_size": block},
                    {"kv": "auto", "block_size": 16, "ranks": 2},
                    {"kv": "auto", "width": 512, "block_size": 16, "ranks": 4},
                ]  # fmt: skip
            yield from ({"dtype": dtype, "width": 576, "seed": seed, **batch} for batch in some)
    yield {"dtype": "float16", "kv": "auto", "width": 576, "block_size": 64, "steps": True}
