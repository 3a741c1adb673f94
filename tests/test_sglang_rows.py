"""The recorded answers of the real SGLang are whole, and the proof that reads them would notice a difference."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import made_up_sglang as tiny
from attnfit.engines.sglang import releases

PROOFS = Path(__file__).parent.parent / "proofs"


def proof(file: str, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PROOFS / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


rows: Any = proof("sglang_rows.py", "sglang_rows")
judge: Any = proof("sglang.py", "proof_of_sglang")
ROWS = list(rows.lines(rows.ROWS))
MORE = list(rows.lines(rows.MORE))


def test_every_row_names_a_recorded_model_and_no_path_of_another_machine() -> None:
    models = rows.models()
    for row in ROWS + MORE:
        assert row["model"] in models
        said = json.dumps([row["argv"], row["message"]])
        assert "/work" not in said
        assert "/home" not in said
    assert rows.ROWS.stat().st_size + rows.MORE.stat().st_size < 300_000


def test_every_release_in_scope_has_rows_of_both_verdicts() -> None:
    for release in releases.known():
        mine = [row for row in ROWS + MORE if row["release"] == release]
        assert {row["ok"] for row in mine} == {True, False}
        assert {row["capability"] for row in mine} >= {"9.0", "10.0", "11.0", "12.0"}


@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_the_sample_has_every_stage_gpu_and_many_messages(release: str) -> None:
    mine = [row for row in ROWS if row["release"] == release]
    assert {row["stage"] for row in mine} >= {None, "arg-parse", "arg-resolve", "arg-check", "backend-init"}
    assert len({row["capability"] for row in mine}) == 10
    assert len({row["model"] for row in mine}) >= 70
    assert len({rows.plain(row["message"]) for row in mine}) > 100
    assert all(row["resolved"] for row in mine if row["ok"])


def test_a_message_is_compared_without_what_differs_from_run_to_run() -> None:
    one = "oracle.py: error: argument --x: invalid choice: 'a' (choose from 'b', 'c')"
    other = "sglang serve: error: argument --x: invalid choice: 'a' (choose from c, b)"
    assert rows.plain(one) == rows.plain(other)
    assert rows.plain("not in {'b', 'a'}") == rows.plain("not in {'a', 'b'}")
    assert rows.plain("not in {'b', 'a'}") != rows.plain("not in {'a', 'c'}")
    assert rows.plain(None) is None


ROW = {
    "release": tiny.VERSION,
    "model": "tiny",
    "capability": "9.0",
    "gpu_name": "H100",
    "gpu_mem_gb": 80,
    "gpus": 1,
    "argv": ["--tp-size", "1"],
    "ok": True,
    "stage": None,
    "message": None,
    "where": None,
    "prefill": "fast",
    "decode": "fast",
    "backend_class": "Fast",
    "resolved": {"attention_backend": "fast", "page_size": 1},
}
REFUSED = {**ROW, "argv": ["--page-size", "7"], "ok": False, "stage": "arg-resolve",
           "message": "no page of 7, take one of {'two', 'one', 'thirty'}", "where": "srt/server_args.py:28",
           "resolved": None, "prefill": None, "decode": None, "backend_class": None}  # fmt: skip
UNKNOWN = {**ROW, "argv": ["--attention-backend", "probe"]}


def judged(root: Path, some: list[dict[str, Any]]) -> int:
    tiny.write(root / tiny.VERSION, "if runner.secret: pass")
    sources = judge.located([tiny.VERSION], root)
    wrong: int = judge.prove(some, sources, {"tiny": {"config": tiny.CONFIG, "hf_quant": None}}, 1)
    return wrong


def test_answers_that_agree_are_counted_apart_from_unknown_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judged(tmp_path, [ROW, REFUSED, UNKNOWN]) == 0
    printed = capsys.readouterr().out
    assert "3 rows  2 equal  0 wrong  1 unknown (33.3%: 1 that pass, 0 refused)" in printed
    assert "model_runner.secret was used as a truth value" in printed


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"decode": "slow"}, "decode is 'slow', not 'fast'"),
        ({"backend_class": "Slow"}, "backend_class is 'Slow', not 'Fast'"),
        ({"resolved": {"page_size": 64}}, "page_size becomes 64, not 1"),
        ({"full_attn_backend_class": "Inner"}, "full_attn_backend_class is 'Inner', not None"),
        ({"ok": False, "stage": "arg-check", "message": "no"}, "ok is False, not True"),
    ],
)
def test_every_difference_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: Any, said: str) -> None:
    assert judged(tmp_path, [{**ROW, **changed}]) == 1
    printed = capsys.readouterr().out
    assert f"WRONG {tiny.VERSION}: tiny on 1 x H100 (9.0, 80 GiB): --tp-size 1" in printed
    assert said in printed


@pytest.mark.parametrize(
    "changed", [{"message": "another"}, {"where": "srt/other.py:28"}, {"where": "srt/server_args.py:99"}]
)
def test_a_refusal_with_other_words_or_of_another_place_is_wrong(tmp_path: Path, changed: Any) -> None:
    assert judged(tmp_path, [{**REFUSED, **changed}]) == 1


def test_files_of_the_oracle_are_read_without_what_its_harness_made_up(tmp_path: Path) -> None:
    case = {"version": "0.5.9", "capability": [9, 0], "gpu_name": "H100", "gpu_mem_gb": 80, "n_gpus": 4, "tp": 2,
            "model": "/there/models/one", "flags": ["--speculative-draft-model-path", "/there/models/two"]}  # fmt: skip
    out = {"ok": False, "stage": "arg-parse", "message": "no /there/models/one", "logs": [],
           "where": {"file": "srt/server_args.py", "line": 3, "func": "f"}}  # fmt: skip
    made_up = {**out, "message": "'>' not supported between StubObj and int"}
    file = tmp_path / "x.jsonl"
    file.write_text("".join(json.dumps({"case": case, "out": each}) + "\n" for each in (out, made_up)))
    (row,) = rows.truth(file)
    assert (row["model"], row["capability"], row["gpus"]) == ("one", "9.0", 4)
    assert row["argv"] == ["--tp-size", "2", "--speculative-draft-model-path", "/models/two"]
    assert (row["stage"], row["message"], row["where"]) == ("arg-resolve", "no /models/one", "srt/server_args.py:3")


def test_a_sample_takes_the_rare_ones_first() -> None:
    common = [{**ROW, "number": number} for number in range(50)]
    rare = {**REFUSED, "number": 99}
    assert rare in rows.drawn([*common, rare], 5)
