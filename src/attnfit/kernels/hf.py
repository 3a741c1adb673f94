"""DSA models of transformers (GlmMoeDsa, DeepseekV32) with our sparse MLA in place of their attention.

    model = AutoModelForCausalLM.from_pretrained(...)
    use_sparse_mla(model)

Their attention expands the latents into keys and values of every head and masks what the indexer did not choose. With
W_UK absorbed into the query and W_UV applied to the result, the latents serve as they are: `sparse_mla` reads just the
rows that were chosen. The indexer, the cache and everything else stay theirs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from attnfit.kernels.mla import sparse_mla

NAME = "attnfit"  # of the attention implementation, in transformers' registry


def use_sparse_mla(model: Any, *, implementation: str | None = None) -> None:
    """Switch the attention of a transformers DSA model, in place; `model.set_attn_implementation` alone is not enough.

    implementation: as in `sparse_mla`. The model's dtype must be one that it takes: any float on CPU tensors (float64
    reference), float16 or bfloat16 for the kernels. Raises TypeError for a model without DSA layers.
    """
    layers = [module for module in model.modules() if hasattr(module, "expand_kv") and hasattr(module, "kv_b_proj")]
    if not layers:
        raise TypeError(f"{type(model).__name__} has no DSA attention layer: use a GlmMoeDsa or DeepseekV32 model")
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, eager_mask)  # additive: the indexer and `_attention` read it
    for layer in layers:
        layer.expand_kv = _latents  # what was expanded here arrives in `_attention` as the key, compressed
        layer.sparse_mla = partial(sparse_mla, implementation=implementation)
    model.set_attn_implementation(NAME)


def _latents(k_pass: torch.Tensor, k_rot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cached latents [B, 1, L, d_v] and rotary parts [B, 1, L, d_r] -> rows [B, 1, L, d_v + d_r]: key and value."""
    rows = torch.cat([k_pass, k_rot], dim=-1)
    return rows, rows


def _attention(
    layer: Any,
    query: torch.Tensor,  # [B, H, S, d_nope + d_r]
    key: torch.Tensor,  # the rows that `_latents` made, [B, 1, L, d_v + d_r]
    value: torch.Tensor,
    attention_mask: torch.Tensor,  # additive [B, 1, S, L]
    *,
    scaling: float,
    indices: torch.Tensor,  # of the chosen positions, int32 [B, S, K]
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    """-> [B, S, H, d_value]. Sources: absorption as in DeepSeek-V2 (arXiv 2405.04434), section 2.1.2."""
    batch, heads, steps, _ = query.shape
    length, d_v = key.shape[2], layer.kv_lora_rank
    up_k, up_v = layer.kv_b_proj.weight.view(heads, -1, d_v).split([layer.qk_nope_head_dim, layer.v_head_dim], dim=1)
    q_pass, q_rot = query.split([layer.qk_nope_head_dim, layer.qk_rope_head_dim], dim=-1)
    q = torch.cat([torch.einsum("bhsn,hnd->bshd", q_pass, up_k), q_rot.transpose(1, 2)], dim=-1)

    # Early queries see fewer positions than the indexer returns: the rest are masked ones, which no row may stand for.
    seen = attention_mask[:, 0].gather(-1, indices.long()) >= 0
    first = torch.arange(batch, device=key.device, dtype=torch.int32).view(-1, 1, 1) * length  # row of a sequence
    rows = torch.where(seen, indices + first, -1).to(torch.int32)

    out, _ = layer.sparse_mla(q.flatten(0, 1), key.flatten(0, 2), rows.flatten(0, 1), scaling, d_v=d_v)
    return torch.einsum("bshd,hvd->bshv", out.view(batch, steps, heads, d_v), up_v), None
