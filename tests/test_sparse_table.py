"""docs/kernels.md says which sparse MLA runs where; that is what the rule books and our own configurations say."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

import attnfit
from attnfit.core import Capability
from attnfit.engines.vllm import releases
from attnfit.engines.vllm.row import row
from attnfit.errors import AttnfitError
from attnfit.inputs import kernel_fit

ROOT = Path(__file__).parent.parent


def load() -> Any:
    spec = importlib.util.spec_from_file_location("sparse_table", ROOT / "proofs" / "sparse_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sparse_table"] = module
    spec.loader.exec_module(module)
    return module


sparse: Any = load()
SERVED = [c for c in sparse.CAPABILITIES if c.startswith(("9.", "10.", "12."))]


def test_the_page_s_table_is_what_the_books_say() -> None:
    assert sparse.in_page(sparse.PAGE.read_text("utf-8")) == sparse.table()


def test_a_page_that_says_otherwise_is_found_and_written_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "kernels.md"
    text = sparse.PAGE.read_text("utf-8")
    page.write_text(text.replace("| 12.0, 12.1 | float16 |", "| 12.0, 12.1 | bfloat16 |", 1), "utf-8")
    monkeypatch.setattr(sparse, "PAGE", page)
    monkeypatch.setattr(sys, "argv", ["sparse_table.py"])
    assert sparse.main() == 1
    assert "--write" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["sparse_table.py", "--write"])
    assert sparse.main() == 0
    assert page.read_text("utf-8") == text
    page.write_text("no markers", "utf-8")
    with pytest.raises(AttnfitError, match="markers"):
        sparse.main()


def test_our_column_has_the_capabilities_that_are_shown_to_fit() -> None:
    configs = sparse.our_configs()
    assert {str(Capability(*c)) for c in configs.CAPABILITIES} >= set(kernel_fit.CAPABILITIES)
    for capability in sparse.CAPABILITIES:
        expected = "yes" if capability in kernel_fit.CAPABILITIES else sparse.NONE
        assert sparse.ours(configs, capability, 576, "fp8_ds_mla") == expected
        assert sparse.ours(configs, capability, 512, "16-bit") == expected
        assert sparse.ours(configs, capability, 512, "fp8_ds_mla") == sparse.NONE


def test_float16_has_nobody_where_the_page_says_so() -> None:
    """Below 9.0, on 11.0 and on 12.x with any cache; nowhere with fp8_ds_mla. Elsewhere there is somebody."""
    caches = ("auto", "float16", "fp8", "fp8_e4m3", "fp8_ds_mla")
    somebody = set()
    for release, capability, width, cache in product(sparse.RELEASES, sparse.CAPABILITIES, sparse.WIDTHS, caches):
        if sparse.accepting(sparse.ask(release, capability, "float16", width, cache)):
            somebody.add((capability, cache))
    assert {capability for capability, _ in somebody} == {"9.0", "10.0", "10.3"}
    assert "fp8_ds_mla" not in {cache for _, cache in somebody}


@pytest.mark.parametrize("release", sparse.RELEASES)
def test_the_number_of_heads_never_decides_who_accepts(release: str) -> None:
    for capability, dtype, width in product(SERVED, sparse.DTYPES, sparse.WIDTHS):
        found = {
            frozenset(sparse.accepting(sparse.ask(release, capability, dtype, width, "auto", heads)))
            for heads in (8, 16, 32, 64, 128)
        }
        assert len(found) == 1


def test_with_32_heads_flashmla_comes_first_on_10_x() -> None:
    for release in ("0.23.0", "0.28.0", "0.33.0"):
        assert sparse.ask(release, "10.0", "bfloat16", 576, "auto", heads=32).chosen == "FLASHMLA_SPARSE"
        assert sparse.ask(release, "10.0", "bfloat16", 576, "auto", heads=16).chosen != "FLASHMLA_SPARSE"


def test_auto_is_the_16_bit_line_except_for_one_backend_on_12_x() -> None:
    packs = set()
    for release, capability, dtype, width in product(sparse.RELEASES, SERVED, sparse.DTYPES, sparse.WIDTHS):
        auto = set(sparse.accepting(sparse.ask(release, capability, dtype, width, "auto")))
        named = set(sparse.accepting(sparse.ask(release, capability, dtype, width, dtype)))
        assert named <= auto
        packs |= {(capability, name) for name in auto - named}
    assert packs == {(c, "FLASHINFER_MLA_SPARSE_SM120") for c in ("12.0", "12.1")}


@pytest.mark.parametrize(
    ("capability", "dtype", "width", "first"),
    [
        ("10.0", "float16", 576, "0.19.1"),
        ("9.0", "float16", 576, "0.25.1"),
        ("9.0", "float16", 512, "0.25.1"),
        ("12.0", "bfloat16", 576, "0.24.0"),
        ("12.1", "bfloat16", 512, "0.30.0"),
    ],
)
def test_the_first_release_that_accepts_is_the_one_named(capability: str, dtype: str, width: int, first: str) -> None:
    accepts = [r for r in releases.shipped() if sparse.accepting(sparse.ask(r, capability, dtype, width, "auto"))]
    assert min(accepts, key=Version) == first


def test_glm_5_on_10_0_asks_for_fp8_by_itself() -> None:
    found = attnfit.check(f"vllm serve {ROOT / 'examples' / 'glm-5'} -tp 8", gpu="b200x8", engine="vllm==0.33.0")
    assert (found.launch.kv_cache_dtype, found.gpus[0][0].capability) == ("fp8_e4m3", Capability(10, 0))


def test_recorded_answers_that_differ_are_counted(tmp_path: Path) -> None:
    found = sparse.ask("0.33.0", "12.0", "float16", 576, "auto")
    config = {"capability": "12.0", "head_size": 576, "dtype": "float16", "kv_cache_dtype": "auto", "use_mla": True,
              "use_sparse": True, "num_heads": 8, "num_kv_heads": 1, "hf": sparse.SIZES[576]}  # fmt: skip
    said = row(sparse.question_of(config), found)
    right = {"config": config, "chosen": None, "every_backend": said["every_backend"]}
    wrong = {**right, "every_backend": {**said["every_backend"], "FLASHMLA_SPARSE": []}}
    dense = {**wrong, "config": {**config, "use_sparse": False}}
    file = tmp_path / "vllm-0.33.0-made-up.jsonl.gz"
    file.write_bytes(gzip.compress("\n".join(json.dumps(line) for line in (right, wrong, dense)).encode()))
    assert sparse.against(file) == (2, 2 * len(sparse.LETTERS), 1)
    with pytest.raises(AttnfitError, match="names no release"):
        sparse.against(tmp_path / "answers.jsonl")


def test_the_questions_for_the_real_engine_are_the_page_s(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(sys, "argv", ["sparse_table.py", "--questions"])
    assert sparse.main() == 0
    asked = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(q["capability"], q["dtype"], q["head_size"]) for q in asked} == set(
        product(sparse.CAPABILITIES, sparse.DTYPES, sparse.WIDTHS)
    )
    assert all({q["dtype"], "auto", "fp8_ds_mla"} <= {r["kv_cache_dtype"] for r in asked} for q in asked)
