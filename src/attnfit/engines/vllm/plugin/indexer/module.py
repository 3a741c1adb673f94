"""vLLM's Indexer with our step: its weights and their loading stay, its arithmetic after the projections is ours."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.models.deepseek_v2 import DeepseekV32IndexerCache
from vllm.model_executor.models.deepseek_v2 import Indexer as TheirIndexer
from vllm.platforms import current_platform

from attnfit.engines.vllm.plugin.indexer.steps import IndexerBackend


class IndexerCache(DeepseekV32IndexerCache):
    """The cache of keys: vLLM's e4m3 blocks on a GPU; on a CPU the keys as they are, in the model's dtype."""

    def __init__(self, head_dim: int, dtype: torch.dtype, prefix: str, cache_config: Any) -> None:
        if current_platform.is_cpu():
            from vllm.config import get_current_vllm_config

            dtype = get_current_vllm_config().model_config.dtype
            head_dim -= 4 * (head_dim // 132)  # four bytes of scale for each 128 codes
        super().__init__(head_dim=head_dim, dtype=dtype, prefix=prefix, cache_config=cache_config)

    def get_attn_backend(self) -> type[IndexerBackend]:
        return IndexerBackend


class Indexer(TheirIndexer):
    def __init__(self, vllm_config: Any, *rest: Any, **named: Any) -> None:
        parallel = vllm_config.parallel_config
        for size in ("decode_context_parallel_size", "prefill_context_parallel_size"):
            if getattr(parallel, size, 1) > 1:
                raise NotImplementedError(f"attnfit's indexer does not serve {size} > 1")
        super().__init__(vllm_config, *rest, **named)

    def forward(
        self, hidden_states: torch.Tensor, qr: torch.Tensor, positions: torch.Tensor, rotary_emb: Any
    ) -> torch.Tensor:
        """hidden_states [T, hidden], qr [T, q_lora_rank], positions [T] -> the top-k buffer, int32 [tokens, width].

        weights[t, h] = (weights_proj x_t)[h] * head_dim ** -0.5 * heads ** -0.5, in fp32 (DeepSeek-V3.2, equation 1).
        """
        q = self.wq_b(qr)[0].view(-1, self.n_head, self.head_dim)
        if hasattr(self, "wk_weights_proj"):
            k, weights = self.wk_weights_proj(hidden_states)[0].split([self.head_dim, self.n_head], dim=-1)
        else:  # 0.16.0
            k, weights = self.wk(hidden_states)[0], self.weights_proj(hidden_states)[0]
        k = self.k_norm(k)
        turned, kept = [self.rope_dim, self.head_dim - self.rope_dim], q.shape[0]
        q_pe, q_rest = q.split(turned, dim=-1)
        k_pe, k_rest = k.split(turned, dim=-1)
        q_pe, k_pe = rotary_emb(positions, q_pe, k_pe.unsqueeze(1))
        q = torch.cat([q_pe.reshape(kept, self.n_head, self.rope_dim), q_rest], dim=-1)
        k = torch.cat([k_pe.reshape(kept, self.rope_dim), k_rest], dim=-1).to(q.dtype)
        scale = self.softmax_scale * self.n_head**-0.5
        return self.indexer_op(hidden_states, q, k, weights.to(torch.float32) * scale)
