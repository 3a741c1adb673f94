"""Weights per rank: held against the parameters a real vLLM 0.33.0 builds, rank 0 of 1, 2 and 8.

`data/checkpoints.json.gz` lists the tensors of real models as the transformers library names and shapes them;
`data/kv_cache-0.33.0.jsonl.gz` has the bytes of the engine's own parameters for the same launches.
"""

from __future__ import annotations

import gzip
import json
from math import prod
from typing import Any

import pytest

from attnfit.engines.vllm.fit.config_weights import derive
from attnfit.engines.vllm.fit.shard_rules import Cut, layer_of, understand
from attnfit.engines.vllm.fit.weights import OWN, Shard, Tensors, Weights, rank_weights, shard_of
from attnfit.engines.vllm.launch.state import Unknown
from attnfit.fit.span import Span
from fit_cases import DATA, built

ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in gzip.decompress((DATA / "kv_cache-0.33.0.jsonl.gz").read_bytes()).splitlines()
]
PLAIN = [r for r in ROWS if r["flags"] in ([], ["-tp", "2"], ["-tp", "8"]) and r["capability"] in ("9.0", "10.0")]
CHECKPOINTS: dict[str, Any] = json.loads(gzip.decompress((DATA / "checkpoints.json.gz").read_bytes()))
DTYPES = {"bfloat16": ("BF16", 2), "float32": ("F32", 4)}


def checkpoint(model: str) -> Tensors:
    """name -> (dtype, shape, bytes), as the headers of its files would say."""
    out: dict[str, tuple[str, tuple[int, ...], int]] = {}
    for pattern, dtype, shape, layers, each in CHECKPOINTS[model]:
        name, size = DTYPES[dtype]
        for i in layers or [0]:
            for e in range(each):
                out[pattern.format(i=i, e=e)] = (name, tuple(shape), prod(shape) * size)
    return out


def ident(row: dict[str, Any]) -> str:
    return f"{row['model']}-{' '.join(row['flags'])}"


@pytest.mark.parametrize("row", [r for r in PLAIN if r["model"] in CHECKPOINTS], ids=ident)
def test_a_checkpoint_comes_to_what_the_engine_builds(row: dict[str, Any]) -> None:
    """The range holds the engine's own bytes, and is narrow: encoders and padded experts aside, within 1 %."""
    b = built(row["model"], tuple(row["flags"]), row["capability"])
    tensors = checkpoint(row["model"])
    found = rank_weights(tensors, shard_of(b.cfg))
    has_towers = any(understand(name).cut is Cut.TOWER for name in tensors)
    real = row["weights"] + (row["towers"] if has_towers else 0)
    assert found.rank.low <= real <= found.rank.high
    assert found.unknown == 0
    assert real - found.rank.low <= 0.04 * real


@pytest.mark.parametrize("row", PLAIN, ids=ident)
def test_weights_derived_from_a_config_hold_what_the_engine_builds(row: dict[str, Any]) -> None:
    """Or the architecture is unknown; encoders of images are not derived."""
    b = built(row["model"], tuple(row["flags"]), row["capability"])
    try:
        derived = derive(b.cfg)
    except Unknown:
        assert row["model"].split("__")[1].startswith(
            ("NVIDIA-Nemotron", "Nemotron", "Llama-4", "DeepSeek-V4", "granite", "Kimi-K3", "Kimi-Linear", "GLM-5.3",
             "Qwen3.6")
        )  # fmt: skip
        return
    shard = shard_of(b.cfg)
    low, high = rank_weights(derived.low, shard).rank.low, rank_weights(derived.high, shard).rank.high
    assert low <= row["weights"] <= high


def test_a_published_size_is_what_the_config_says() -> None:
    """Qwen3.5-397B-A17B-NVFP4: 223 GB in 6 files, in binary units as `ls` prints; with its draft of one layer, which
    is not loaded here."""
    row = next(r for r in PLAIN if r["model"] == "nvidia__Qwen3.5-397B-A17B-NVFP4" and not r["flags"])
    b = built(row["model"], (), row["capability"])
    derived = rank_weights(derive(b.cfg).high, shard_of(b.cfg)).rank.high + row["towers"]
    assert abs(derived / 2**30 - 223) < 0.01 * 223


