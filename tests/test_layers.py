"""What a model asks the selector, against a real vLLM 0.33.0 (the launch oracle: real config and model classes).

`data/layers.json.gz` holds launches as the engine resolved them, the questions its model class then asked, and the
cache-bearing layers it built: at least one per architecture that could be built, with drafts, pipeline ranks, rewritten
and skipped KV dtypes among them.
"""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attnfit.core import Capability, Question, Reason, Selection, Status, Verdict
from attnfit.engines.vllm.launch import asker, layers, plan_table
from attnfit.engines.vllm.launch.state import EngineConfig, ParsedFlags, Unknown

ROWS: list[dict[str, Any]] = json.loads(gzip.decompress((Path(__file__).parent / "data/layers.json.gz").read_bytes()))
KV_FIELDS = ("layer_class", "backend", "mamba_type", "kv_cache_dtype", "head_size", "num_kv_heads", "sliding_window")
FIELDS = [f for f in Question.__struct_fields__ if f not in asker._CONTEXT and f not in ("num_heads", "backend")]
DEFAULTS: dict[str, Any] = dict.fromkeys(FIELDS, False) | {"block_size": None, "attn_type": "decoder"}


def engine(row: dict[str, Any], **changes: Any) -> EngineConfig:
    base = copy.deepcopy(row["engine"])
    given = {"config": {}, "head_size": 0, "num_heads": 0, "num_kv_heads": 0, **base, **changes}
    given["capability"] = Capability(*given["capability"])
    if isinstance(given.get("flags"), dict):
        given["flags"] = ParsedFlags(**given["flags"])
    return EngineConfig(**{k: tuple(v) if k == "kv_cache_dtype_skip_layers" else v for k, v in given.items()})


def as_recorded(row: dict[str, Any]) -> Any:
    """A selector that answers as the engine's own did for this launch."""
    table = {key(q): q for q in row["questions"]}

    def select(question: Question) -> Selection:
        asked = {f: getattr(question, f) for f in FIELDS}
        found = table[key({**asked, "num_heads": question.num_heads, "backend": question.backend})]
        return Selection(found["chosen"], (), (), error="refused" if found["refused"] else None)

    return select


def key(q: dict[str, Any]) -> tuple[Any, ...]:
    return (*(q.get(f, DEFAULTS[f]) for f in FIELDS), q["num_heads"], q["backend"])


@pytest.mark.parametrize("row", ROWS, ids=[f"{r['name']}-{i}" for i, r in enumerate(ROWS)])
def test_the_same_questions_as_the_engine_in_its_order(row: dict[str, Any]) -> None:
    answer = layers.ask(engine(row), as_recorded(row))
    asked = [(each.role, each.layer_class, each.count, each.selection.chosen) for each in answer.layers]
    assert asked == [(q["role"], q["layer_class"], q["count"], q["chosen"]) for q in row["questions"]]
    assert answer.unknown == []
    if not any(q["refused"] for q in row["questions"]):
        assert answer.kv_cache_dtype == row["kv_cache_dtype_after_init"]
        built: Counter[Any] = Counter()
        for layer in answer.kv_layers:
            if layer.role == "target":
                built[tuple(getattr(layer, f) for f in KV_FIELDS)] += layer.count
        assert built == Counter({tuple(k.get(f) for f in KV_FIELDS): k["count"] for k in merged(row["kv_layers"])})


def merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that differ only in what attnfit does not report, added up."""
    out: dict[Any, dict[str, Any]] = {}
    for row in rows:
        at = out.setdefault(tuple(row.get(f) for f in KV_FIELDS), {**row, "count": 0})
        at["count"] += row["count"]
    return list(out.values())


def any_backend(question: Question) -> Selection:
    return Selection("FLASH_ATTN", ("FLASH_ATTN",), ())


def llama(**text: Any) -> EngineConfig:
    config = {"num_hidden_layers": 10, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096} | text
    return EngineConfig(
        release="0.33.0", capability=Capability(9, 0), flags=ParsedFlags(values={}, defaults={}, env={}),
        config=config, text=config, architecture="LlamaForCausalLM", model_type="llama", dtype="bfloat16",
        quantization=None, quant_config=None, head_size=128, num_heads=32, num_kv_heads=8, use_mla=False,
        is_hybrid=False,
    )  # fmt: skip


@pytest.mark.parametrize(("pp", "first"), [(1, 10), (2, 5), (3, 3), (4, 2), (6, 1)])
def test_pipeline_rank_0_builds_its_share(pp: int, first: int) -> None:
    """vllm/distributed/utils.py:198: the rest goes to the middle ranks, last excluded."""
    answer = layers.ask(msgspec.structs.replace(llama(), pp=pp), any_backend)
    assert [each.count for each in answer.layers] == [first]


def test_two_ranks_share_an_odd_number_from_the_front() -> None:
    answer = layers.ask(msgspec.structs.replace(llama(num_hidden_layers=11), pp=2), any_backend)
    assert answer.layers[0].count == 6


def test_a_shortened_hybrid_builds_as_many_layers_as_num_hidden_layers_says() -> None:
    kinds = [*["mamba"] * 5, "attention"] * 4
    short = llama(layer_types=kinds, num_hidden_layers=8)  # as `--hf-overrides` leaves it, seen in a real 0.33.0
    answer = layers.ask(msgspec.structs.replace(short, architecture="GraniteMoeHybridForCausalLM"), any_backend)
    assert [each.count for each in answer.layers] == [1]


def test_a_window_of_the_whole_model_reaches_every_layer() -> None:
    answer = layers.ask(llama(sliding_window=4096), any_backend)
    assert [(q.question.has_sliding_window, q.count) for q in answer.layers] == [(True, 10)]


def test_disable_sliding_window_clears_it() -> None:
    off = ParsedFlags(values={"disable_sliding_window": True}, defaults={}, env={})
    answer = layers.ask(msgspec.structs.replace(llama(sliding_window=4096), flags=off), any_backend)
    assert not answer.layers[0].question.has_sliding_window


def test_a_backend_per_kind_goes_to_its_kind_only() -> None:
    kinds = ["sliding_attention", "full_attention"] * 5
    cfg = llama(sliding_window=512, layer_types=kinds)
    cfg.attention = {"backend": "FLASHINFER", "backend_per_kind": {"sliding_window": "TRITON_ATTN"}}
    answer = layers.ask(cfg, any_backend)
    assert [(q.question.has_sliding_window, q.question.backend) for q in answer.layers] == [
        (True, "TRITON_ATTN"),
        (False, "FLASHINFER"),
    ]


def test_skipped_layers_ask_with_auto() -> None:
    cfg = msgspec.structs.replace(llama(), kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=("0", "9"))
    answer = layers.ask(cfg, any_backend)
    assert [(q.question.kv_cache_dtype, q.count) for q in answer.layers] == [("auto", 2), ("fp8", 8)]


def test_an_unknown_architecture_is_unknown_by_name() -> None:
    with pytest.raises(Unknown, match="how NoSuchForCausalLM builds its attention layers"):
        layers.ask(msgspec.structs.replace(llama(), architecture="NoSuchForCausalLM"), any_backend)


def test_a_missing_key_is_named() -> None:
    cfg = llama()
    del cfg.text["num_hidden_layers"]
    with pytest.raises(Unknown, match="num_hidden_layers"):
        layers.ask(cfg, any_backend)


def test_a_draft_of_its_own_is_unknown_but_the_target_is_answered() -> None:
    cfg = msgspec.structs.replace(llama(), speculative={"method": "eagle", "num_speculative_tokens": 2})
    answer = layers.ask(cfg, any_backend)
    assert answer.layers[0].count == 10
    assert answer.unknown == ["the config of the draft model (speculative method 'eagle')"]


def test_another_release_is_answered_where_its_class_reads_the_same() -> None:
    answer = layers.ask(msgspec.structs.replace(llama(), release="0.16.0"), any_backend)
    assert answer.layers[0].count == 10
    assert answer.notes


def test_another_release_is_unknown_where_its_class_differs() -> None:
    cfg = msgspec.structs.replace(llama(), release="0.16.0", architecture="MiMoV2FlashForCausalLM")
    with pytest.raises(Unknown):
        layers.ask(cfg, any_backend)


def test_hy_v4_binds_the_sink_taking_backend_where_flashmla_sparse_is_valid() -> None:
    text = {
        "num_hidden_layers": 2, "num_attention_heads": 16, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128, "v_head_dim": 128, "index_topk": 2048, "learnable_sink": True,
        "layer_types": ["indexed_attention", "full_attention"],
    }  # fmt: skip
    cfg = msgspec.structs.replace(llama(), architecture="HYV4ForCausalLM", text=text, use_mla=True)
    cfg.kv_cache_dtype = "fp8"

    def select(question: Question) -> Selection:
        no = Verdict("FLASHMLA_SPARSE", Status.REFUSES, (Reason("sparse", "sparse"),))
        yes = Verdict("FLASHMLA_SPARSE", Status.ACCEPTS)
        return Selection("FLASH_ATTN_MLA", (), (yes if question.use_sparse else no,))

    answer = layers.ask(cfg, select)
    assert [(q.layer_class, q.question.use_sparse, q.count) for q in answer.layers] == [
        ("HYV4MLAAttention", True, 2),
        ("HYV4MLAAttention", False, 1),
        ("MLAAttention", False, 1),
    ]
    assert [k.backend for k in answer.kv_layers] == ["DEEPSEEK_V32_INDEXER", "FLASHMLA_SPARSE", "FLASH_ATTN_MLA"]
    assert answer.kv_cache_dtype == "fp8_ds_mla"


def test_every_plan_names_its_source_and_a_known_builder() -> None:
    table = plan_table.families("0.33.0")
    for name, plan in table.plans.items():
        assert plan["where"].startswith("vllm/"), name
        assert plan["build"] in asker.PLANS, name
    assert set(table.architectures.values()) <= set(table.plans)
    assert set(table.drafts_of.values()) <= set(table.architectures)


WRONG: list[Any] = [None, -1, 0, 10**30, float("nan"), "7", "x", True, [], [None], {}, {"a": 1}, [[1]], 1.5]


@pytest.mark.parametrize("seed", range(6))
def test_wrong_values_in_a_config_are_unknown_never_a_traceback(seed: int) -> None:
    chance = random.Random(seed)
    for row in chance.sample(ROWS, 60):
        cfg = engine(row)
        for name in chance.sample(sorted(cfg.text), min(3, len(cfg.text))):
            cfg.text[name] = chance.choice(WRONG)
        with contextlib.suppress(Unknown):
            layers.ask(cfg, any_backend)
