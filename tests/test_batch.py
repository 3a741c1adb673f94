"""`attnfit check --batch`: a line in, a line out, in order, whatever the line is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from attnfit.batch import answers

GLM5 = str(Path(__file__).parent.parent / "examples" / "glm-5")


def ask(*items: Any) -> list[dict[str, Any]]:
    return list(answers(item if isinstance(item, bytes) else json.dumps(item).encode() for item in items))


def test_every_line_is_answered_in_order_and_a_bad_one_stops_nothing() -> None:
    good = {"id": 1, "model": GLM5, "gpu": "h200x8", "command": ["vllm", "serve", GLM5, "-tp", "8"]}
    first, broken, array, last = ask(
        {**good, "engine": "vllm==0.33.0"}, b"{not json", [1], {**good, "id": 4, "gpu": "h300"}
    )
    assert (first["id"], first["ok"], first["stage"], first["exit_code"]) == (1, True, "done", 0)
    assert broken["exit_code"] == 2
    assert "not JSON" in broken["problem"]
    assert "not a JSON object" in array["problem"]
    assert (last["id"], last["ok"]) == (4, None)
    assert "did you mean" in last["problem"]


def test_a_launch_by_capability_and_flags_is_answered_as_the_engine_records_it() -> None:
    (reply,) = ask(
        {"engine": "vllm==0.33.0", "model": GLM5, "capability": "12.0", "flags": ["--tensor-parallel-size", "8"]}
    )
    assert reply["ok"] is True
    assert [row["count"] for row in reply["selector_configs"]] == [1, 77]
    assert [row["config"]["kv_cache_dtype"] for row in reply["selector_configs"]] == ["auto", "fp8_ds_mla"]
    assert (reply["kv_cache_dtype"], reply["kv_cache_dtype_after_init"]) == ("auto", "fp8_ds_mla")


def test_a_ready_question_is_answered_with_every_backend_and_the_engines_message() -> None:
    question = {"capability": "9.0", "head_size": 128, "dtype": "bfloat16", "backend": "FLASHMLA", "hf": {}}
    (reply,) = ask({"engine": "vllm==0.33.0", "question": question})
    assert reply["chosen"] is None
    assert reply["engine_message"].startswith("ValueError: Selected backend AttentionBackendEnum.FLASHMLA is not valid")
    assert reply["every_backend"]["FLASH_ATTN"] == []
    assert reply["exit_code"] == 1


def test_environment_facts_can_be_taken_away() -> None:
    question = {"capability": "10.0", "head_size": 128, "dtype": "bfloat16", "hf": {}}
    with_it, without = ask(
        {"engine": "vllm==0.33.0", "question": question},
        {"engine": "vllm==0.33.0", "question": question, "env": {"flashinfer": False}},
    )
    assert with_it["chosen"] == "FLASHINFER"
    assert without["chosen"] != "FLASHINFER"


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["engine", "model", "gpu", "command", "flags", "capability", "question", "env", "id", "count"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
            | st.sampled_from([GLM5, "vllm", "vllm==0.33.0", "h200x8", "12.0", "--dtype"]),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=6,
        ),
    )
)  # fmt: skip
def test_no_line_ends_in_an_internal_error(item: dict[str, Any]) -> None:
    (reply,) = ask(item)
    assert reply["exit_code"] in (0, 1, 2, 3)
    assert "internal error" not in reply.get("problem", "")