def quantised(model: str, scheme: str) -> Tensors:
    """The model's tensors with its experts and MLPs packed, named as such checkpoints name them."""
    out: dict[str, tuple[str, tuple[int, ...], int]] = {}
    for name, (dtype, shape, nbytes) in checkpoint(model).items():
        if ".mlp." not in name or ".gate." in name or len(shape) < 2:
            out[name] = (dtype, shape, nbytes)
            continue
        at, (*rest, inputs) = name.removesuffix(".weight"), shape
        rows = prod(rest)
        if scheme == "nvfp4":
            out[f"{at}.weight"] = ("U8", (*rest, inputs // 2), rows * inputs // 2)
            out[f"{at}.weight_scale"] = ("F8_E4M3", (*rest, inputs // 16), rows * inputs // 16)
            out[f"{at}.weight_scale_2"] = out[f"{at}.input_scale"] = ("F32", (), 4)
        else:
            blocks = (*rest[:-1], -(-rest[-1] // 128), -(-inputs // 128))
            out[f"{at}.weight"] = ("F8_E4M3", shape, rows * inputs)
            out[f"{at}.weight_scale_inv"] = ("F32", blocks, prod(blocks) * 4)
    return out


@pytest.mark.parametrize("flags", [[], ["-tp", "2"], ["-tp", "8"]])
def test_a_packed_checkpoint_comes_to_what_the_engine_builds(flags: list[str]) -> None:
    """GLM-5 in NVFP4: experts and MLPs packed, attention not."""
    row = next(r for r in PLAIN if r["model"] == "nvidia__GLM-5-NVFP4" and r["flags"] == flags)
    b = built(row["model"], tuple(flags), row["capability"])
    found = rank_weights(quantised("zai-org__GLM-5", "nvfp4"), shard_of(b.cfg))
    assert found.rank.low <= row["weights"] <= found.rank.high
    assert found.rank.high - found.rank.low < 0.01 * row["weights"]


def test_block_scales_are_divided_with_their_weights() -> None:
    row = next(r for r in PLAIN if r["model"] == "Qwen__Qwen3-30B-A3B" and r["flags"] == ["-tp", "2"])
    b = built(row["model"], ("-tp", "2"), row["capability"])
    packed = rank_weights(quantised("Qwen__Qwen3-30B-A3B", "fp8"), shard_of(b.cfg)).rank.low
    plain = rank_weights(checkpoint("Qwen__Qwen3-30B-A3B"), shard_of(b.cfg)).rank.low
    experts = 48 * 128 * 3 * 768 * 2048
    assert plain - packed == experts // 2 - 4 * experts // 128**2 // 2


# --- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("model.embed_tokens.weight", Cut.VOCAB),
        ("lm_head.weight", Cut.VOCAB),
        ("model.layers.3.self_attn.q_proj.weight", Cut.COLUMN),
        ("model.layers.3.self_attn.k_proj.bias", Cut.KV),
        ("model.layers.3.self_attn.o_proj.weight_scale_inv", Cut.ROW),
        ("model.layers.3.self_attn.q_a_proj.weight", Cut.WHOLE),
        ("model.layers.3.self_attn.kv_b_proj.weight", Cut.COLUMN),
        ("model.layers.3.self_attn.indexer.wq_b.weight", Cut.WHOLE),
        ("layers.3.attn.wq_b.weight", Cut.COLUMN),
        ("model.layers.3.mlp.experts.17.down_proj.weight_packed", Cut.EXPERT),
        ("model.layers.3.mlp.experts.gate_up_proj_blocks", Cut.EXPERT),
        ("model.layers.3.mlp.shared_experts.down_proj.weight", Cut.ROW),
        ("model.layers.3.mlp.gate.weight", Cut.WHOLE),
        ("model.layers.3.mlp.gate.e_score_correction_bias", Cut.WHOLE),
        ("model.layers.3.mlp.gate_proj.weight", Cut.COLUMN),
        ("backbone.layers.3.mixer.in_proj.weight", Cut.COLUMN),
        ("model.visual.blocks.3.attn.qkv.weight", Cut.TOWER),
        ("model.layers.3.self_attn.something_new.weight", Cut.UNKNOWN),
        ("token_embd.weight", Cut.VOCAB),
        ("blk.3.attn_k.weight", Cut.KV),
        ("blk.3.attn_output.weight", Cut.ROW),
        ("blk.3.ffn_down_exps.weight", Cut.EXPERT),
        ("blk.3.ffn_down_shexp.weight", Cut.ROW),
        ("blk.3.ffn_gate_inp.weight", Cut.WHOLE),
        ("blk.3.attn_norm.weight", Cut.WHOLE),
    ],
)
def test_a_name_says_how_ranks_share_it(name: str, cut: Cut) -> None:
    assert understand(name).cut is cut


def test_a_name_says_its_layer_but_an_expert_is_no_layer() -> None:
    assert layer_of("model.layers.12.mlp.experts.7.up_proj.weight") == 12
    assert layer_of("mlp.experts.7.up_proj.weight") is None
    assert layer_of("model.norm.weight") is None
    assert understand("mtp.layers.0.self_attn.q_proj.weight").role == "mtp"


# --- sharding ------------------------------------------------------------------------------------------------------


def shard(**changes: Any) -> Shard:
    base: dict[str, Any] = {
        "tp": 4, "pp": 1, "ep": 1, "expert_tp": 4, "shared_whole": False, "kv_heads": 2, "heads": 8, "layers": 2,
        "experts": 8, "intermediate": 64, "pads": False, "pad_hidden": 1.0, "least_rows": 1, "mtp": False,
        "towers": True, "tied": False, "element": 2, "packed": False, "headless": False, "online": False,
        "state_rows": (0, 0), "partition": (2,),
    }  # fmt: skip
    return Shard(**{**base, **changes})


def one(name: str, shape: tuple[int, ...], s: Shard, dtype: str = "BF16") -> Weights:
    size = {"BF16": 2, "F32": 4, "U8": 1}[dtype]
    return rank_weights({name: (dtype, shape, prod(shape) * size)}, s)


def exactly(found: Weights) -> int:
    assert found.rank.high - found.rank.low == OWN, "all that is open is what the engine adds by itself"
    return found.rank.low


def test_kv_heads_are_shared_where_there_are_fewer_than_ranks() -> None:
    assert exactly(one("model.layers.0.self_attn.k_proj.weight", (64, 32), shard())) == 64 * 32 * 2 // 2
    assert exactly(one("model.layers.0.self_attn.q_proj.weight", (64, 32), shard())) == 64 * 32 * 2 // 4


def test_merged_projections_share_their_kv_heads_only() -> None:
    found = one("transformer.h.0.attn.c_attn.weight", (12 * 8, 32), shard())
    assert exactly(found) == 12 * 8 * 32 * 2 * (8 // 4 + 2) // 12


def test_a_vocabulary_is_padded_to_64_before_it_is_divided() -> None:
    assert exactly(one("model.embed_tokens.weight", (100, 8), shard())) == 128 * 8 * 2 // 4


def test_experts_are_divided_or_handed_out_whole() -> None:
    name = "model.layers.0.mlp.experts.0.up_proj.weight"
    assert exactly(one(name, (64, 32), shard())) == 64 * 32 * 2 // 4
    assert exactly(one(name, (64, 32), shard(ep=4))) == 64 * 32 * 2 * 2 // 8
    assert one(name, (64, 32), shard(pads=True)).rank.high == 64 * 32 * 2 // 4 * 128 // 16 + OWN


def test_experts_without_expert_parallelism_are_divided_among_data_parallel_ranks_too() -> None:
    """FusedMoE flattens its tensor parallelism over data and prefill-context parallel ranks."""
    found = one("model.layers.0.mlp.experts.0.up_proj.weight", (64, 32), shard(expert_tp=16))
    assert exactly(found) == 64 * 32 * 2 // 16


def test_shared_experts_may_lie_whole_on_every_rank_of_a_sequence_parallel_moe() -> None:
    name = "model.layers.0.mlp.shared_experts.up_proj.weight"
    assert exactly(one(name, (64, 32), shard())) == 64 * 32 * 2 // 4
    assert one(name, (64, 32), shard(shared_whole=True)).rank == Span(1024, 4096 + OWN)


def test_a_pooling_model_has_no_head() -> None:
    assert one("lm_head.weight", (64, 8), shard(headless=True)).rank.low == 0


def test_scales_and_biases_of_row_parallel_layers_are_on_every_rank() -> None:
    assert exactly(one("model.layers.0.self_attn.o_proj.bias", (32,), shard())) == 64
    assert exactly(one("model.layers.0.self_attn.o_proj.weight_scale", (32, 1), shard(), "F32")) == 128
    assert exactly(one("model.layers.0.self_attn.o_proj.weight_scale_inv", (32, 8), shard(), "F32")) == 256


def test_what_is_not_known_is_a_range_and_named() -> None:
    found = one("model.layers.0.self_attn.novel.weight", (2048, 1024), shard())
    assert found.rank == Span(2048 * 1024 // 2, 2048 * 1024 * 2 + OWN)
    assert found.unknown_names == ("model.layers.0.self_attn.novel.weight",)


def test_a_draft_that_nobody_asked_for_is_not_loaded() -> None:
    beyond = "model.layers.2.self_attn.q_proj.weight"  # the model has layers 0 and 1
    assert one(beyond, (64, 32), shard()).loaded == 0
    assert one(beyond, (64, 32), shard(mtp=True)).loaded == 64 * 32 * 2
    assert one("mtp.fc.weight", (64, 32), shard()).loaded == 0


def test_the_fullest_pipeline_rank_counts() -> None:
    tensors = {f"model.layers.{i}.mlp.up_proj.weight": ("BF16", (64, 32), 4096) for i in range(3)}
    tensors["lm_head.weight"] = ("BF16", (64, 64), 8192)
    s = shard(tp=1, pp=2, layers=3, partition=(2, 1))
    assert rank_weights(tensors, s).rank.low == 4096 + 8192, "the last rank holds the head"


def test_a_tied_head_may_lie_in_the_file_and_not_in_memory() -> None:
    assert one("lm_head.weight", (64, 8), shard(tied=True)).rank.low == 0


@pytest.mark.parametrize(("stored", "served"), [("F32", 2), ("BF16", 4), ("BF16", 2), ("F32", 4)])
def test_floats_take_the_served_dtype_up_and_down(stored: str, served: int) -> None:
    """set_default_torch_dtype around the model's construction (model_loader/base_loader.py:73)."""
    for name in ("mlp.up_proj.weight", "self_attn.o_proj.weight", "self_attn.q_a_proj.weight"):
        found = one(f"model.layers.0.{name}", (64, 32), shard(tp=1, element=served), stored)
        assert exactly(found) == 64 * 32 * served
        assert bool(found.recast) == ({"F32": 4, "BF16": 2}[stored] != served)


@pytest.mark.parametrize("name", ["mlp.gate.weight", "mlp.gate.e_score_correction_bias", "self_attn.q_conv1d.weight",
                                  "linear_attn.A_log", "self_attn.indexer.k_norm.weight", "hc_attn_fn"])  # fmt: skip
def test_what_a_class_may_create_in_a_dtype_of_its_own_is_a_range(name: str) -> None:
    found = one(f"model.layers.0.{name}", (8, 32), shard(tp=1))
    assert found.rank == Span(8 * 32 * 2, 8 * 32 * 4 + OWN)


def test_a_packed_checkpoint_s_floats_may_stay_as_they_are() -> None:
    found = one("model.layers.0.mlp.up_proj.weight", (64, 32), shard(tp=1, element=4, packed=True))
    assert found.rank == Span(64 * 32 * 2, 64 * 32 * 4 + OWN)


def test_spans_add_and_never_fall_below_nothing() -> None:
    assert Span(1, 2) + Span.exact(3) == Span(4, 5)
    assert Span(1, 5).minus(3) == Span(0, 2)
