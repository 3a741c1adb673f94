"""Checks of the scheduler, LoRA and the tokenizer, and the CUDA graph mode."""

from __future__ import annotations

from typing import Any

from attnfit.engines.vllm.launch.arch import ModelInfo
from attnfit.engines.vllm.launch.field_bounds import check_fields, scheduler_sizes
from attnfit.engines.vllm.launch.messages import assertion, plain, value_error
from attnfit.engines.vllm.launch.parallel import Parallel
from attnfit.engines.vllm.launch.state import Unknown
from attnfit.engines.vllm.launch.way import Way


def check_scheduler(
    way: Way, groups: Parallel, length: int, chunked: bool, info: ModelInfo
) -> tuple[int | None, int | None]:
    """max_num_seqs and max_num_batched_tokens as the OpenAI server defaults them, and the scheduler's refusals.

    The defaults depend on the GPU's memory, which is not an input here: numbers the user did not give are None where
    they do not follow from what was given.
    """
    seqs, tokens = way.whole("max_num_seqs"), way.whole("max_num_batched_tokens")
    check_fields(way, "SchedulerConfig", scheduler_sizes(way, seqs, tokens, length))
    if tokens is not None and not chunked and tokens < length:
        way.met(
            value_error(
                "SchedulerConfig",
                f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}). This effectively limits "
                "the maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. Please "
                "increase max_num_batched_tokens or decrease max_model_len.",
                "vllm/config/scheduler.py",
            )
        )
    if tokens is not None and seqs is not None and tokens < seqs:
        way.met(
            value_error(
                "SchedulerConfig",
                f"max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({seqs}).",
                "vllm/config/scheduler.py",
            )
        )
    longest = way.whole("long_prefill_token_threshold")
    if longest is not None and longest > length:
        way.met(
            value_error(
                "SchedulerConfig",
                f"long_prefill_token_threshold ({longest}) cannot be greater than the max_model_len ({length}).",
                "vllm/config/scheduler.py",
            )
        )
    if way.flags.get("enable_lora"):
        _lora_slots(way)
    return seqs, tokens


def _lora_slots(way: Way) -> None:
    """LoRAConfig: at least as many adapters in CPU memory as on the GPU."""
    on_gpu, on_cpu = way.whole("max_loras") or 1, way.whole("max_cpu_loras")
    if on_cpu is not None and 0 < on_cpu < on_gpu:
        labels = way.flags.get("max_lora_cls_labels")
        way.met(
            value_error(
                "LoRAConfig",
                f"max_cpu_loras ({on_cpu}) must be >= max_loras ({on_gpu}).",
                "vllm/config/lora.py",
                end=f"'max_lora_cls_labels': {labels}, 'max_cpu_loras': {on_cpu}}})",
            )
        )


def check_replay(way: Way, info: ModelInfo) -> None:
    """`--use-replayssm` needs a model class that can. Raises Refusal."""
    if way.flags.get("use_replayssm") and info.at:
        if "replayssm" in info:
            raise Unknown("which further conditions --use-replayssm meets on this model")
        raise value_error(
            "VllmConfig",
            f"--use-replayssm is not supported for architecture {info.architecture!r}",
            "vllm/config/vllm.py",
        )


def check_microbatches(way: Way) -> None:
    """Two-batch overlap needs an all2all backend that can. Raises Refusal."""
    able = ("deepep_low_latency", "deepep_high_throughput", "nixl_ep")
    ubatch = way.whole("ubatch_size") or 0
    used = way.word("all2all_backend", "allgather_reducescatter")
    if (way.flags.get("enable_dbo") or ubatch > 1) and used not in able:
        raise assertion(
            "VllmConfig",
            f"Microbatching currently only supports the {', '.join(able)} all2all backends on this platform. {used} "
            f"is not supported. To fix use one of {', '.join('--all2all-backend=' + b for b in able)} and install the "
            "matching kernels.",
            "vllm/config/vllm.py",
        )


def check_lora(way: Way, info: ModelInfo) -> None:
    """`--enable-lora` needs a model class that takes adapters. Raises Refusal."""
    if not way.flags.get("enable_lora"):
        return
    if "lora" not in info and info.at:
        raise value_error(
            "VllmConfig",
            f"LoRA is not supported for {info.architecture} ({way.path}). Supported models implement the "
            "`SupportsLoRA` interface. Run this model without `enable_lora`.",
            "vllm/config/lora.py",
        )


def skips_tokenizer(way: Way) -> None:
    """A reasoning parser looks its tokens up in the tokenizer, also where the user skips loading it."""
    if way.flags.get("skip_tokenizer_init") and way.flags.get("reasoning_parser"):
        if way.flags.get("reasoning_parser") != "qwen3":
            raise Unknown("what this reasoning parser does without a tokenizer (--skip-tokenizer-init)")
        raise plain("AttributeError", "'NoneType' object has no attribute 'get_vocab'", "vllm/parser/engine")


def cudagraph_mode(way: Way, pooling: bool, node: Any) -> str | None:
    """The CUDA graph mode at the end of the stage, None where it is not derived."""
    if way.flags.get("enforce_eager"):
        return "NONE"
    both = node.get("is_encoder_decoder", False) or node.text().get("is_encoder_decoder", False)
    asked = way.flags.get("compilation_config")
    mode = asked.get("cudagraph_mode") if isinstance(asked, dict) else None
    if both and mode != "NONE":
        return "FULL_DECODE_ONLY"
    if isinstance(mode, str):
        return "PIECEWISE" if pooling and mode.upper().startswith("FULL") else mode.upper()
    return "PIECEWISE" if pooling else "FULL_AND_PIECEWISE"
