"""The public namespace, and `check` as Python users call it."""

from __future__ import annotations

from pathlib import Path

import pytest

import attnfit

GLM5 = str(Path(__file__).parent.parent / "examples" / "glm-5")


def test_the_public_names_are_exactly_these() -> None:
    assert sorted(attnfit.__all__) == [
        "AttnfitError", "Capability", "Fit", "Gpu", "InputError", "Launch", "Question", "Reason", "Report", "Selection",
        "Status", "Step", "UnknownAnswer", "UsageError", "Verdict", "check", "describe", "select",
    ]  # fmt: skip
    for name in attnfit.__all__:
        assert getattr(attnfit, name) is not None


def test_a_name_that_is_not_public_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sekect'"):
        attnfit.sekect  # noqa: B018


def test_a_model_alone_is_checked_as_the_plainest_launch() -> None:
    report = attnfit.check(gpu="h200x8", model=GLM5, engine="vllm==0.33.0")
    assert report.verdict == "passes"
    assert report.launch.layers[0].question.num_heads == 8, "tensor parallel over all eight"
    assert any("no command given" in sentence for sentence in report.said)


def test_float16_on_sm120_has_no_backend_and_the_plan_says_what_starts() -> None:
    report = attnfit.check(
        f"vllm serve {GLM5} --tensor-parallel-size 8 --dtype float16",
        gpu="rtx-pro-6000",
        count=8,
        engine="vllm==0.33.0",
    )
    assert (report.verdict, report.launch.stage, report.exit_code) == ("refused", "selector", 1)
    again = attnfit.check(report.steps[0].argv, gpu="rtx-pro-6000", count=8, engine="vllm==0.33.0")
    assert again.verdict == "passes"
    assert again.launch.layers[0].selection.chosen == "FLASHINFER_MLA_SPARSE_SM120"


def test_an_explicit_bfloat16_kv_cache_is_refused_where_auto_and_fp8_pass() -> None:
    verdicts = {
        kv: attnfit.check(
            f"vllm serve {GLM5} -tp 8 --kv-cache-dtype {kv}", gpu="rtx-pro-6000x8", engine="vllm==0.33.0", planned=False
        ).verdict
        for kv in ("auto", "fp8", "bfloat16")
    }
    assert verdicts == {"auto": "passes", "fp8": "passes", "bfloat16": "refused"}


def test_the_engine_of_the_command_and_of_the_flag_must_agree() -> None:
    with pytest.raises(attnfit.UsageError, match="make the two agree"):
        attnfit.check(f"vllm serve {GLM5}", gpu="h100", engine="sglangg")


def test_a_release_without_a_book_gets_an_opinion_and_exit_3() -> None:
    report = attnfit.check(f"vllm serve {GLM5} -tp 8", gpu="h200x8", engine="vllm==0.33.1.dev5+g12")
    assert not report.exact
    assert report.exit_code == 3


def test_a_gpu_that_is_not_covered_is_unknown_and_says_so() -> None:
    report = attnfit.check(f"vllm serve {GLM5} -tp 8", gpu="mi300x", count=8, engine="vllm==0.33.0")
    assert report.verdict == "unknown"
    assert "not covered" in report.launch.unknown[0]


def test_mixed_gpus_pass_only_if_each_kind_does() -> None:
    report = attnfit.check(f"vllm serve {GLM5} -tp 2", gpu="h200,a100-80g", engine="vllm==0.33.0", planned=False)
    assert report.verdict == "refused"
    assert any("mixed GPUs" in note and "A100" in note for note in report.launch.notes)


def test_one_ready_question_can_be_asked() -> None:
    question = attnfit.Question(capability=attnfit.Capability(9, 0), head_size=128, dtype="bfloat16")
    assert attnfit.select(question, engine="vllm==0.33.0").chosen == "FLASH_ATTN"


def test_what_the_server_checks_of_its_flags_is_refused_before_it_parses_a_model() -> None:
    report = attnfit.check(
        f"vllm serve {GLM5} -tp 8 --enable-auto-tool-choice", gpu="h200x8", engine="vllm==0.33.0", planned=False
    )
    assert (report.verdict, report.launch.stage) == ("refused", "parse_flags")
    assert report.launch.error == "TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser"


def test_a_flag_is_not_refused_by_the_parser_of_another_release() -> None:
    report = attnfit.check(
        f"vllm serve {GLM5} --flag-of-tomorrow 1", gpu="h200x8", engine="vllm==0.99.0", planned=False
    )
    assert (report.verdict, report.exit_code) == ("unknown", 3)
    assert "--flag-of-tomorrow" in report.launch.unknown[0]


def test_a_learned_book_answers_and_says_what_it_borrows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shipped = Path(attnfit.__file__).parent / "engines" / "vllm" / "books" / "0.33.0.json"
    (tmp_path / "books").mkdir()
    book = shipped.read_text("utf-8").replace('"version": "0.33.0"', '"version": "0.34.0"')
    (tmp_path / "books" / "0.34.0.json").write_text(book, "utf-8")
    monkeypatch.setenv("ATTNFIT_DATA", str(tmp_path))
    report = attnfit.check(f"vllm serve {GLM5} -tp 8", gpu="h200x8", engine="vllm==0.34.0", planned=False)
    assert (report.exact, report.verdict) == (True, "passes")
    assert any("those of 0.33.0" in note for note in report.launch.notes)


def test_the_public_names_are_listed() -> None:
    import attnfit

    assert set(attnfit.__all__) < set(dir(attnfit))
