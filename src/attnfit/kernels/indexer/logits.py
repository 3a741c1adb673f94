"""Index logits: `index_logits` over a run of keys (prefill), `index_logits_paged` over a paged cache (decode)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from attnfit.kernels import checks
from attnfit.kernels.indexer.cache import open_cache
from attnfit.kernels.indexer.configs import MAX_TOKENS_PER_PROGRAM, logits_config, num_sms_of, tokens_per_program
from attnfit.kernels.indexer.logits_kernels import index_logits_kernel, index_logits_paged_kernel
from attnfit.kernels.indexer.reference import index_logits_paged_reference, index_logits_reference

ROW_ALIGNMENT = 256  # columns; rows begin on 1024 bytes, which is what top-k kernels of others ask for at most
DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def index_logits(
    q: torch.Tensor,
    k: torch.Tensor,
    weights: torch.Tensor,
    start: torch.Tensor,
    end: torch.Tensor,
    *,
    k_scale: torch.Tensor | None = None,
    compressed: bool = True,
    width: int | None = None,
    clean: bool = True,
    out: torch.Tensor | None = None,
    implementation: str | None = None,
) -> torch.Tensor:
    """The indexer's logit of every token for every key of its range: prefill.

    logit[t, j] = k_scale[j] * sum_h weights[t, h] * relu(<q[t, h], k[j]>)   (DeepSeek-V3.2, equation 1; the softmax
    scale, the number of heads and q's own scale are the caller's, in `weights`)

    q: [T, H, D], float16, bfloat16, or e4m3 codes (uint8 or float8_e4m3fn).
    k: [S, D], of q's 16-bit dtype or e4m3 codes. With codes on one side only, they are read in the other's dtype.
    k_scale: [S] or [S, 1], fp32: one factor a key; none is 1.
    weights: [T, H], fp32 (16-bit is read as fp32).
    start, end: [T], int32: token t sees the rows [start, end) of k. An empty range is allowed; ends are cut to [0, S].
    compressed: column c of row t is key start[t] + c; otherwise column j is key j.
    width: columns of the answer; default S. Compressed, the largest end - start is enough; columns beyond are dropped.
    clean: columns outside a row's range become -inf; otherwise they are left as they are, undefined.
    out: fp32 [T, width] to write into. Rows of a new one begin on 1024 bytes: its row stride may exceed `width`.
    implementation: "triton" or "reference"; by default the reference (float64, any float dtype) for CPU tensors.

    Returns fp32 [T, width]. A NaN in a token's q or in a key gives NaN; the two NaN codes of e4m3 are not supported.
    Nothing is read back to the host: safe in a CUDA graph. Raises ValueError (shapes, devices), TypeError (dtypes).
    """
    checks.shaped("q", q, None, None, None)
    tokens, heads, dim = q.shape
    checks.shaped("k", k, None, dim)
    checks.shaped("weights", weights, tokens, heads)
    checks.shaped("start", start, tokens)
    checks.shaped("end", end, tokens)
    checks.integers("start", start)
    checks.integers("end", end)
    checks.floats("weights", weights)
    if k_scale is not None:
        k_scale = k_scale.squeeze(-1) if k_scale.dim() == 2 else k_scale
        checks.shaped("k_scale", k_scale, k.shape[0])
        checks.floats("k_scale", k_scale, torch.float32)
    checks.on_one_device(q=q, k=k, weights=weights, start=start, end=end, k_scale=k_scale, out=out)
    codes = checks.is_codes(q), checks.is_codes(k)
    if not compressed and width not in (None, k.shape[0]):
        raise ValueError("width is for compressed columns; otherwise there is one column a key")
    width = k.shape[0] if width is None else width
    out = _rows(tokens, width, out, q.device)
    if checks.choose(implementation, q.device) == "reference":
        index_logits_reference(q, k, weights, start, end, k_scale, compressed, out)
        return out

    dtype = checks.dot_dtype(q, k)
    block_h, block_d = _blocks(heads, dim)
    config = logits_config(block_h)
    blocks = triton.cdiv(max(k.shape[0], width if clean else 0), config.block_n)
    if tokens == 0 or blocks == 0:
        return out
    share = tokens_per_program(tokens, blocks, num_sms_of(q.device))
    index_logits_kernel[(blocks, triton.cdiv(tokens, share))](
        q.view(torch.uint8) if codes[0] else q,
        k.view(torch.uint8) if codes[1] else k,
        weights if k_scale is None else k_scale,
        weights,
        start,
        end,
        out,
        tokens,
        heads,
        k.shape[0],
        width,
        share,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        weights.stride(0),
        weights.stride(1),
        out.stride(0),
        D=dim,
        BLOCK_D=block_d,
        BLOCK_H=block_h,
        BLOCK_N=config.block_n,
        MAX_TOKENS=MAX_TOKENS_PER_PROGRAM,
        DTYPE=DTYPES[dtype],
        HAS_SCALE=k_scale is not None,
        COMPRESSED=compressed,
        CLEAN=clean,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out


def index_logits_paged(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    max_len: int,
    *,
    clean: bool = True,
    out: torch.Tensor | None = None,
    implementation: str | None = None,
) -> torch.Tensor:
    """The indexer's logits of each request's newest tokens over its keys in a paged cache: decode.

    The formula of `index_logits`, with each key's scale beside its codes.

    q: [B, next_n, H, D], float16, bfloat16, or e4m3 codes: the next_n newest tokens of each request.
    k_cache: one-byte [blocks, block_size, D + 4] of planar blocks (`cache.py`; [blocks, block_size, 1, D + 4] too), or
        16-bit [blocks, block_size, D] of q's dtype. The block stride may exceed a block.
    weights: [B * next_n, H], fp32 (16-bit is read as fp32).
    context_lens: int32, keys that are seen: [B, next_n] for each token, or [B] for the last one, which sees one more
        than the token before it, and so on. [B, 1] is read as [B].
    block_table: int32 [B, max_blocks]: physical blocks in order; a negative one is none, and its keys give -inf.
    max_len: columns of the answer; keys beyond are dropped.
    clean, out, implementation: as in `index_logits`.

    Returns fp32 [B * next_n, max_len]; column c is the request's key c. Graph-safe; errors as in `index_logits`.
    """
    checks.shaped("q", q, None, None, None, None)
    batch, next_n, heads, dim = q.shape
    checks.shaped("weights", weights, batch * next_n, heads)
    checks.floats("weights", weights)
    checks.shaped("block_table", block_table, batch, None)
    checks.integers("block_table", block_table)
    checks.integers("context_lens", context_lens)
    if context_lens.shape not in ((batch,), (batch, 1), (batch, next_n)):
        raise ValueError(f"context_lens is {list(context_lens.shape)}, not [{batch}] or [{batch}, {next_n}]")
    shared = context_lens.dim() == 1 or context_lens.shape[1] != next_n
    context_lens = context_lens.reshape(batch) if shared else context_lens
    checks.on_one_device(
        q=q, k_cache=k_cache, weights=weights, context_lens=context_lens, block_table=block_table, out=out
    )
    codes = checks.is_codes(q)
    checks.is_codes(k_cache)
    cache = open_cache(k_cache, dim)
    out = _rows(batch * next_n, max_len, out, q.device)
    if checks.choose(implementation, q.device) == "reference":
        back = torch.arange(1 - next_n, 1, device=q.device)
        lengths = context_lens.view(batch, 1) + back if shared else context_lens
        index_logits_paged_reference(q, cache, weights, lengths, block_table, out)
        return out

    dtype = checks.dot_dtype(q, cache.keys)
    block_h, block_d = _blocks(heads, dim)
    config = logits_config(block_h)
    blocks = triton.cdiv(max_len, config.block_n)
    if batch * next_n == 0 or blocks == 0:
        return out
    index_logits_paged_kernel[(blocks, batch)](
        q.view(torch.uint8) if codes else q,
        cache.keys,
        weights if cache.scales is None else cache.scales,
        weights,
        context_lens,
        block_table,
        out,
        next_n,
        heads,
        block_table.shape[1],
        max_len,
        q.stride(0),
        q.stride(1),
        q.stride(2),
        cache.keys.stride(0),
        cache.keys.stride(1),
        0 if cache.scales is None else cache.scales.stride(0),
        weights.stride(0),
        weights.stride(1),
        context_lens.stride(0),
        0 if shared else context_lens.stride(1),
        block_table.stride(0),
        out.stride(0),
        D=dim,
        BLOCK_D=block_d,
        BLOCK_H=block_h,
        BLOCK_N=config.block_n,
        BLOCK_SIZE=cache.block_size,
        DTYPE=DTYPES[dtype],
        HAS_SCALE=cache.scales is not None,
        SHARED_LENGTH=shared,
        CLEAN=clean,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out


def _blocks(heads: int, dim: int) -> tuple[int, int]:
    """Heads and head dimension padded to what a tensor core takes. Raises ValueError where the tile gets too large."""
    block_h, block_d = max(16, triton.next_power_of_2(heads)), max(16, triton.next_power_of_2(dim))
    if block_h > 128 or block_d > 128:
        raise ValueError(f"{heads} heads of {dim} are too large for the kernel: up to 128 heads of up to 128")
    return block_h, block_d


def _rows(rows: int, width: int, out: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    """fp32 [rows, width] to write into. Raises ValueError or TypeError if `out` is not that."""
    if width < 0:
        raise ValueError(f"an answer cannot have {width} columns")
    if out is None:
        stride = triton.cdiv(width, ROW_ALIGNMENT) * ROW_ALIGNMENT
        return torch.empty(rows, stride, dtype=torch.float32, device=device)[:, :width]
    checks.shaped("out", out, rows, width)
    checks.floats("out", out, torch.float32)
    return out
