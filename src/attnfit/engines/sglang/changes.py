"""What a release changes by itself: the difference between the arguments as parsed and as resolved."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from attnfit.core import Change
from attnfit.engines.sglang.answers import Answer

# Filled in for the run, not decided: ports, names and seeds.
_FILLED = frozenset({
    "model_path", "tokenizer_path", "served_model_name", "random_seed", "device", "port", "nccl_port", "host",
    "tool_call_parser", "reasoning_parser", "weight_version", "log_level_http",
})  # fmt: skip


# What decides speed, memory or correctness of attention and its caches: shown even where the engine says nothing of it.
_TELLING = frozenset({
    "attention_backend", "prefill_attention_backend", "decode_attention_backend", "page_size", "kv_cache_dtype",
    "dtype", "quantization", "linear_attn_backend", "linear_attn_prefill_backend", "linear_attn_decode_backend",
    "linear_attn_verify_backend", "mamba_backend", "mamba_ssm_dtype", "mamba_scheduler_strategy",
    "mamba_radix_cache_strategy", "dsa_prefill_backend", "dsa_decode_backend", "nsa_prefill_backend",
    "nsa_decode_backend", "disable_radix_cache", "disable_overlap_schedule", "disable_cuda_graph",
    "moe_runner_backend", "fp4_gemm_runner_backend", "fp8_gemm_runner_backend", "enable_flashinfer_allreduce_fusion",
    "flashinfer_allreduce_fusion_backend", "speculative_draft_attention_backend", "disable_hybrid_swa_memory",
    "swa_full_tokens_ratio", "sampling_backend", "chunked_prefill_size", "mem_fraction_static", "tp_size", "dp_size",
    "ep_size", "speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk",
    "speculative_num_draft_tokens",
})  # fmt: skip


def changes(answer: Answer) -> Iterator[Change]:
    """Every setting that comes out of resolution other than it went in, with the engine's own sentence on it."""
    given = answer.get("given") or {}
    said = [str(entry[1]) for entry in answer.get("warnings") or () if len(entry) > 1]
    for field, value in (answer.get("resolved") or {}).items():
        if field in given and field not in _FILLED and _plain(given[field]) != _plain(value):
            sentence = _sentence(field, value, said)
            yield Change(field, given[field], value, sentence, minor=not sentence and field not in _TELLING)


def _sentence(field: str, value: Any, said: Sequence[str]) -> str:
    """The log line that names the setting; of several the one that also names the value."""
    thing = field.removeprefix("disable_").removeprefix("enable_")  # the engine says "Disabling overlap schedule"
    names = re.compile(
        rf"(?<![\w-])(?<!cache )(?:--)?(?:(?:dis|en)able[-_ ])?{thing.replace('_', '[-_ ]')}(?![\w-])", re.I
    )
    naming = [line for line in said if names.search(line)]
    exact = [line for line in naming if str(value) in line]
    found = (exact or naming or [""])[0]
    return " ".join(found.split())


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
