"""The keys of a GGUF file become the traits that the model's own config.json has, each with the key it came from."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnfit.inputs.gguf import read_set
from attnfit.inputs.gguf.architectures import FORMS, NAMES, WHAT
from attnfit.inputs.gguf.layouts import LAYOUTS
from attnfit.inputs.gguf.traits import GgufModel, describe
from gguf_bytes import Builder, Bytes, Typed

#: keys as llama.cpp's converter wrote them for real configs, and what those configs say of the traits we derive
REAL: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "gguf_keys.json").read_text())
ARRAYS = {"int32": "i32", "bool": "bool", "float32": "f32"}


def model(values: dict[str, Any], tensors: Any = ()) -> GgufModel:
    return describe(read_set(Bytes(Builder().header(values, tensors)), lambda name: None))


def real_values(name: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in REAL[name]["keys"].items():
        if isinstance(value, dict):
            text = value["kind"] == "string"  # that many empty strings
            made = struct.pack("<IIQ", 9, 8, value["length"]) + bytes(8 * value["length"]) if text else None
            values[key] = made or Typed(ARRAYS[value["kind"]], value["values"])
        else:
            values[key] = value
    return values


@pytest.mark.parametrize("name", REAL)
def test_traits_are_those_of_the_published_config(name: str) -> None:
    found = model(real_values(name))
    assert found.unknown == ""
    published = dict(REAL[name]["published"])
    if published.get("index_topk_pattern", "") is None:  # the file spells out what the config has as a frequency
        del published["index_topk_pattern"]
    if found.architecture == "nemotron_h_moe":  # without rotary embedding the converter writes 2^20, whatever is said
        assert published.pop("max_position_embeddings") == 262144
    assert {trait: found.config.get(trait) for trait in published} == published
    assert set(found.sources) == set(found.config)


def test_glm_5_is_read_with_the_key_of_each_trait() -> None:
    found = model(real_values("zai-org/GLM-5"))
    assert found.architecture == "glm-dsa"
    assert found.config["model_type"] == "glm_moe_dsa"
    assert found.config["architectures"] == ["GlmMoeDsaForCausalLM"]
    assert (found.config["qk_nope_head_dim"], found.config["v_head_dim"]) == (192, 256)
    assert (found.config["num_hidden_layers"], found.config["num_nextn_predict_layers"]) == (78, 1)
    assert found.sources["index_topk"] == "glm-dsa.attention.indexer.top_k"
    assert found.sources["qk_nope_head_dim"] == "glm-dsa.attention.key_length_mla - rope.dimension_count"


def test_layers_that_share_their_top_k_are_named() -> None:
    pattern = model(real_values("zai-org/GLM-5.2")).config["index_topk_pattern"]
    assert pattern.startswith("FFFSSSFSSSF")
    assert len(pattern) == 78


def test_mla_lengths_of_older_files_are_the_heads_own() -> None:
    values = real_values("deepseek-ai/DeepSeek-R1")
    values["deepseek2.attention.key_length"] = values.pop("deepseek2.attention.key_length_mla")
    values["deepseek2.attention.value_length"] = values.pop("deepseek2.attention.value_length_mla")
    values["deepseek2.attention.head_count_kv"] = 128
    assert model(values).config == model(real_values("deepseek-ai/DeepSeek-R1")).config


def test_every_architecture_of_the_gguf_package_is_accepted() -> None:
    assert set(gguf.MODEL_ARCH_NAMES.values()) <= NAMES
    assert set(FORMS) | set(WHAT) <= NAMES
    assert {form.layout for form in FORMS.values()} == set(LAYOUTS)
    for name in NAMES:
        found = model({"general.architecture": name, f"{name}.block_count": 2, f"{name}.embedding_length": 64})
        assert found.config["num_hidden_layers"] == 2
        assert found.unknown == "" or found.unknown.startswith(f"how {name} (GGUF) attends: ")
        assert bool(found.unknown) or name in FORMS


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("clip", "a vision projector"),
        ("rwkv7", "a state"),
        ("grok", "does not know this architecture's keys"),
        ("lama", "did you mean 'llama'?"),
    ],
)
def test_what_is_not_understood_is_named(name: str, said: str) -> None:
    assert said in model({"general.architecture": name, f"{name}.block_count": 2}).unknown


def llama(**more: Any) -> GgufModel:
    values = {"block_count": 2, "embedding_length": 64, "attention.head_count": 4, **more}
    return model({"general.architecture": "llama", **{f"llama.{key}": value for key, value in values.items()}})


def test_what_the_file_leaves_out_is_derived_as_llama_cpp_does() -> None:
    found = llama()
    assert (found.config["head_dim"], found.config["num_key_value_heads"]) == (16, 4)
    assert found.sources["head_dim"] == "llama.embedding_length / attention.head_count"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"block_count": 0}, "llama.block_count is 0"),
        ({"block_count": 10**6}, "llama.block_count is 1,000,000"),
        ({"nextn_predict_layers": 2}, "with 2 draft layers"),
        ({"block_count": "two"}, "llama.block_count is no whole number"),
        ({"block_count": True}, "llama.block_count is no whole number"),
        ({"attention.head_count": Typed("i32", [4, 8])}, "llama.attention.head_count differs from layer to layer"),
        ({"attention.head_count_kv": Typed("i32", [4, 2])}, "differs from layer to layer"),
        ({"attention.head_count_kv": Typed("i32", [-1, -1])}, "no whole number"),
        ({"attention.sliding_window": 4096}, "which layers use the window"),
        ({"attention.causal": False}, "llama.attention.causal is false"),
    ],
)
def test_keys_that_do_not_say_it_leave_the_attention_unknown(more: dict[str, Any], said: str) -> None:
    assert said in llama(**more).unknown


def test_experts_make_llama_mixtral() -> None:
    found = llama(expert_count=8, expert_used_count=2)
    assert found.config["architectures"] == ["MixtralForCausalLM"]
    assert (found.config["num_local_experts"], found.config["num_experts_per_tok"]) == (8, 2)


def test_tied_embeddings_show_in_the_tensors() -> None:
    values = {"general.architecture": "llama", "llama.block_count": 1}
    assert model(values, [("token_embd.weight", (32,), 0, 0)]).config["tie_word_embeddings"] is True
    assert model(values, [("output.weight", (32,), 0, 0)]).config["tie_word_embeddings"] is False


odd = st.one_of(
    st.integers(0, 2**32 - 1), st.booleans(), st.text(max_size=3), st.floats(width=32),
    st.lists(st.integers(0, 9), max_size=3), st.lists(st.text(max_size=2), max_size=3),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from([n for n in REAL if "GLM-5.2" in n or "Kimi-L" in n or "Nemo" in n]), data=st.data())
def test_odd_values_are_never_a_fault(name: str, data: st.DataObject) -> None:
    values = {k: v for k, v in real_values(name).items() if not k.startswith("tokenizer")}
    for _ in range(data.draw(st.integers(1, 3))):
        values[data.draw(st.sampled_from(sorted(set(values) - {"general.architecture"})))] = data.draw(odd)
    found = describe(read_set(Bytes(Builder().header(values)), lambda name: None))
    assert found.config["model_type"] in ("glm_moe_dsa", "kimi_linear", "nemotron_h")
