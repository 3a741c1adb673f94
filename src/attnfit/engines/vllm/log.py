"""vLLM's logs: its logger's form, what a start and an end look like, what it says of itself.

Read in vllm/logger.py, vllm/entrypoints/utils.py, vllm/v1/engine/{core,utils}.py, v1/executor/multiproc_executor.py of
0.12.0 to 0.33.0, and in public reports from 0.5 on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attnfit.engines.log import Edit, LogWords, fields
from attnfit.engines.vllm.log_selector import judge, selector

_RELEASE = (
    re.compile(r"(?:API server|LLM API server|engine) version v?(\d+\.\d+\S*)"),
    re.compile(r"[█▀▄].*\bversion +v?(\d+\.\d+\S*)"),
    re.compile(r"Initializing an? (?:V[01] )?LLM engine \(v(\d+\.\d+[^)\s]*)\)"),
)
_CONFIG = re.compile(
    r"\b(model|dtype|quantization|kv_cache_dtype|tensor_parallel_size|pipeline_parallel_size|max_seq_len)="
    r"(?:'([^']*)'|([^,\s]+))"
)
_ARCHITECTURE = re.compile(r"Resolved architectures?: (\w+)")
_BACKEND = re.compile(r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]{3,}) (?:attention )?backend")
_ARGS = "non-default args: "
_ALL_ARGS = "args: Namespace("  # up to 0.8, with every default
# what of them decides, or a client needs: flags that these releases have, and their defaults
_DECIDING = (
    "model_tag", "model", "tokenizer", "revision", "dtype", "quantization", "load_format", "kv_cache_dtype",
    "max_model_len", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel",
    "gpu_memory_utilization", "cpu_offload_gb", "block_size", "max_num_seqs", "max_num_batched_tokens", "enforce_eager",
    "trust_remote_code", "enable_prefix_caching", "enable_chunked_prefill", "speculative_model",
    "num_speculative_tokens", "speculative_config", "served_model_name", "host", "port",
)  # fmt: skip
_OLD: Mapping[str, Sequence[Any]] = {
    "dtype": ("auto",), "load_format": ("auto",), "kv_cache_dtype": ("auto",), "tensor_parallel_size": (1,),
    "pipeline_parallel_size": (1,), "data_parallel_size": (1,), "gpu_memory_utilization": (0.9,), "block_size": (16,),
    "max_num_seqs": (256,), "cpu_offload_gb": (0,), "port": (8000,),
}  # fmt: skip


def facts(text: str) -> Mapping[str, Any]:
    """What one line tells."""
    found: dict[str, Any] = {}
    for pattern in _RELEASE:
        if match := pattern.search(text):
            found["release"] = match[1].rstrip(").,")
    if "LLM engine (v" in text and "with config" in text:
        for name, quoted, bare in _CONFIG.findall(text):
            found.setdefault(name, quoted or bare.removeprefix("torch."))
        found.pop("max_seq_len", None)
    if (mark := next((mark for mark in (_ARGS, _ALL_ARGS) if mark in text), None)) is not None:
        args, unread = fields("(" * (mark == _ALL_ARGS) + text.partition(mark)[2].strip())
        if mark == _ALL_ARGS:
            args = {name: args[name] for name in _DECIDING if args.get(name) not in (None, False, *_OLD.get(name, ()))}
            unread = [name for name in unread if name in _DECIDING]
        found["args"], found["unread"] = args, unread
        found["model"] = args.get("model_tag") or args.get("model")
    if match := _ARCHITECTURE.search(text):
        found["architecture"] = match[1]
    if match := _BACKEND.search(text):
        found["backend"] = match[1]
    asked = selector(text)
    if asked is not None:
        found |= {"selector": asked.config, "reasons": asked.reasons}
    return {name: value for name, value in found.items() if value not in (None, "None", {}, [])}


def command(args: Mapping[str, Any]) -> list[str] | None:
    """`vllm serve` with the arguments that the log prints as not the default; None for those of a script."""
    model = args.get("model_tag") or args.get("model")
    script = args.get("disable_log_stats") is True and "model_tag" not in args  # LLM() sets it (entrypoints/llm.py)
    if not isinstance(model, str) or script:
        return None
    words = ["vllm", "serve", model]
    for name, value in args.items():
        flag = "--" + name.replace("_", "-")
        if name in ("model", "model_tag") or value is None:
            continue
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, dict):
            import json

            words += [flag, json.dumps(value, default=str)]
        elif isinstance(value, (list, tuple)):
            words += [flag, *map(str, value)]
        elif isinstance(value, (str, int, float)):
            words += [flag, str(value)]
    return words


def edited(argv: Sequence[str], form: str, release: str | None, edit: Edit) -> tuple[str, ...]:
    """The server's arguments with flags set or dropped, each where it stands and as it is spelt there (`edited.py`)."""
    from attnfit.engines.vllm.edited import edited as of_release

    return of_release(argv, form, release, edit)


def spelt(edit: Edit, release: str | None) -> Edit | str:
    """The edit in the release's own flags and variables (`spelt.py`)."""
    from attnfit.engines.vllm.spelt import spelt as of_release

    return of_release(edit, release)


JUDGES = {"selector": judge}

LOG = LogWords(
    engine="vllm",
    prefixes=(
        re.compile(
            r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? )?"
            r"\[?[^\]\s]{1,200}:\d+\](?: |$)"
        ),
    ),
    starts=("non-default args:", "API server version"),
    ready=("Application startup complete", "Starting vLLM API server", "Starting vLLM server on"),
    goes_on=(
        "Starting to load model", "Loading weights took", "Model loading took", "Available KV cache memory",
        "KV cache size", "Graph capturing finished", "init engine (profile",
    ),
    at_work=("Avg generation throughput:",),
    died=(
        "EngineCore failed to start", "WorkerProc failed to start", "EngineCore encountered a fatal error",
        "EngineDeadError", "Engine core initialization failed", "died unexpectedly, shutting down",
        "died unexpectedly (exit code", "WorkerProc hit an exception", "Engine process failed to start",
        "EngineCore hit an exception", "Worker failed with error",
    ),
    follows=(
        "See root cause above", "See stack trace", "see stack trace", "Engine core initialization failed",
        "WorkerProc initialization failed", "EngineDeadError", "Engine process failed to start", "died unexpectedly",
        "EngineCore encountered an issue", "Executor failed", "cancelled by", "EngineCore failed to start",
        "WorkerProc failed to start", "Parent process exited",
        "RuntimeError: cancelled",  # a queue that is shut down: shm_broadcast.py of 0.12.0 to 0.33.0
    ),
    frames=("/vllm/", "vllm_flash_attn"),
    traces=("vllm", "VLLM_", "vLLM", "EngineCore", "AttentionSelectorConfig", "non-default args:"),
    facts=facts,
    words=("ersion ", "LLM engine (v", _ARGS, _ALL_ARGS, "Resolved architecture", "backend", "AttentionSelectorConfig"),
    command=command,
    edited=edited,
    spelt=spelt,
)  # fmt: skip
