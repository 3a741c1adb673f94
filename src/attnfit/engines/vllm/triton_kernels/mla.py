"""Triton MLA decode, as the TRITON_MLA backend calls it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import torch

from attnfit.kernels.fit.loading import told
from attnfit.kernels.fit.records import Case

from .release import Release, scales

BACKEND = ("vllm.v1.attention.backends.mla.triton_mla",)
REQUESTS = 4  # rows of a decode batch; the kernels are compiled for any number of them


def cases(release: Release) -> Iterator[Case]:
    """A decode step of `REQUESTS` requests at the longest context."""
    yield told("decode", lambda: decode(release))


def decode(release: Release) -> None:
    """One decode step through the backend's own `forward_mqa`."""
    ask, backend = release.ask, release.source(*BACKEND)
    rank, rope, heads = ask["kv_lora_rank"], ask["qk_rope_head_dim"], ask["num_heads"]
    block_size, longest = ask["block_size"], ask["max_model_len"]
    blocks = -(-longest // block_size)
    impl = SimpleNamespace(
        num_heads=heads,
        head_size=rank + rope,
        kv_lora_rank=rank,
        qk_rope_head_dim=rope,
        scale=(ask.get("qk_nope_head_dim", 128) + rope) ** -0.5,  # a number that no kernel is compiled for
        kv_cache_dtype=ask.cache_dtype,
        dcp_world_size=1,
        _sm_count=ask.get("sms"),
    )
    step = SimpleNamespace(
        decode=SimpleNamespace(
            block_table=torch.zeros(REQUESTS, blocks, dtype=torch.int32),
            seq_lens=torch.zeros(REQUESTS, dtype=torch.int32),
        ),
        num_decodes=REQUESTS,
        num_decode_tokens=REQUESTS,
        max_seq_len=longest,
        causal=True,
    )
    cache = torch.empty(2, block_size, rank + rope, dtype=ask.cache_torch_dtype)
    backend.TritonMLAImpl.forward_mqa(
        impl, torch.empty(REQUESTS, heads, rank + rope, dtype=ask.dtype), cache, step, scales()
    )
