"""The shipped rule books answer as the real engines did, and say unknown where they do not know."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attnfit.core import Capability, Question, Status
from attnfit.engines.vllm import book, releases
from attnfit.engines.vllm.learn import figures
from attnfit.engines.vllm.learn.learn import unknowns
from attnfit.engines.vllm.row import question_of, row
from attnfit.errors import InputError, UnknownAnswer, UsageError

DATA = Path(__file__).with_name("data") / "selector-truth.jsonl.gz"
SHIPPED = releases.shipped()
GLM5 = {"qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "kv_lora_rank": 512, "index_topk": 2048}


def truth() -> Iterator[dict[str, Any]]:
    """Verdicts of real engines (proofs/real_selector.py), a sample that says every text at least once."""
    with gzip.open(DATA, "rt") as lines:
        yield from map(json.loads, lines)


def glm5(dtype: str, **changed: Any) -> Question:
    """What GLM-5's layers ask on an RTX PRO 6000 with 8-way tensor parallelism."""
    return Question(
        **{
            "capability": Capability(12, 0),
            "head_size": 576,
            "dtype": dtype,
            "use_mla": True,
            "use_sparse": True,
            "num_heads": 8,
            "num_kv_heads": 1,
            "hf": GLM5,
            **changed,
        }
    )


@pytest.mark.parametrize("release", ["0.16.0", "0.20.2", "0.23.0", "0.28.0", "0.33.0"])
def test_books_agree_with_the_real_engine(release: str) -> None:
    """Chosen, valid, refused, order, every backend's words and the error text, under four environments."""
    this = book.load(release)
    asked = 0
    for line in truth():
        if line["release"] != release:
            continue
        # the engines that were asked had every optional package, and a GPU that b12x does not run on
        env = {**dict.fromkeys(this.environment, True), "b12x_device": False, **line["env"]}
        q = question_of(line["config"])
        got = row(q, this.select(q, env))
        for key in ("chosen", "valid", "refused", "every_backend", "engine_message"):
            if key in line:
                assert got.get(key) == line[key], (key, line["config"])
        assert list(got["refused"]) == list(line.get("refused", got["refused"]))
        assert "unknown" not in got
        asked += 1
    assert asked >= 70


def test_the_newest_patch_of_every_minor_has_a_book() -> None:
    assert SHIPPED == [
        "0.12.0",
        "0.13.0",
        "0.14.1",
        "0.15.1",
        "0.16.0",
        "0.17.1",
        "0.18.1",
        "0.19.1",
        "0.20.2",
        "0.21.0",
        "0.22.1",
        "0.23.0",
        "0.24.0",
        "0.25.1",
        "0.26.0",
        "0.27.1",
        "0.28.0",
        "0.29.0",
        "0.30.0",
        "0.31.0",
        "0.32.0",
        "0.33.0",
    ]


@pytest.mark.parametrize("release", SHIPPED)
def test_a_shipped_book_has_no_unknown_and_was_replayed(release: str) -> None:
    raw = (book.BOOKS / f"{release}.json").read_bytes()
    written = json.loads(raw)
    replay = written["provenance"]["replay"]
    assert unknowns({name: written[name] for name in ("trees", "helpers", "backends", "priority")}) == []
    assert replay["questions"] >= 20_000
    assert (replay["disagreements"], replay["unknown"]) == (0, 0)
    assert replay["texts"][0] == replay["texts"][1]
    assert replay["branches"][0] >= 0.99 * replay["branches"][1]
    assert len(raw) < 250_000
    assert len(written["provenance"]["sha256"]) == 64


def test_the_documented_figures_are_those_of_the_books() -> None:
    docs = (Path(__file__).parents[1] / "docs" / "books.md").read_text("utf-8")
    assert "\n".join(figures.table()) in docs


def test_story_2_on_0_16_0() -> None:
    """SM120, float16, qk_nope_head_dim 192, sparse: nothing accepts, for exactly these reasons."""
    selection = book.load("0.16.0").select(glm5("float16"))
    capability = "compute capability not supported"
    assert {v.backend: [r.text for r in v.reasons] for v in selection.verdicts if v.candidate} == {
        "FLASH_ATTN_MLA": ["sparse not supported", capability, "FlashAttention MLA not supported on this device"],
        "FLASHMLA": [
            "sparse not supported",
            capability,
            "FlashMLA Sparse is only supported on Hopper and Blackwell devices.",
        ],
        "FLASHINFER_MLA": [
            "sparse not supported",
            capability,
            "FlashInfer MLA kernel requires qk_nope_head_dim == 128, but got 192",
        ],
        "TRITON_MLA": ["sparse not supported"],
        "FLASHMLA_SPARSE": ["dtype not supported", capability],
    }
    (reason,) = [
        r for v in selection.verdicts if v.backend == "FLASHINFER_MLA" for r in v.reasons if r.code == "combination"
    ]
    assert (reason.required, reason.observed) == ("qk_nope_head_dim 128", "qk_nope_head_dim 192")
    assert reason.where.startswith("vllm/v1/attention/backends/mla/flashinfer_mla.py:")


