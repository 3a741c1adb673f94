"""Sparse MLA in float64, written to be read: the fast kernels are compared with it, and CPU tensors run through it."""

from __future__ import annotations

import torch

from attnfit.kernels.mla.rows import read_rows


def sparse_mla_reference(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    scale: float,
    *,
    d_v: int = 512,
    valid: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of every query token over its own rows of the latent cache; shapes as in `sparse_mla`.

    For token t and head h, over the rows r that indices[t] names (-1 names none):
        s_r = scale * <q[t, h], kv[r]>,  out = sum_r softmax(s)_r * kv[r][:d_v],  lse = log sum_r exp(s_r)
    Without a row: out 0, lse -inf. Everything is float64 until the end; out has q's dtype, lse is float32.
    """
    out = torch.zeros(*q.shape[:2], d_v, dtype=torch.float64, device=q.device)
    lse = torch.full(q.shape[:2], float("-inf"), dtype=torch.float64, device=q.device)
    for t in range(q.shape[0]):
        named = indices[t] if valid is None else indices[t, : max(0, int(valid[t]))]
        named = named[named >= 0]
        if named.numel() == 0:
            continue
        latent = read_rows(kv, named, d_v)  # [K, d_v + d_r]
        score = scale * (q[t].to(torch.float64) @ latent.T)  # [H, K]
        lse[t] = torch.logsumexp(score, dim=-1)
        out[t] = torch.softmax(score, dim=-1) @ latent[:, :d_v]
    return out.to(q.dtype), lse.to(torch.float32)
