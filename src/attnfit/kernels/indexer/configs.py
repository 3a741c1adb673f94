"""Block sizes, warps and stages of the indexer's kernels: one static table, no tuning at run time."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton


class LogitsConfig(NamedTuple):
    """One way to launch the logits kernels."""

    block_n: int  # keys per program
    num_warps: int
    num_stages: int


class TopkConfig(NamedTuple):
    """One way to launch the top-k kernel."""

    block: int  # logits per step
    num_warps: int


MAX_TOKENS_PER_PROGRAM = 32
PROGRAMS_PER_SM = 4  # that a launch should have before programs take more tokens


def logits_config(block_h: int) -> LogitsConfig:
    """For so many heads (padded to a power of two)."""
    return LogitsConfig(block_n=128 if block_h <= 64 else 64, num_warps=4, num_stages=2)


def topk_config(columns: int) -> TopkConfig:
    """For rows of so many columns."""
    return TopkConfig(block=1024, num_warps=4) if columns <= 4096 else TopkConfig(block=4096, num_warps=16)


def tokens_per_program(tokens: int, key_blocks: int, num_sms: int) -> int:
    """How many tokens share one load of a block of keys: as many as leave every multiprocessor enough programs."""
    share = MAX_TOKENS_PER_PROGRAM
    while share > 1 and triton.cdiv(tokens, share) * key_blocks < PROGRAMS_PER_SM * num_sms:
        share //= 2
    return share


def num_sms_of(device: torch.device) -> int:
    """Multiprocessors of the device; 1 for a CPU (the interpreter runs programs one after the other)."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
