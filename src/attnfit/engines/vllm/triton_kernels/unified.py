"""Unified paged attention, as the TRITON_ATTN backend calls it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from attnfit.kernels.fit.loading import told
from attnfit.kernels.fit.records import Case

from .release import Release, scales

BACKEND = ("vllm.v1.attention.backends.triton_attn",)
UTILS = ("vllm.v1.attention.backends.utils",)


def cases(release: Release) -> Iterator[Case]:
    """A prefill, a decode step of one request, one of many."""
    layer = Layer(release)
    yield told("prefill", lambda: layer.step(1, 512))
    yield told("decode, one request", lambda: layer.step(1, 1))
    yield told("decode, many requests", lambda: layer.step(256, 1))


class Layer:
    """One attention layer of the backend, its metadata builder, and a cache of the release's own shape."""

    def __init__(self, release: Release) -> None:
        ask = self.ask = release.ask
        release.overrides[UTILS[0]] = {
            "get_kv_cache_layout": lambda: "NHD",
            "get_num_attention_heads_from_layers": lambda config, names: ask["num_heads"],
        }
        self.module = module = release.source(*BACKEND)
        heads, kv_heads, size = ask["num_heads"], ask["num_kv_heads"], ask["head_size"]
        sinks = torch.zeros(heads, dtype=ask.dtype) if ask.get("sinks") else None
        self.impl = module.TritonAttentionImpl(
            heads,
            size,
            size**-0.5,
            kv_heads,
            None,
            ask.get("sliding_window"),
            ask.cache_dtype,
            ask.get("softcap"),
            sinks=sinks,
        )
        self.layer = scales()
        self.cache = self._cache()
        self.builder = self._builder(release)

    def _cache(self) -> torch.Tensor:
        """Two blocks, laid out as the backend wants them."""
        ask, backend = self.ask, self.module.TritonAttentionBackend
        size, kv_heads, block_size = ask["head_size"], ask["num_kv_heads"], ask["block_size"]
        if not hasattr(backend, "get_kv_cache_shape"):  # since 0.30: blocks, heads, rows, K and V side by side
            return torch.empty(2, block_size, kv_heads, 2 * size, dtype=ask.cache_torch_dtype).transpose(1, 2)
        shape = backend.get_kv_cache_shape(2, block_size, kv_heads, size, ask.cache_dtype)
        order = backend.get_kv_cache_stride_order()
        there = torch.empty([shape[axis] for axis in order], dtype=ask.cache_torch_dtype)
        return there.permute([order.index(axis) for axis in range(len(order))])

    def _builder(self, release: Release) -> Any:
        ask = self.ask
        modes = release.source("vllm.config.compilation", "vllm.config").CUDAGraphMode
        config = SimpleNamespace(
            model_config=SimpleNamespace(
                get_num_attention_heads=lambda parallel: ask["num_heads"],
                get_num_kv_heads=lambda parallel: ask["num_kv_heads"],
                get_head_size=lambda: ask["head_size"],
                rswa_window=None,
            ),
            parallel_config=None,
            speculative_config=None,
            compilation_config=SimpleNamespace(
                cudagraph_mode=modes.FULL_AND_PIECEWISE,
                cudagraph_capture_sizes=[1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)],
                static_forward_context={},
            ),
            scheduler_config=SimpleNamespace(max_num_seqs=256),
        )
        return self.module.TritonAttentionMetadataBuilder(
            SimpleNamespace(block_size=ask["block_size"], kv_quant_mode=None), [], config, torch.device("cpu")
        )

    def step(self, requests: int, tokens: int) -> None:
        """`requests` requests of `tokens` query tokens each, at the longest context."""
        ask = self.ask
        rows, longest = requests * tokens, ask["max_model_len"]
        common = SimpleNamespace(
            num_reqs=requests,
            num_actual_tokens=rows,
            max_query_len=tokens,
            max_seq_len=longest,
            query_start_loc=torch.arange(0, rows + 1, tokens, dtype=torch.int32),
            seq_lens=torch.zeros(requests, dtype=torch.int32),
            block_table_tensor=torch.zeros(requests, -(-longest // ask["block_size"]), dtype=torch.int32),
            slot_mapping=torch.zeros(rows, dtype=torch.int64),
            causal=True,
            mm_req_doc_ranges=None,
            rswa_prefix_lens=None,
        )
        query = torch.empty(rows, ask["num_heads"], ask["head_size"], dtype=ask.dtype)
        new = torch.empty(rows, ask["num_kv_heads"], ask["head_size"], dtype=ask.dtype)
        step = self.builder.build(0, common)
        self.impl.forward(self.layer, query, new, new, self.cache, step, torch.empty_like(query))
