"""Writing the indexer's keys into their cache: e4m3 codes made by integer arithmetic, so that it compiles anywhere."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from attnfit.kernels import checks, interpreter, scales
from attnfit.kernels.e4m3 import encode_e4m3
from attnfit.kernels.indexer.cache import open_cache
from attnfit.kernels.indexer.reference import MIN_AMAX, write_index_cache_reference
from attnfit.kernels.scales import scale_for


@triton.jit(do_not_specialize=["num_tokens"])
def write_index_cache_kernel(
    K,  # [T, D], float
    CACHE,  # bytes of planar blocks, or 16-bit rows
    SCALES,  # QUANTISED: the scales of the first block, fp32
    SLOTS,  # int [T]
    num_tokens,
    stride_kt,
    stride_block,  # of CACHE, in its elements
    stride_row,
    stride_scale,  # between blocks, in fp32 elements
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    QUANTISED: tl.constexpr,
    POWER_OF_TWO: tl.constexpr,
    MIN_AMAX: tl.constexpr,
):
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    column = tl.arange(0, BLOCK_D)
    slot = tl.load(SLOTS + token, mask=token < num_tokens, other=-1).to(tl.int64)
    kept = slot >= 0
    block = slot // BLOCK_SIZE
    row = slot % BLOCK_SIZE
    inside = kept[:, None] & (column < D)[None, :]
    value = tl.load(K + token.to(tl.int64)[:, None] * stride_kt + column[None, :], mask=inside, other=0.0)
    at = CACHE + (block * stride_block + row * stride_row)[:, None] + column[None, :]
    if QUANTISED:
        value = value.to(tl.float32)
        scale = scale_for(value, MIN_AMAX, POWER_OF_TWO)
        tl.store(at, encode_e4m3(tl.div_rn(value, scale[:, None] + tl.zeros_like(value))), mask=inside)
        tl.store(SCALES + block * stride_scale + row, scale, mask=kept)
    else:
        tl.store(at, value.to(CACHE.dtype.element_ty), mask=inside)


def write_index_cache(
    k: torch.Tensor,
    cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    scale_format: str = "ue8m0",
    implementation: str | None = None,
) -> None:
    """Writes keys into an index cache, quantised if the cache is one-byte.

    k: [T, D], float16, bfloat16 or fp32; D a multiple of 4.
    cache: one-byte [blocks, block_size, D + 4] of planar blocks (`cache.py`; [blocks, block_size, 1, D + 4] too), or
        [blocks, block_size, D] of a float dtype, to which keys are cast.
    slot_mapping: int64 or int32 [at most T]: key t goes to row slot % block_size of block slot // block_size; negative
        slots are skipped, and so are keys beyond the slots (padding).
    scale_format: "ue8m0" (powers of two: what DeepSeek-V3.2 was trained with) or "fp32".
    implementation: "triton" or "reference"; by default the reference for CPU tensors.

    scale = max(amax of the key, 1e-4) / 448, for ue8m0 rounded up to a power of two; code = e4m3(k / scale), to the
    nearest, ties to even, saturating; both in fp32. NaN stays NaN and does not count in amax.
    Raises ValueError (shapes, layout, devices), TypeError (dtypes).
    """
    checks.shaped("k", k, None, None)
    checks.floats("k", k)
    checks.shaped("slot_mapping", slot_mapping, None)
    checks.integers("slot_mapping", slot_mapping, torch.int64, torch.int32)
    if slot_mapping.shape[0] > k.shape[0]:
        raise ValueError(f"slot_mapping names {slot_mapping.shape[0]} slots; there are {k.shape[0]} keys")
    power_of_two = scales.is_power_of_two(scale_format)
    checks.on_one_device(k=k, cache=cache, slot_mapping=slot_mapping)
    checks.is_codes(cache)
    opened = open_cache(cache, k.shape[1])
    if checks.choose(implementation, k.device) == "reference":
        write_index_cache_reference(k, opened, slot_mapping, power_of_two)
        return
    if slot_mapping.shape[0] == 0:
        return
    for values in (k, opened.keys):
        interpreter.require_bf16(values.dtype)
    block_t = 4
    write_index_cache_kernel[(triton.cdiv(slot_mapping.shape[0], block_t),)](
        k,
        opened.keys,
        opened.keys if opened.scales is None else opened.scales,
        slot_mapping,
        slot_mapping.shape[0],
        k.stride(0),
        opened.keys.stride(0),
        opened.keys.stride(1),
        0 if opened.scales is None else opened.scales.stride(0),
        D=k.shape[1],
        BLOCK_D=triton.next_power_of_2(k.shape[1]),
        BLOCK_T=block_t,
        BLOCK_SIZE=opened.block_size,
        QUANTISED=opened.scales is not None,
        POWER_OF_TWO=power_of_two,
        MIN_AMAX=MIN_AMAX,
        num_warps=4,
    )