def test_story_2_on_0_33_0() -> None:
    this = book.load("0.33.0")
    assert this.select(glm5("float16")).chosen is None
    for kv in ("auto", "fp8"):
        assert this.select(glm5("bfloat16", kv_cache_dtype=kv)).chosen == "FLASHINFER_MLA_SPARSE_SM120"
    assert this.select(glm5("bfloat16", kv_cache_dtype="bfloat16")).chosen is None


def test_every_backend_is_accounted_for_and_candidates_come_first() -> None:
    selection = book.load("0.33.0").select(glm5("bfloat16"))
    assert len(selection.verdicts) == 33
    flags = [v.candidate for v in selection.verdicts]
    assert flags == sorted(flags, reverse=True)
    assert all(bool(v.reasons) == (v.status is Status.REFUSES) for v in selection.verdicts)


def test_the_choice_without_the_user_s_flag_is_told_beside_it() -> None:
    selection = book.load("0.33.0").select(glm5("bfloat16", backend="TRITON_MLA"))
    assert selection.chosen is None
    assert selection.automatic == "FLASHINFER_MLA_SPARSE_SM120"
    assert selection.error is not None
    assert selection.error.startswith("ValueError: Selected backend AttentionBackendEnum.TRITON_MLA is not valid")


def test_a_backend_the_release_does_not_have_is_unknown() -> None:
    selection = book.load("0.16.0").select(glm5("bfloat16", backend="B12X"))
    assert (selection.chosen, selection.unknown) == (None, "B12X is no CUDA backend of vLLM 0.16.0")


def test_environment_facts_are_inputs() -> None:
    """Without flashinfer its backends cannot be loaded; without a reachable artifactory it has no sinks."""
    q = Question(capability=Capability(10, 0), head_size=128, dtype="bfloat16", has_sink=True, hf={})
    this = book.load("0.33.0")
    verdict = {v.backend: v for v in this.select(q, {"flashinfer": False}).verdicts}["FLASHINFER"]
    assert [r.code for r in verdict.reasons] == ["unavailable"]
    without = {v.backend: v for v in this.select(q, {"artifactory": False, "flashinfer_cubin": False}).verdicts}[
        "FLASHINFER"
    ]
    assert [r.text for r in without.reasons] == ["attention sinks not supported"]


@pytest.mark.parametrize(
    ("text", "serves", "exact"),
    [
        ("0.33.0", "0.33.0", True),
        ("v0.16.0", "0.16.0", True),
        ("0.14.0", "0.14.1", True),
        ("0.33.0+cu129", "0.33.0", True),
        ("0.33.0+vendor.7", "0.33.0", False),
        ("0.34.0", "0.33.0", False),
        ("0.33.1rc1.dev3", "0.33.0", False),
        ("0.20.3", "0.20.2", False),
        ("0.12.1", "0.12.0", False),
    ],
)
def test_a_release_gets_its_own_book_or_the_nearest_one_s_opinion(text: str, serves: str, exact: bool) -> None:
    found = releases.resolve(text)
    assert (found.book.version, found.exact) == (serves, exact)
    assert found.exact or "opinion" in found.note


def test_releases_that_cannot_be_answered_say_what_can() -> None:
    with pytest.raises(UnknownAnswer, match=r"0\.12\.0 and newer"):
        releases.resolve("0.11.0")
    with pytest.raises(UsageError, match=r"did you mean '0.33.0'"):
        releases.resolve("0.33.O")


def test_the_user_s_own_book_serves_releases_that_are_not_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNFIT_DATA", str(tmp_path))
    (tmp_path / "books").mkdir()
    raw = (book.BOOKS / "0.33.0.json").read_bytes().replace(b'"version": "0.33.0"', b'"version": "0.34.0"')
    (tmp_path / "books" / "0.34.0.json").write_bytes(raw)
    assert "0.34.0" in releases.known()
    assert releases.resolve("0.34.0").exact
    assert releases.resolve("0.34.1").book.version == "0.34.0"


@pytest.mark.parametrize(
    "config",
    [
        {"head_size": 64, "dtype": "float16"},
        {"capability": "twelve", "head_size": 64, "dtype": "float16"},
        {"capability": "9.0", "head_size": "64", "dtype": "float16"},
    ],
)
def test_a_question_that_is_none_is_one_clear_error(config: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="not a selector question"):
        question_of(config)
