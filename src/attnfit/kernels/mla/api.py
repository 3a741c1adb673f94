"""What users call: checks the arguments, chooses an implementation and how it is launched."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from attnfit.kernels import checks, interpreter
from attnfit.kernels.mla.configs import VIRTUAL_BLOCKS, Config, config_of
from attnfit.kernels.mla.latent import launch_latent
from attnfit.kernels.mla.reference import sparse_mla_reference
from attnfit.kernels.mla.rows import PACKED_D_R, PACKED_D_V, PACKED_WIDTH, is_packed
from attnfit.kernels.mla.virtual_blocks import launch_virtual_blocks
from attnfit.kernels.mla.workspace import carve, splits_of, workspace_bytes

IMPLEMENTATIONS = ("latent", "virtual_blocks", "reference")
MAX_TOPK = 4096
# What the interpreter plays, since a CPU tensor lies on no GPU: an RTX PRO 6000's capability, few multiprocessors.
_PLAYED_CAPABILITY = (12, 0)
_PLAYED_SMS = 8


class Device(NamedTuple):
    """What of a GPU decides how a kernel is launched."""

    capability: tuple[int, int]
    num_sms: int


def device_of(tensor: torch.Tensor) -> Device:
    """The GPU a tensor lies on; for a CPU tensor, the one the interpreter plays."""
    if tensor.is_cuda:
        properties = torch.cuda.get_device_properties(tensor.device)
        return Device((properties.major, properties.minor), properties.multi_processor_count)
    return Device(_PLAYED_CAPABILITY, _PLAYED_SMS)


def sparse_mla(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    scale: float,
    *,
    d_v: int = 512,
    valid: torch.Tensor | None = None,
    implementation: str | None = None,
    workspace: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each query token over the rows of a latent cache that its top-k indices name (MQA, absorbed MLA).

    q         [T, H, d_v + d_r] float16 or bfloat16: per head the absorbed query (q_nope @ W_UK), then its rotary part.
              d_r is 64 or 0. The reference also takes float32.
    kv        [R, width] or [blocks, block_size, width] (blocks may lie further apart than block_size rows): native rows
              of d_v + d_r in q's dtype, or packed fp8_ds_mla rows of 656 one-byte elements (d_v 512, d_r 64).
    indices   int32 [T, K], K <= 4096: rows of `kv` (of a paged cache, block * block_size + offset); -1, anywhere in a
              row of indices, names none.
    scale     softmax scale, usually (d_nope + d_r) ** -0.5 of the model's own head size.
    valid     int32 [T]: only the first valid[t] indices of token t count. Default: all.
    implementation  "latent" (default on a GPU), "virtual_blocks" (baseline, native [R, width] rows only), "reference"
              (float64; default for CPU tensors). A Triton one takes CPU tensors only with TRITON_INTERPRET=1.
    workspace uninitialised memory, at least what sparse_mla_workspace() states; default: allocated here. With it, and
              `out` and `lse`, nothing is allocated by "latent", and the call may be captured in a CUDA graph.

    Returns out [T, H, d_v] in q's dtype and lse float32 [T, H], natural log; for a token without a row 0 and -inf.
    Raises TypeError for dtypes and ValueError for shapes, devices and capabilities that are not served.
    """
    _check(q, kv, indices, valid, d_v)
    if isinstance(scale, torch.Tensor):
        raise TypeError("scale is a number, not a tensor: reading one would wait for the GPU")
    chosen = checks.choose(implementation, q.device, IMPLEMENTATIONS)
    tokens, heads, _ = q.shape
    if out is None:
        out = torch.empty(tokens, heads, d_v, dtype=q.dtype, device=q.device)
    if lse is None:
        lse = torch.empty(tokens, heads, dtype=torch.float32, device=q.device)
    _check_result(out, lse, q, d_v)
    checks.on_one_device(q=q, workspace=workspace, out=out, lse=lse)
    if lse.numel() == 0:
        return out, lse
    if chosen == "reference":
        found, found_lse = sparse_mla_reference(q, kv, indices, scale, d_v=d_v, valid=valid)
        return out.copy_(found), lse.copy_(found_lse)
    if q.dtype == torch.float32:
        raise TypeError('float32 runs through implementation="reference" only; the kernels take float16 and bfloat16')
    interpreter.require_bf16(q.dtype)
    capability, num_sms = device_of(q)
    config = _config(chosen, capability, heads, is_packed(kv))
    splits = splits_of(tokens, triton.cdiv(heads, config.block_h), indices.shape[1], num_sms)
    if chosen == "virtual_blocks":
        if is_packed(kv) or kv.dim() != 2:
            raise ValueError("virtual_blocks reads native rows [R, d_v + d_r] only")
        partials = carve(workspace, q, heads, splits, d_v)
        launch_virtual_blocks(q, kv, indices, scale, out, lse, valid=valid, config=config, partials=partials)
    else:
        split = carve(workspace, q, heads, splits, d_v) if splits > 1 else None
        launch_latent(q, kv, indices, scale, out, lse, valid=valid, config=config, partials=split)
    return out, lse


