"""Layers of several kinds in releases before 0.33.0: grouped and counted as their own functions do.

`data/kv_groups.jsonl` is what proofs/kv_groups.py answered in four really installed releases.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnfit import check
from attnfit.engines.vllm.fit.groups import pool
from attnfit.engines.vllm.fit.memory import served
from attnfit.engines.vllm.fit.older import rules
from attnfit.engines.vllm.fit.spec import Limits, Spec
from fit_cases import DATA

ROWS: list[dict[str, Any]] = [json.loads(line) for line in (DATA / "kv_groups.jsonl").read_text("utf-8").splitlines()]


def made(row: list[Any]) -> Spec:
    kind, count, block, heads, size, window, state, padded, kept = row
    if kind == "MambaSpec":
        return Spec(
            layer_class="M", kind=kind, count=count, block_size=block, ratio=0, content=state, padded=padded,
            state_blocks=kept,
        )  # fmt: skip
    return Spec(
        layer_class="A", kind=kind, count=count, block_size=block, heads=heads, content=4 * size, window=window
    )  # fmt: skip


def test_four_releases_answered() -> None:
    assert {row["release"].partition("+")[0] for row in ROWS} == {"0.16.0", "0.20.2", "0.23.0", "0.28.0"}


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["release"])
def test_a_cache_is_shared_as_the_release_shares_it(row: dict[str, Any]) -> None:
    own = rules(row["release"])
    found = pool([made(s) for s in row["specs"]], "LBNHC", hybrid=True, padded_below=own.padded_below)
    assert sorted(sum(n for _, n in group) for group in found.groups) == row["groups"]
    bound = Limits(in_flight=row["tokens"] * (2 if own.all_batches else 1))
    got = served(found, bound, row["free"], row["length"], held_back=own.held_back)
    if own.checks_all:
        assert got.needed == row["needed"]
    assert (got.capacity is not None) == (got.needed <= row["free"])
    if got.capacity is not None:
        assert (got.capacity.blocks, got.capacity.concurrency) == (row["blocks"], row["requests"])


@pytest.mark.parametrize("release", ["0.16.0", "0.17.1", "0.20.2", "0.23.0", "0.26.0", "0.28.0", "0.33.0"])
def test_a_model_with_and_without_windows_is_measured(release: str, tmp_path: Path) -> None:
    """Half of the layers keep 128 tokens of a request: its cache takes about half of what full attention takes."""
    config = {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "head_dim": 64,
        "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 24,
        "num_local_experts": 32, "num_experts_per_tok": 4, "vocab_size": 201088, "sliding_window": 128,
        "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "hidden_act": "silu",
        "layer_types": ["sliding_attention", "full_attention"] * 12,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    words = ["vllm", "serve", str(tmp_path), "--max-num-batched-tokens", "2048"]
    report = check(words, gpu="h100", engine=f"vllm=={release}", planned=False)
    fit = report.launch.fit
    assert fit is not None
    whole = 24 * 2 * 8 * 64 * 2 * 131072
    assert fit.request_bytes is not None, fit.unknown
    assert 0.5 < fit.request_bytes / whole < 0.56
    assert fit.verdict == "fits"
