"""The KV cache that a really running vLLM reported: the CPU engine, three tiny models with random weights.

`data/cpu_kv-0.32.0.json` says which engine and how. It served a dense, an MLA and a hybrid model from 1 GiB of cache.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from attnfit.core import Model
from attnfit.engines.vllm.fit.groups import pool
from attnfit.engines.vllm.fit.memory import served
from attnfit.engines.vllm.fit.scheduler import hybrid, limits
from attnfit.engines.vllm.fit.specs import layer_specs
from fit_cases import DATA, built_from, case

RUN: dict[str, Any] = json.loads((DATA / "cpu_kv-0.32.0.json").read_text("utf-8"))


@pytest.mark.parametrize("row", RUN["models"], ids=lambda row: row["name"])
def test_blocks_tokens_and_concurrency_are_those_of_the_running_engine(row: dict[str, Any]) -> None:
    length = RUN["max_model_len"]
    flags = ("--block-size", str(row["block_size"]), "--max-model-len", str(length), "--dtype", "bfloat16")
    launch = case("Qwen__Qwen3-8B", flags)._replace(model=Model(path=row["name"], config=row["config"]))
    b = built_from(launch)
    specs = layer_specs(b)
    assert [[s.kind, s.block_size, s.page_bytes, s.count] for s in specs] == row["groups"]
    found = pool(specs, "LBNHC", hybrid=hybrid(b.cfg))
    capacity = served(found, limits(b.cfg, length), RUN["cache_bytes"], length).capacity
    assert capacity is not None
    blocks, tokens, concurrency = capacity
    assert (blocks, tokens, round(concurrency, 2)) == (row["num_blocks"], row["tokens"], row["concurrency"])