def sparse_mla_workspace(
    max_tokens: int,
    heads: int,
    topk: int,
    *,
    packed: bool,
    device: Device | torch.device | str,
    d_v: int = 512,
    implementation: str = "latent",
) -> int:
    """Bytes that `sparse_mla` needs at most for calls of up to `max_tokens` tokens on that device.

    Calls of few tokens are split over their keys and keep fp32 partial results, T * H * splits * (d_v + 1) * 4 bytes;
    how far they are split follows from shapes and the device alone. "virtual_blocks" keeps them with one split, too.
    Raises ValueError for an unknown capability or implementation.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation is one of {', '.join(IMPLEMENTATIONS)}, not {implementation!r}")
    if heads < 1 or topk < 1:
        raise ValueError(f"heads and topk are at least 1, not {heads} and {topk}")
    if implementation == "reference":
        return 0
    if not isinstance(device, Device):
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise ValueError("no CUDA device here; give a Device(capability, num_sms)")
        device = device_of(torch.empty(0, device=device))
    head_blocks = triton.cdiv(heads, _config(implementation, device.capability, heads, packed).block_h)
    split = workspace_bytes(max_tokens, heads, head_blocks, topk, d_v, device.num_sms)
    return max(split, max_tokens * heads * (d_v + 1) * 4) if implementation == "virtual_blocks" else split


def _config(implementation: str, capability: tuple[int, int], heads: int, packed: bool) -> Config:
    config = config_of(capability, heads, packed)  # raises for a capability that is not served
    return VIRTUAL_BLOCKS if implementation == "virtual_blocks" else config


def _check(q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, valid: torch.Tensor | None, d_v: int) -> None:
    if q.dim() != 3 or kv.dim() not in (2, 3) or indices.dim() != 2:
        raise ValueError(
            "q must be [T, H, d_v + d_r], kv [R, width] or [blocks, block_size, width], indices [T, K]; "
            f"got {list(q.shape)}, {list(kv.shape)}, {list(indices.shape)}"
        )
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise TypeError(f"q must be float16 or bfloat16, not {q.dtype}")
    width = q.shape[-1]
    if checks.is_codes(kv):
        if (d_v, width - d_v, kv.shape[-1]) != (PACKED_D_V, PACKED_D_R, PACKED_WIDTH):
            raise ValueError(
                f"one-byte rows are fp8_ds_mla: {PACKED_WIDTH} bytes, d_v {PACKED_D_V}, d_r {PACKED_D_R}; "
                f"got {kv.shape[-1]} bytes, d_v {d_v}, d_r {width - d_v}"
            )
        if any(stride % 4 for stride in kv.stride()[:-1]) or kv.storage_offset() % 4:
            raise ValueError("packed rows must begin at a multiple of four bytes: their scales are fp32")
    elif kv.dtype != q.dtype:
        raise TypeError(f"rows of {kv.dtype} do not go with q of {q.dtype}; give both one dtype, or packed rows")
    elif kv.shape[-1] != width:
        raise ValueError(f"rows are {kv.shape[-1]} wide and q {width}")
    if width - d_v not in (0, 64) or d_v not in (64, 128, 256, 512):
        raise ValueError(f"d_v must be 512 (or 64, 128, 256) and d_r 64 or 0; got d_v {d_v}, d_r {width - d_v}")
    if q.stride(-1) != 1 or kv.stride(-1) != 1 or indices.stride(-1) != 1:
        raise ValueError("the last dimension of q, kv and indices must be contiguous")
    if indices.dtype != torch.int32 or (valid is not None and valid.dtype != torch.int32):
        raise TypeError("indices and valid must be int32")
    if indices.shape[0] != q.shape[0] or (valid is not None and list(valid.shape) != [q.shape[0]]):
        raise ValueError(f"q has {q.shape[0]} tokens; indices and valid must have as many")
    if not 0 < indices.shape[1] <= MAX_TOPK:
        raise ValueError(f"between 1 and {MAX_TOPK} indices a token, not {indices.shape[1]}")
    checks.on_one_device(q=q, kv=kv, indices=indices, valid=valid)


def _check_result(out: torch.Tensor, lse: torch.Tensor, q: torch.Tensor, d_v: int) -> None:
    if out.shape != (*q.shape[:2], d_v) or out.dtype != q.dtype or out.stride(-1) != 1:
        raise ValueError(f"out must be {q.dtype} [{q.shape[0]}, {q.shape[1]}, {d_v}] with a contiguous last dimension")
    if lse.shape != q.shape[:2] or lse.dtype != torch.float32:
        raise ValueError(f"lse must be float32 [{q.shape[0]}, {q.shape[1]}]")
