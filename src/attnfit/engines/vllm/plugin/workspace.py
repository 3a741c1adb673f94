"""Memory that the kernel writes partial results to: of vLLM's own workspace, reserved before it measures memory."""

from __future__ import annotations

from typing import Any

import torch

from attnfit.engines.vllm.plugin.serves import MAX_TOPK, NAME
from attnfit.kernels import sparse_mla_workspace


def reserve(heads: int, kv_lora_rank: int, *, packed: bool) -> int:
    """Bytes that a layer's largest step needs; they are taken now, since vLLM locks its workspace after warm-up."""
    from vllm.config import get_current_vllm_config

    config = get_current_vllm_config()
    if not torch.cuda.is_available():
        return 0  # the reference needs none, and the interpreter allocates its own
    needed = sparse_mla_workspace(
        int(config.scheduler_config.max_num_batched_tokens),
        heads,
        MAX_TOPK,
        packed=packed,
        device=torch.device("cuda", torch.cuda.current_device()),
        d_v=kv_lora_rank,
    )
    get(needed)
    return needed


def get(size: int) -> torch.Tensor | None:
    """`size` bytes, uninitialised; None for none. Layers of a step use the same ones, one after another; vLLM keeps
    those of overlapping micro-batches apart."""
    if size == 0:
        return None
    from vllm.v1.worker.workspace import current_workspace_manager

    (found,) = current_workspace_manager().get_simultaneous(((size,), torch.uint8))
    return found


_announced: set[Any] = set()


def announce(head_size: int, kv_cache_dtype: str) -> None:
    """The line in the log that shows the backend is in use, once a process and kind of layer."""
    if (head_size, kv_cache_dtype) in _announced:
        return
    _announced.add((head_size, kv_cache_dtype))
    from vllm.logger import init_logger

    from attnfit import __version__

    init_logger("vllm.attnfit").info(
        "attnfit %s: %s serves sparse MLA layers (head_size %d, KV cache %s).",
        __version__,
        NAME,
        head_size,
        kv_cache_dtype,
    )
