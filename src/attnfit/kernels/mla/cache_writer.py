"""Writing latents into their cache: packed e4m3 rows made by integer arithmetic, so that it compiles anywhere."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from attnfit.kernels import checks, interpreter, scales
from attnfit.kernels.e4m3 import encode_e4m3, encode_e4m3_reference
from attnfit.kernels.mla.rows import PACKED_D_R, PACKED_D_V, PACKED_GROUP, PACKED_WIDTH, is_packed
from attnfit.kernels.scales import scale_for, scale_reference

# The magnitude that a group is taken to have at least. For fp32 scales it makes the smallest normal number; for powers
# of two 2^-13, the first above 1e-4.
LEAST = {"fp32": 448 * 2.0**-126, "ue8m0": 448 * 2.0**-13}


@triton.jit
def write_latent_cache_kernel(
    LATENT,  # [T, D_V], float
    ROPE,  # [T, D_R], float; unused if D_R is 0
    CACHE,  # rows of values, or of bytes
    SCALES,  # PACKED: the same memory as fp32
    TURNED,  # PACKED: the same memory as bfloat16
    SLOTS,  # int [T]
    stride_lt,
    stride_rt,
    block_size,
    stride_block,  # of CACHE, in its elements
    stride_row,
    D_V: tl.constexpr,
    D_R: tl.constexpr,
    BLOCK_R: tl.constexpr,
    GROUP: tl.constexpr,
    PACKED: tl.constexpr,
    POWER_OF_TWO: tl.constexpr,
    LEAST: tl.constexpr,
):
    """Program: one token."""
    GROUPS: tl.constexpr = D_V // GROUP
    t = tl.program_id(0).to(tl.int64)
    slot = tl.load(SLOTS + t).to(tl.int64)
    if slot >= 0:
        base = (slot // block_size) * stride_block + (slot % block_size) * stride_row
        group = tl.arange(0, GROUPS)
        column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        value = tl.load(LATENT + t * stride_lt + column)
        if PACKED:
            value = value.to(tl.float32)
            scale = scale_for(value, LEAST, POWER_OF_TWO)
            code = encode_e4m3(tl.div_rn(value, tl.broadcast_to(scale[:, None], [GROUPS, GROUP])))
            tl.store(CACHE + base + column, code)
            tl.store(SCALES + base // 4 + D_V // 4 + group, scale)
        else:
            tl.store(CACHE + base + column, value.to(CACHE.dtype.element_ty))
        if D_R > 0:
            rotary = tl.arange(0, BLOCK_R)
            turned = tl.load(ROPE + t * stride_rt + rotary, mask=rotary < D_R, other=0.0)
            there = TURNED + base // 2 + (D_V // 2 + 2 * GROUPS) if PACKED else CACHE + base + D_V
            tl.store(there + rotary, turned.to(there.dtype.element_ty), mask=rotary < D_R)


def write_latent_cache(
    latent: torch.Tensor,
    rope: torch.Tensor | None,
    cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    scale_format: str = "fp32",
    implementation: str | None = None,
) -> None:
    """Writes the latents of new tokens into a cache that `sparse_mla` reads, packed if the cache is one-byte.

    latent        [T, d_v] float16, bfloat16 or float32: the normalised latent; d_v a multiple of 128 with a power of
                  two of them, 512 for packed rows.
    rope          [T, d_r] likewise: the rotary part; None for a rope-free model. Packed rows have 64.
    cache         [R, width] or [blocks, block_size, width] as in `sparse_mla`: native rows of d_v + d_r values of a
                  float dtype, or packed fp8_ds_mla rows of 656 one-byte elements.
    slot_mapping  int64 or int32 [at most T]: the row of each token, block * block_size + offset; negative ones are
                  skipped, and so are tokens beyond the slots (padding).
    scale_format  of packed rows, one scale for each 128 values: "fp32", amax / 448 as it is, or "ue8m0", rounded up
                  to a power of two. Readers take both.
    implementation  "triton" or "reference"; by default the reference for CPU tensors.

    Codes are e4m3(value / scale), to the nearest, ties to even, saturating. The rotary part is rounded to bfloat16,
    whatever it comes in; values beyond a native cache's range become infinite.
    Raises ValueError (shapes, layout, devices), TypeError (dtypes).
    """
    checks.shaped("latent", latent, None, None)
    checks.floats("latent", latent)
    checks.shaped("slot_mapping", slot_mapping, None)
    checks.integers("slot_mapping", slot_mapping, torch.int64, torch.int32)
    tokens, d_v = latent.shape
    d_r = 0 if rope is None else rope.shape[-1]
    if rope is not None:
        checks.shaped("rope", rope, tokens, d_r)
        checks.floats("rope", rope)
    if slot_mapping.shape[0] > tokens:
        raise ValueError(f"slot_mapping names {slot_mapping.shape[0]} slots; there are {tokens} tokens")
    power_of_two = scales.is_power_of_two(scale_format)
    packed = checks.is_codes(cache)
    _check_rows(cache, d_v, d_r)
    checks.on_one_device(latent=latent, rope=rope, cache=cache, slot_mapping=slot_mapping)
    if checks.choose(implementation, latent.device) == "reference":
        _write_reference(latent, rope, cache, slot_mapping, LEAST[scale_format], power_of_two)
        return
    for values in (latent, rope, cache):
        if values is not None and not (values is cache and packed):
            interpreter.require_bf16(values.dtype)
    if slot_mapping.shape[0] == 0:
        return
    rows = cache.view(torch.uint8) if packed else cache
    write_latent_cache_kernel[(slot_mapping.shape[0],)](
        latent,
        latent if rope is None else rope,
        rows,
        rows.view(torch.float32) if packed else rows,
        rows.view(torch.bfloat16) if packed else rows,
        slot_mapping,
        latent.stride(0),
        0 if rope is None else rope.stride(0),
        1 if cache.dim() == 2 else cache.shape[1],
        cache.stride(0),
        0 if cache.dim() == 2 else cache.stride(1),
        D_V=d_v,
        D_R=d_r,
        BLOCK_R=triton.next_power_of_2(max(d_r, 1)),
        GROUP=PACKED_GROUP,
        PACKED=packed,
        POWER_OF_TWO=power_of_two,
        LEAST=LEAST[scale_format],
        num_warps=4,
    )


def _check_rows(cache: torch.Tensor, d_v: int, d_r: int) -> None:
    groups = d_v // PACKED_GROUP
    if d_v % PACKED_GROUP or groups < 1 or groups & (groups - 1):
        raise ValueError(f"d_v is {PACKED_GROUP} times a power of two, not {d_v}")
    if is_packed(cache) and (d_v, d_r) != (PACKED_D_V, PACKED_D_R):
        raise ValueError(f"packed rows hold {PACKED_D_V} latent and {PACKED_D_R} rotary values, not {d_v} and {d_r}")
    width = PACKED_WIDTH if is_packed(cache) else d_v + d_r
    if cache.dim() not in (2, 3) or cache.shape[-1] != width or cache.stride(-1) != 1:
        raise ValueError(
            f"the cache is {list(cache.shape)} with strides {cache.stride()}; its rows must be {width} wide"
        )
    if is_packed(cache):
        if any(stride % 4 for stride in cache.stride()[:-1]) or cache.storage_offset() % 4:
            raise ValueError("packed rows must begin at a multiple of four bytes: their scales are fp32")
    else:
        checks.floats("cache", cache)


def _write_reference(
    latent: torch.Tensor,
    rope: torch.Tensor | None,
    cache: torch.Tensor,
    slots: torch.Tensor,
    least: float,
    power_of_two: bool,
) -> None:
    """Row by row as the format says it, in torch."""
    for t, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        row = cache[slot] if cache.dim() == 2 else cache[slot // cache.shape[1], slot % cache.shape[1]]
        if not is_packed(cache):
            row[: latent.shape[1]] = latent[t]
            if rope is not None:
                row[latent.shape[1] :] = rope[t]
            continue
        assert rope is not None
        groups = latent[t].to(torch.float32).unflatten(0, (-1, PACKED_GROUP))
        scale = scale_reference(groups, least, power_of_two)
        codes = encode_e4m3_reference(groups / scale.unsqueeze(-1)).flatten()
        turned = rope[t].to(torch.bfloat16).contiguous().view(torch.uint8)
        row.view(torch.uint8).copy_(torch.cat([codes, scale.view(torch.uint8), turned]))
