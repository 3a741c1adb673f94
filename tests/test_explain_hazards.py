"""Every hazard is recognised by what its engine prints, and by nothing that belongs to another."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import attnfit
from attnfit.engines.vllm.flags.table import known_releases, load_table
from attnfit.errors import InputError
from attnfit.hazards import Remedy, Signature, catalogue, matches
from attnfit.hazards.catalogue import check, read
from attnfit.hazards.record import KINDS
from explain_logs import DATA, PRINTS, answer, kind, rows

OPTIONS = {
    flag: [Version(release) for release in pair]
    for flag, pair in json.loads(
        (Path(attnfit.__file__).parent / "engines/sglang/options.json").read_text("utf-8")
    ).items()
}
SOURCES = rows("source_lines.jsonl")  # written from the engines' own raise statements; `where` names them
LIBRARIES = rows("library_lines.jsonl")  # of Triton, torch, FlashInfer, DeepGEMM, CUDA; `source` names them
LOGS = {
    "ar-fusion-sglang-sm120": "allreduce-fusion", "deepgemm-sf-sm120-gemma4": "deepgemm-arch",
    "dsr1-nvfp4-sm120-regression": "kv-cache-dtype", "dsv32-b200-cutlass-mla": "sparse-mla",
    "gemma4-turboquant-triton": "kv-cache-dtype", "glm51-nvfp4-a800-fp8kv": "kv-cache-dtype",
    "glm51-nvfp4-sglang-sm120-deepgemm": "sparse-mla", "gptoss-mixed-2080ti-3090": "mixed-gpus",
    "nokernel-5090-steps": "no-kernel-image", "ptxas-sm121a-mineru": "ptxas",
    "qwen35-sglang-5090-gpustack": "hybrid-gdn", "sglang-5090-trtllm-mha": "flag-arch-mismatch",
    "sglang-hybrid-gdn-b300": "hybrid-gdn", "tp-heads-64-3-dsv4": "tp-divisibility",
    "triton-mla-fp8-kv-sm120": "kv-cache-dtype", "vllm-qwen3next-b200-flashinfer": "page-size",
}  # fmt: skip


def test_of_the_public_reports_no_excerpt_is_taken_for_another_kind() -> None:
    reports = [row for row in rows("excerpts.jsonl") if row["seen"]]
    found = {row["id"]: (kind(row["excerpt"]), row["kind"]) for row in reports}
    assert {id: pair for id, pair in found.items() if pair[0] not in (None, pair[1])} == {}
    assert sum(mine == theirs for mine, theirs in found.values()) >= 0.95 * len(found)


def test_nor_is_one_of_those_that_quote_no_line_or_are_of_other_engines() -> None:
    others = [row for row in rows("excerpts.jsonl") if not row["seen"]]
    assert {row["id"] for row in others if kind(row["excerpt"]) not in (None, row["kind"])} == set()


def test_lines_quoted_in_other_public_issues_are_taken_for_what_they_are() -> None:
    lines = rows("field_lines.jsonl")
    assert len(lines) > 35
    assert {row["line"]: (row["kind"], found) for row in lines if (found := kind(row["line"])) != row["kind"]} == {}


@pytest.mark.parametrize("name", LOGS)
def test_the_cause_of_a_whole_log_is_found(name: str) -> None:
    assert kind((DATA / "logs" / f"{name}.log").read_bytes()) == LOGS[name]


@pytest.mark.parametrize("row", SOURCES, ids=lambda row: f"{row['hazard']}-{row['where'].rpartition('/')[2]}")
def test_what_a_release_prints_is_recognised(row: dict[str, str]) -> None:
    log = PRINTS[row["engine"]](f"{row['exception']}: {row['message']}", row["where"])
    found = answer(log)
    assert found.cause is not None
    assert found.cause.record.kind == row["kind"], found.cause.record.id


@pytest.mark.parametrize("engine", PRINTS)
def test_so_is_what_a_library_prints_under_either_engine(engine: str) -> None:
    kinds = {record.id: record.kind for record in catalogue().records}
    own = {"AF2": "vllm", "AF3": "sglang"}
    missed = [
        row["line"]
        for row in LIBRARIES  # `alone`: no cause behind anything that went wrong before
        if own.get(row["hazard"][:3], engine) == engine
        and kind(row["line"] if row.get("alone") else PRINTS[engine](row["line"])) != kinds[row["hazard"]]
    ]
    assert missed == []


@pytest.mark.parametrize(
    ("code", "kinds"),
    [
        ("assert self.total_num_heads % tp_size == 0", {"vllm": "tp-divisibility", "sglang": "tp-divisibility"}),
        ("assert param_data.shape == loaded_weight.shape", {"vllm": "checkpoint", "sglang": "checkpoint"}),
        ("assert is_fa_version_supported(self.fa_version)", {"vllm": "fa-version"}),
        ("assert new_spec.page_size_bytes == max_page_size", {}),
    ],
)
def test_of_a_bare_assertion_the_line_above_it_says_what_it_is(code: str, kinds: dict[str, str]) -> None:
    for engine, prints in PRINTS.items():
        log = prints("AssertionError").replace("    raise ValueError(", f"    {code}")
        assert kind(log) == kinds.get(engine, kinds.get("vllm"))
    for end in ("\nAssertionError", "\n           ^^^^^^^\nAssertionError"):  # as somebody quotes its last lines
        assert kind(f"    {code}{end}") == kinds.get("vllm")
    assert kind(f"    {code}\nsomething else\nstill\nAssertionError") is None


def test_the_same_words_are_another_cause_under_another_traceback() -> None:
    internal, missing = "RuntimeError: Error Internal", "RuntimeError: DeepGEMM backend is not available or outdated."
    above = {
        (internal, "torch.ops._C.cutlass_scaled_fp4_mm(out, a, b)"): "nvfp4-kernel",
        (internal, "torch.ops._C.cutlass_scaled_mm(out, a, b)"): None,  # in FP8 it has many causes
        (missing, "deep_gemm_warmup(model, max_tokens)"): "missing-package",
        (missing, "logits = fp8_paged_mqa_logits(q, kv)"): "sparse-mla",
    }
    for (line, code), meant in above.items():
        assert kind(PRINTS["vllm"](line).replace("    raise ValueError(", f"    {code}")) == meant


def test_a_refusal_that_is_cut_off_is_what_it_says_of_the_backend_that_was_asked_for() -> None:
    refused = "ValueError: Selected backend FLASHINFER is not valid for this configuration. Reason: ["
    assert kind(f"{refused}'attention sinks not supported") == "attention-sinks"
    assert kind(f"{refused}'sparse not supported', 'compute capability not supp") == "sparse-mla"
    for several in ("'kv_cache_dtype not supported', 'head_size", "'", "'something else"):
        assert kind(refused + several) is None


def test_each_hazard_s_own_line_shows_one_kind_and_no_other() -> None:
    """The cross: 300 lines of all records against the signatures of all records."""
    lines = [f"{row['exception']}: {row['message']}" for row in SOURCES] + [row["line"] for row in LIBRARIES]
    shown = {line: {hit.record.kind for hit in matches(line, catalogue())} for line in lines}
    assert len(shown) > 300
    assert {line: kinds for line, kinds in shown.items() if len(kinds) != 1} == {}


def test_no_signature_is_made_for_one_case() -> None:
    """Every record but those that need more than a line is shown by a line that no report quotes."""
    shown = defaultdict(set)
    for line in [f"{row['exception']}: {row['message']}" for row in SOURCES] + [row["line"] for row in LIBRARIES]:
        for hit in matches(line, catalogue()):
            shown[hit.record.id].add(line)
    assert {record.id for record in catalogue().records} - set(shown) == {"AF220"}  # asks for an earlier line too


def test_a_message_that_somebody_broke_into_lines_is_put_together_again() -> None:
    broken = (
        "ValueError: Weight output_size_per_partition = 96 is not\n    divisible by weight quantization block_n = 128."
    )
    assert kind(broken) == "quant-shape"
    assert kind(broken.replace("\n", "\n\n")) is None  # something else
    assert kind(broken.replace("    divisible", "TypeError: divisible")) is None
    old = "(VllmWorker rank=0 pid=4360) "
    assert kind(f"{old}    assert self.total_num_kv_heads % tp_size == 0\n{old}AssertionError") == "tp-divisibility"


def test_no_regex_is_escaped_twice() -> None:
    signatures = [(record.id, signature) for record in catalogue().records for signature in record.signatures]
    assert [(name, signature.regex) for name, signature in signatures if "\\\\" in signature.regex] == []


def test_nothing_stands_twice_in_a_record() -> None:
    for record in catalogue().records:
        for parts in (record.signatures, record.remedies, record.evidence):
            assert all(part not in parts[:place] for place, part in enumerate(parts)), record.id


def test_a_hazard_says_where_it_is_known_from_and_what_to_do() -> None:
    records = catalogue().records
    assert len(records) > 80
    assert all(record.why and record.remedies and record.evidence for record in records)
    assert len({record.kind for record in records}) > 0.9 * len(KINDS)


@pytest.mark.parametrize("file", sorted((DATA / "quiet").iterdir()), ids=lambda file: file.name)
def test_healthy_and_unrelated_logs_are_claimed_by_nothing(file) -> None:  # type: ignore[no-untyped-def]
    found = answer(file.read_bytes())
    assert found.cause is None
    assert found.exit_code == (0 if found.verdict == "no failure" else 3)


def test_a_healthy_log_is_said_to_be_one() -> None:
    quiet = DATA / "quiet"
    for name in ("vllm-healthy", "vllm-bad-requests", "vllm-recovered", "sglang-healthy"):
        assert answer((quiet / f"{name}.log").read_bytes()).verdict == "no failure", name
    for name in ("vllm-cut-short", "sglang-cut-short"):
        assert answer((quiet / f"{name}.log").read_bytes()).verdict == "no end", name
    for name in ("pytest", "nginx-error", "dmesg", "training-oom", "other-traceback", "pip"):
        assert answer((quiet / f"{name}.log").read_bytes()).verdict == "no log of an engine", name
    assert answer(b"").verdict == "empty"


def test_a_remedy_names_flags_that_a_release_it_is_for_has() -> None:
    has = {
        "vllm": {version: set(load_table(version).by_option()) for version in known_releases()},
        "sglang": {
            version: {flag for flag, (first, last) in OPTIONS.items() if first <= Version(version) <= last}
            for version in {str(release) for pair in OPTIONS.values() for release in pair}
        },
    }
    missing = []
    for record in catalogue().records:
        for remedy in record.remedies:
            releases = has.get(remedy.engine or record.engine, {})
            within = [v for v in releases if SpecifierSet(remedy.release).contains(v, prereleases=True)]
            for flag in (*remedy.set, *remedy.drop):
                if not any({flag, flag.partition(".")[0]} & releases[version] for version in within):
                    missing.append((record.id, flag))
    assert missing == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": "AF1"}, "AF and three digits"),
        ({"kind": "kv-memroy"}, "did you mean 'kv-memory'"),
        ({"stage": "boot"}, "unknown stage 'boot'"),
        ({"evidence": ()}, "no evidence"),
        ({"signatures": (Signature(has=()),)}, "without a literal"),
        ({"signatures": (Signature(has=("x",), regex="("),)}, "cannot be read"),
        ({"signatures": (Signature(has=("x",), judge="nobody"),)}, "no judge 'nobody'"),
        ({"engine": "", "remedies": (Remedy("x", drop=("--flag",)),)}, "whose they are"),
    ],
)
def test_a_record_that_cannot_be_used_says_what_is_wrong(change: dict[str, object], words: str) -> None:
    good = catalogue().records[-1]
    check([good], catalogue().judges)
    with pytest.raises(InputError, match=re.escape(words)):
        check([msgspec.structs.replace(good, **change)], catalogue().judges)


def test_a_file_of_records_that_is_none_says_where(tmp_path: Path) -> None:
    file = tmp_path / "neutral.json"
    file.write_text('[{"id": "AF101"}]')
    with pytest.raises(InputError, match=r"neutral\.json: .*missing required field"):
        read(file)


@pytest.mark.parametrize(
    ("command", "own", "others"),
    [
        ("vllm serve org/model", "--gpu-memory-utilization", "--mem-fraction-static"),
        ("python -m sglang.launch_server --model-path org/model", "--mem-fraction-static", "--gpu-memory-utilization"),
    ],
)
def test_of_a_log_that_names_no_engine_the_command_says_whose_remedies_are_meant(
    command: str, own: str, others: str
) -> None:
    found = answer("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", command.split())
    said = " ".join(f"{way.text} {way.change}" for way in found.ways)
    assert own in said
    assert others not in said
