"""The step of the indexer that no compiler looks into: keys into their cache, logits, top-k."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library

from attnfit.engines.vllm.plugin.indexer.routing import OPERATOR
from attnfit.engines.vllm.plugin.indexer.steps import IndexerStep, Tile
from attnfit.kernels import index_logits_paged, index_topk, interpreter, write_index_cache

LOGITS_BYTES = 256 << 20  # of one call: longer batches are taken in parts

_library = Library("vllm", "FRAGMENT")  # graphs are split at operators by their names in it


class SparseIndexer(torch.nn.Module):
    """In place of vLLM's SparseAttnIndexer, and constructed like it."""

    def __init__(
        self,
        k_cache: Any,
        quant_block_size: int,
        scale_fmt: str | None,
        topk_tokens: int,
        head_dim: int,
        max_model_len: int,
        max_total_seq_len: int,
        topk_indices_buffer: torch.Tensor,
        **rest: Any,
    ) -> None:
        super().__init__()
        self.k_cache = k_cache
        self.topk_tokens = topk_tokens
        self.scale_format = "ue8m0" if scale_fmt == "ue8m0" else "fp32"
        self.topk_indices_buffer = topk_indices_buffer  # a draft model's is pointed at the target's later

    def forward(
        self, hidden_states: torch.Tensor, q: torch.Tensor, k: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """q [T, H, D], k [T, D] of the model's dtype, weights fp32 [T, H] -> the buffer, int32 [tokens, width]."""
        run = getattr(torch.ops.vllm, OPERATOR)
        run(q, k, weights, self.topk_indices_buffer, self.topk_tokens, self.scale_format, self.k_cache.prefix)
        return self.topk_indices_buffer


def _run(
    q: torch.Tensor,
    k: torch.Tensor,
    weights: torch.Tensor,
    topk_indices: torch.Tensor,
    topk: int,
    scale_format: str,
    layer: str,
) -> None:
    from vllm.forward_context import get_forward_context

    context = get_forward_context()
    steps = context.attn_metadata
    if isinstance(steps, list):  # one for each micro-batch or draft; the first is this one's
        steps = steps[0]
    if steps is None:  # profiling run: what the largest step will take
        torch.empty(LOGITS_BYTES, dtype=torch.uint8, device=q.device)
        return
    step: IndexerStep = steps[layer]
    cache = context.no_compile_layers[layer].kv_cache
    if isinstance(cache, list):
        cache = cache[context.virtual_engine]  # up to 0.16.0
    kernel = _implementation(q)
    tokens = step.num_tokens
    write_index_cache(k[:tokens], cache, step.slot_mapping, scale_format=scale_format, implementation=kernel)
    for tile in _parts(step.tiles, step.width):
        _index(q, weights, topk_indices, topk, cache, step, tile, kernel)
    indexed = max((tile.first_token + tile.runs * tile.tokens for tile in step.tiles), default=0)
    topk_indices[indexed:tokens].fill_(-1)  # padding


def _index(
    q: torch.Tensor,
    weights: torch.Tensor,
    topk_indices: torch.Tensor,
    topk: int,
    cache: torch.Tensor,
    step: IndexerStep,
    tile: Tile,
    kernel: str | None,
) -> None:
    begin, end = tile.first_token, tile.first_token + tile.runs * tile.tokens
    first = tile.first_request
    table = step.block_table[first : first + (1 if tile.one_request else tile.runs)]
    lengths = step.lengths[begin:end]
    logits = index_logits_paged(
        q[begin:end].unflatten(0, (tile.runs, tile.tokens)),
        cache,
        weights[begin:end],
        lengths.view(tile.runs, tile.tokens),
        table.expand(tile.runs, -1) if tile.one_request else table,
        step.width,
        clean=False,
        implementation=kernel,
    )
    index_topk(logits, lengths, topk, out=topk_indices[begin:end], implementation=kernel)


def _parts(tiles: list[Tile], width: int) -> list[Tile]:
    """The tiles, cut so that no call's logits take more than LOGITS_BYTES."""
    parts = []
    for tile in tiles:
        most = max(1, LOGITS_BYTES // (4 * width * tile.tokens))
        for done in range(0, tile.runs, most):
            parts.append(
                tile._replace(
                    first_token=tile.first_token + done * tile.tokens,
                    first_request=tile.first_request + (0 if tile.one_request else done),
                    runs=min(most, tile.runs - done),
                )
            )
    return parts


def _implementation(q: torch.Tensor) -> str | None:
    if q.device.type != "cpu":
        return None
    return "triton" if interpreter.interpreting() and q.dtype != torch.float32 else "reference"


def _fake(
    q: torch.Tensor,
    k: torch.Tensor,
    weights: torch.Tensor,
    topk_indices: torch.Tensor,
    topk: int,
    scale_format: str,
    layer: str,
) -> None:
    return None


def define() -> None:
    """Makes the operator known, once a process."""
    if hasattr(torch.ops.vllm, OPERATOR):
        return
    schema = torch.library.infer_schema(_run, mutates_args=["topk_indices"])
    _library.define(OPERATOR + schema)
    _library.impl(OPERATOR, _breaking_capture(_run), dispatch_key="CompositeExplicitAutograd")
    _library._register_fake(OPERATOR, _fake)


def _breaking_capture(run: Callable[..., None]) -> Callable[..., None]:
    """Where vLLM captures without compiling (breakable CUDA graphs, its default for DSA models from 0.30.0 on), an
    operator that reads the step's metadata must end the captured piece and run for itself, as vLLM's own does."""
    try:
        from vllm.compilation.breakable_cudagraph import eager_break_during_capture
    except ImportError:  # 0.16.0 has no such graphs
        return run
    return eager_break_during_capture(run)
