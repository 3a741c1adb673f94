"""The attention backend "triton": extend and decode, its two launch functions called as its backend calls them.

An argument that a release adds and that has no default is unknown. Not asked about: windows, custom masks, scores that
are modified, the deterministic one-stage kernel.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from attnfit.kernels.fit.asked import DTYPES, FP8
from attnfit.kernels.fit.loading import told
from attnfit.kernels.fit.records import Case, Unknown

from .release import Release

FOLDERS = ("sglang.kernels.ops.attention", "sglang.srt.layers.attention.triton_ops")
SPLITS = 8  # the default of --triton-attention-num-kv-splits; what merges them is compiled for their number
ROWS = 1024  # of the cache; the kernels are compiled for any number of them


def cases(release: Release) -> Iterator[Case]:
    """An extend of two requests and a decode step of four, as far as they run on Triton (`steps`)."""
    steps = release.ask.get("steps") or ("prefill", "decode")
    if "prefill" in steps:
        yield told("extend", lambda: extend(release, 2, 256))
    if "decode" in steps:
        yield told("decode", lambda: decode(release, 4))


def _function(release: Release, file: str, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(release.source(*(f"{folder}.{file}" for folder in FOLDERS)), name)
    return found


def _call(function: Callable[..., Any], known: dict[str, Any]) -> None:
    """With what the function takes of `known`."""
    parameters = inspect.signature(function).parameters
    lacking = [name for name, p in parameters.items() if name not in known and p.default is inspect.Parameter.empty]
    if lacking:
        raise Unknown(f"{function.__name__} wants {', '.join(lacking)}")
    function(**{name: value for name, value in known.items() if name in parameters})


def _cache(release: Release) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of the pool; with multi-head latent attention the values are the keys' first columns."""
    ask = release.ask
    name = str(ask.get("kv_cache_dtype") or "auto")
    dtype = ask.dtype() if name == "auto" else FP8.get(name) or DTYPES[name]
    keys = torch.zeros(ROWS, ask["num_kv_heads"], ask["head_size"], dtype=dtype)
    if ask.get("latent"):
        return keys, keys[..., : ask["v_head_size"]]
    return keys, torch.zeros(ROWS, ask["num_kv_heads"], ask["v_head_size"], dtype=dtype)


def extend(release: Release, requests: int, tokens: int) -> None:
    """`requests` requests of `tokens` new tokens behind a cached prefix."""
    ask, rows = release.ask, requests * tokens
    dtype, heads, kv_heads = ask.dtype(), ask["num_heads"], ask["num_kv_heads"]
    k_buffer, v_buffer = _cache(release)
    known = {
        "q_extend": torch.zeros(rows, heads, ask["head_size"], dtype=dtype),
        "k_extend": torch.zeros(rows, kv_heads, ask["head_size"], dtype=dtype),
        "v_extend": torch.zeros(rows, kv_heads, ask["v_head_size"], dtype=dtype),
        "o_extend": torch.zeros(rows, heads, ask["v_head_size"], dtype=dtype),
        "k_buffer": k_buffer,
        "v_buffer": v_buffer,
        "qo_indptr": torch.arange(0, rows + 1, tokens, dtype=torch.int32),
        "kv_indptr": torch.arange(0, rows + 1, tokens, dtype=torch.int32),
        "kv_indices": torch.zeros(rows, dtype=torch.int64),
        "custom_mask": None,
        "is_causal": True,
        "mask_indptr": None,
        "max_len_extend": tokens,
        "k_scale": 1.0,
        "v_scale": 1.0,
        "sm_scale": 0.1,
        "page_size": ask.get("page_size") or 1,
    }
    _call(_function(release, "extend_attention", "extend_attention_fwd"), known)


def decode(release: Release, requests: int) -> None:
    """One token for each request."""
    ask = release.ask
    dtype, heads, splits = ask.dtype(), ask["num_heads"], ask.get("kv_splits") or SPLITS
    k_buffer, v_buffer = _cache(release)
    known = {
        "q": torch.zeros(requests, heads, ask["head_size"], dtype=dtype),
        "o": torch.zeros(requests, heads, ask["v_head_size"], dtype=dtype),
        "k_buffer": k_buffer,
        "v_buffer": v_buffer,
        "kv_indptr": torch.arange(requests + 1, dtype=torch.int32),
        "kv_indices": torch.zeros(requests, dtype=torch.int64),
        "attn_logits": torch.zeros(requests, heads, splits, ask["v_head_size"], dtype=torch.float32),
        "attn_lse": torch.zeros(requests, heads, splits, dtype=torch.float32),
        "num_kv_splits": torch.ones(requests, dtype=torch.int32),
        "max_kv_splits": splits,
        "sm_scale": 0.1,
        "k_scale": 1.0,
        "v_scale": 1.0,
        "has_mla": bool(ask.get("latent")),
        "page_size": ask.get("page_size") or 1,
    }
    _call(_function(release, "decode_attention", "decode_attention_fwd"), known)
