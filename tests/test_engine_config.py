"""Stage create_engine_config: what the derivation promises, against what the real engine answered."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnfit.core import Capability
from attnfit.engines.vllm.flags import load_table, parse_flags
from attnfit.engines.vllm.launch.engine_config import resolve, resolve_all
from attnfit.engines.vllm.launch.state import EngineConfig, ParsedFlags, Refusal, Unknown

DATA = Path(__file__).parent / "data"
CONFIGS: dict[str, Any] = json.loads(gzip.decompress((DATA / "configs.json.gz").read_bytes()))
ROWS: list[dict[str, Any]] = json.loads(gzip.decompress((DATA / "engine-config-0.33.0.json.gz").read_bytes()))


def flags(argv: list[str], release: str = "0.33.0") -> ParsedFlags:
    return parse_flags(load_table(release), ["--model", "./m", *argv], form="module")


def answer(model: str, capability: str, argv: list[str], release: str = "0.33.0", **more: Any) -> EngineConfig:
    entry = CONFIGS[model]
    return resolve(
        entry["config"],
        entry["hf_quant"],
        Capability.parse(capability),
        flags(argv, release),
        release,
        {},
        path=f"./{model}",
        files=frozenset({"config.json"}),
        gpus=64,
        **more,
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['model']}@{r['capability']}")
def test_says_what_the_engine_resolved_or_refuses_in_its_words(row: dict[str, Any]) -> None:
    if "error" in row:
        with pytest.raises(Refusal) as refused:
            answer(row["model"], row["capability"], row["flags"])
        assert refused.value.stage == "create_engine_config"
        assert refused.value.message[: len(row["error"])] == row["error"]
        return
    got = answer(row["model"], row["capability"], row["flags"])
    assert {k: getattr(got, k) for k in row["expect"]} == row["expect"]


def test_reports_a_refusal_and_the_dimensions_behind_it() -> None:
    """0.16.0's transformers does not know GLM-5's model type; its registry knows the architecture."""
    entry = CONFIGS["zai-org__GLM-5"]
    both = resolve_all(
        entry["config"],
        None,
        Capability(12, 0),
        flags(["--tensor-parallel-size", "8", "--dtype", "float16"], "0.16.0"),
        "0.16.0",
    )
    assert len(both.refusals) == 1
    assert "model type `glm_moe_dsa` but Transformers does not recognize this architecture" in both.refusals[0].message
    assert "[type=" not in both.refusals[0].message, "the frame is known to the letter for proven releases only"
    config = both.config
    assert (config.architecture, config.dtype, config.use_mla) == ("GlmMoeDsaForCausalLM", "float16", True)
    assert (config.head_size, config.num_heads, config.num_kv_heads) == (576, 8, 1)
    assert config.text["qk_nope_head_dim"] == 192
    assert config.text["index_topk"] == 2048
    assert any("proven" in note for note in config.notes)


@pytest.mark.parametrize("release", ["0.12.0", "0.16.0", "0.23.0", "0.28.0", "0.33.0"])
@pytest.mark.parametrize("model", ["meta-llama__Llama-3.1-8B-Instruct", "deepseek-ai__DeepSeek-V3"])
def test_every_release_yields_the_selector_facts(model: str, release: str) -> None:
    got = answer(model, "9.0", ["--tensor-parallel-size", "8"], release)
    assert got.head_size == (576 if got.use_mla else 128)
    assert got.use_mla == (model == "deepseek-ai__DeepSeek-V3")
    assert got.dtype == "bfloat16"


def test_unknown_model_types_are_refused_and_still_measured() -> None:
    config = {
        "model_type": "brand_new", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "vocab_size": 1000,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 2, "torch_dtype": "bfloat16",
    }  # fmt: skip
    both = resolve_all(config, None, Capability(9, 0), flags([]), "0.33.0")
    assert "model type `brand_new`" in both.refusals[0].message
    assert (both.config.head_size, both.config.num_kv_heads) == (128, 8)


def test_a_refusal_wins_over_what_cannot_be_known_after_it() -> None:
    config = {"model_type": "brand_new", "architectures": ["LlamaForCausalLM"], "num_attention_heads": "many"}
    with pytest.raises(Refusal, match="model type `brand_new`"):
        resolve_all(config, None, Capability(9, 0), flags([]), "0.33.0")


_JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-4, 4), st.just(10**30), st.just(float("nan")), st.text(max_size=4),
    st.lists(st.integers(0, 3), max_size=2), st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_mutated_configs_never_end_in_a_traceback(data: st.DataObject) -> None:
    """Any value under any key: an answer, a refusal or an unknown, nothing else."""
    entry = CONFIGS[data.draw(st.sampled_from(sorted(CONFIGS)))]
    config = json.loads(json.dumps(entry["config"]))
    for _ in range(data.draw(st.integers(1, 3))):
        inner = config.get("text_config")
        place = inner if isinstance(inner, dict) and data.draw(st.booleans()) else config
        key = data.draw(st.sampled_from(sorted(place) or ["x"]))
        if data.draw(st.booleans()):
            place.pop(key, None)
        else:
            place[key] = data.draw(_JUNK)
    release = data.draw(st.sampled_from(["0.16.0", "0.33.0"]))
    with contextlib.suppress(Refusal, Unknown):
        resolve_all(config, entry["hf_quant"], Capability(9, 0), flags(["-tp", "2"], release), release)
