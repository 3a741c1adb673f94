"""How far a call is split over its keys, and the memory for the partial results.

Both follow from shapes and the device alone, never from values: a call may be captured in a CUDA graph, and its
workspace reserved beforehand.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

MIN_KEYS = 128  # of one split; below that the merge costs more than the parallelism gives
MAX_SPLITS = 32
PROGRAMS_PER_SM = 2  # that a launch should have before it stops splitting


class Partials(NamedTuple):
    """One output and LSE a split: fp32 [T, H, splits, d_v] and [T, H, splits]."""

    out: torch.Tensor
    lse: torch.Tensor

    @property
    def splits(self) -> int:
        return int(self.lse.shape[2])


def splits_of(tokens: int, head_blocks: int, topk: int, num_sms: int) -> int:
    """Into how many parts the keys of each token go: a power of two; 1 means a single pass.

    As many as bring the launch to PROGRAMS_PER_SM programs on each of `num_sms` multiprocessors.
    """
    wanted = triton.cdiv(PROGRAMS_PER_SM * num_sms, max(1, tokens * head_blocks))
    most = min(MAX_SPLITS, max(1, topk // MIN_KEYS))
    splits = 1
    while splits * 2 <= min(wanted, most):
        splits *= 2
    return splits


def workspace_bytes(max_tokens: int, heads: int, head_blocks: int, topk: int, d_v: int, num_sms: int) -> int:
    """The most bytes that a call with up to `max_tokens` tokens needs for partial results."""
    programs = PROGRAMS_PER_SM * num_sms
    most = 0
    for splits in (2**n for n in range(1, MAX_SPLITS.bit_length())):
        if splits <= max(1, topk // MIN_KEYS):
            # the most tokens for which programs / (tokens * head_blocks), rounded up, still reaches `splits`
            most = max(most, splits * min(max_tokens, (programs - 1) // ((splits - 1) * head_blocks)))
    return most * heads * (d_v + 1) * 4


def carve(workspace: torch.Tensor | None, like: torch.Tensor, heads: int, splits: int, d_v: int) -> Partials:
    """Partial results inside `workspace` (any dtype, contiguous), or in new memory. Raises ValueError if too small."""
    tokens = like.shape[0]
    numbers = tokens * heads * splits * (d_v + 1)
    if workspace is None:
        flat = torch.empty(numbers, dtype=torch.float32, device=like.device)
    else:
        if not workspace.is_contiguous() or workspace.data_ptr() % 4:
            raise ValueError("workspace must be contiguous and begin at a multiple of four bytes")
        flat = workspace.view(-1).view(torch.uint8)
        if flat.numel() < numbers * 4:
            raise ValueError(
                f"workspace has {flat.numel()} bytes; {tokens} tokens with {splits} splits need {numbers * 4}: "
                "reserve what sparse_mla_workspace() states"
            )
        flat = flat[: numbers * 4].view(torch.float32)
    out, lse = flat.split([tokens * heads * splits * d_v, tokens * heads * splits])
    return Partials(out.view(tokens, heads, splits, d_v), lse.view(tokens, heads, splits))
