"""A way out is offered for the failure it helps with, and for no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnfit.api import check
from attnfit.hazards import Remedy, catalogue, find
from attnfit.hazards.words import does_nothing, meant, suits
from attnfit.report.explain import render as render_answer
from attnfit.report.hazards import render
from explain_logs import answer, rows, sglang, vllm
from foreseen_cases import models

FP8 = "ValueError: type fp8e4nv not supported in this architecture. The supported fp8 dtypes are ('fp8e4b15', 'fp8e5')"


def ways(log: str) -> str:
    return "\n".join(f"{way.text} {way.change}" for way in answer(log).ways)


def test_an_fp8_kernel_is_cured_where_the_traceback_says_that_it_is() -> None:
    weights = ways(vllm(FP8, "vllm/model_executor/layers/quantization/utils/fp8_utils.py:700"))
    cache = ways(vllm(FP8, "vllm/v1/attention/ops/triton_unified_attention.py:500"))
    v4 = ways(vllm(FP8, "vllm/models/deepseek_v4/common/ops/fused_inv_rope_fp8_quant.py:121"))
    assert "AWQ" in weights
    assert "--kv-cache-dtype" not in weights
    assert "--kv-cache-dtype auto" in cache
    assert "AWQ" not in cache
    assert "no flag helps" in v4
    assert "AWQ" not in v4
    assert "--kv-cache-dtype" not in v4


def test_memory_that_runs_out_while_weights_load_is_not_cured_by_a_smaller_share() -> None:
    message = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    assert "smaller --gpu-memory" not in ways(vllm(message, "vllm/model_executor/model_loader/weight_utils.py:9"))
    assert "smaller --gpu-memory" in ways(vllm(message, "vllm/v1/worker/gpu_model_runner.py:9"))
    graphs = ways(sglang(f"Exception: Capture cuda graph failed: {message}"))
    assert "--disable-cuda-graph" in graphs


def test_a_flag_that_the_command_has_not_is_not_to_be_dropped() -> None:
    log = sglang("AssertionError: trtllm_mha backend can only be used with non-MLA models.")
    assert "drop --attention-backend" in ways(log)
    bare = log.replace(", attention_backend='flashinfer'", ", attention_backend=None")
    assert "drop --attention-backend" not in ways(bare)


def test_what_only_takes_away_or_leaves_to_the_engine_does_nothing_where_nothing_was_asked_for() -> None:
    assert does_nothing(Remedy("x", drop=("--attention-backend",)), set())
    assert does_nothing(Remedy("x", set={"--kv-cache-dtype": "auto"}), {"--model"})
    assert not does_nothing(Remedy("x", drop=("--attention-backend",)), {"--attention-backend"})
    assert not does_nothing(Remedy("x", set={"--kv-cache-dtype": "bfloat16"}), set())
    assert not does_nothing(Remedy("words alone"), set())


def test_a_remedy_for_one_predicate_is_not_offered_for_another() -> None:
    record = next(record for record in catalogue().records if record.id == "AF318")
    dsa = " ".join(remedy.text for remedy in meant(record, "sglang", "0.5.23", "dsa_without_gate", set()))
    half = " ".join(remedy.text for remedy in meant(record, "sglang", "0.5.23", "dsa_in_float16", {"--dtype"}))
    assert "TileLang" in dsa
    assert "bfloat16, the precision" in half
    assert "TileLang" not in half


def test_conditions_are_read_without_regard_to_case() -> None:
    remedy = Remedy("x", near=("DeepSeek-V4",), lacks=("mla",))
    assert suits(remedy, "model=/models/deepseek-v4-flash")
    assert not suits(remedy, "model=/models/deepseek-v4-flash, FLASHMLA")
    assert not suits(remedy, "model=/models/other")


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root: Path = tmp_path_factory.mktemp("models")
    return models(root)


def hazard(command: str, gpu: str, release: str, code: str) -> tuple[str, ...]:
    found = check(command, gpu=gpu, engine=f"vllm=={release}", planned=False).launch.hazards
    return next(each.remedies for each in found if each.code == code)


def test_without_a_flag_another_backend_is_offered_that_returns_the_sums(at: dict[str, str]) -> None:
    """Decode context parallelism on a backend that the engine chose by itself."""
    sparse = hazard(f"vllm serve {at['zai-org__GLM-5-FP8']} -tp 8 -dcp 8", "rtx-pro-6000x8", "0.26.0", "AF207")
    assert len(sparse) == 1  # none other takes sparse attention on this GPU
    assert "--decode-context-parallel-size 1" in sparse[0]
    gemma = f"vllm serve {at['Qwen__Qwen3-8B']} -tp 8 -dcp 2 --attention-backend TRITON_ATTN"
    dense = hazard(gemma, "h100x8", "0.26.0", "AF207")
    assert "--attention-backend FLASH_ATTN" in dense[0]
    assert all("drop" not in line for line in (*sparse, *dense))


def test_a_process_that_was_killed_is_a_cause_only_where_nothing_was_raised_before() -> None:
    killed = (
        "ERROR 11-30 08:00:00 [multiproc_executor.py:380] Worker proc VllmWorker-1 died unexpectedly (exit code: -9)"
    )
    alone = answer(f"INFO 11-30 08:00:00 [core.py:1] Initializing a V1 LLM engine (v0.33.0)\n{killed}\n")
    assert alone.cause is not None
    assert (alone.cause.record.id, alone.cause.how_sure) == ("AF130", "likely")
    for before in (vllm("SomethingNewError: nobody knows this one"), vllm("nothing that looks like an exception")):
        assert answer(f"{before}{killed}\n").cause is None


def test_words_that_fit_other_causes_too_are_only_likely() -> None:
    sure = answer(vllm("RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist")).cause
    loose = answer(vllm("RuntimeError: Ninja build failed. Ninja output: ninja: error")).cause
    assert sure is not None
    assert loose is not None
    assert (sure.record.id, sure.how_sure) == (loose.record.id, "certain")
    assert loose.how_sure == "likely"


def test_of_public_reports_read_since_none_is_taken_for_another_kind() -> None:
    """Read "before": before the records for them were written; all others, and the batches, each only after."""
    fresh = rows("fresh_reports.jsonl")
    found = [(row, shown.record.kind if (shown := answer(row["text"]).cause) else None) for row in fresh]
    assert [(row["url"], kind) for row, kind in found if kind is not None and kind not in row["kinds"]] == []
    assert sum(kind is not None for _, kind in found) >= 245


def test_a_hazard_in_full_says_when_a_remedy_is_one_and_which_words_are_doubtful() -> None:
    full = render(find("AF104")).replace("\n            ", " ")
    assert "vllm: keep the KV cache in 16 bits" in full
    assert "(where the log says one of unified_attention, triton_attn" in full
    assert "Ninja build failed (may be said of something else)" in render(find("AF107"))


def test_what_only_says_more_of_the_cause_is_a_diagnosis_and_comes_last() -> None:
    found = answer(vllm("RuntimeError: NCCL error: unhandled system error"))
    assert [way.shows for way in found.ways] == [False, True, True]
    assert found.ways[1].change == "NCCL_DEBUG=INFO"
    assert "diagnosis   see what NCCL says" in render_answer(found)
    assert "diagnosis   see what NCCL says" in render(find("AF119"))


def test_a_remedy_that_reads_as_a_diagnosis_is_one() -> None:
    for record in catalogue().records:
        for remedy in record.remedies:
            reads = remedy.text.startswith(("see ", "look for ")) or "to see" in remedy.text
            assert remedy.shows is reads, f"{record.id}: {remedy.text}"


def test_a_launch_that_has_not_failed_is_offered_no_diagnosis() -> None:
    offered = meant(find("AF119"), "vllm", "0.33.0")
    assert offered
    assert not any(remedy.shows for remedy in offered)
