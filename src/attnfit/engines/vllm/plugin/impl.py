"""The implementation: top-k positions to cache rows, then our sparse MLA kernel, for prefill and decode alike."""

from __future__ import annotations

from typing import Any

import torch

from attnfit.engines.vllm.plugin import indexers, releases, settings, workspace
from attnfit.engines.vllm.plugin.rows import cache_rows
from attnfit.engines.vllm.plugin.serves import MAX_TOPK, NAME, dcp_refusal
from attnfit.kernels import interpreter, sparse_mla, write_latent_cache


class TritonMLASparseImpl(releases.base("MLAImpl")):  # type: ignore[misc]
    """One layer's attention. MQA over latents: vLLM absorbs W_UK into the query and applies W_UV to the result."""

    is_sparse = True
    supports_dense_mha_prefill = False
    masked_mha_available = False
    can_return_lse_for_decode = True
    lse_base_on_e = True
    supports_pcp = False
    supports_dcp = True
    supports_mtp_with_cp_non_trivial_interleave_size = True
    supports_quant_query_input = False

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        *,
        kv_lora_rank: int,
        qk_rope_head_dim: int,
        indexer: Any = None,
        topk_indices_buffer: torch.Tensor | None = None,
        index_group_builder: Any = None,
        **mla_args: Any,
    ) -> None:
        unserved = {
            "ALiBi": alibi_slopes,
            "a sliding window": sliding_window,
            "a soft cap": logits_soft_cap,
            "KV sharing between layers": kv_sharing_target_layer_name,
            "HiSparse": _hisparse(),
        }
        for what, asked in unserved.items():
            if asked:
                raise NotImplementedError(f"{NAME} does not serve {what}")
        if kv_cache_dtype.startswith("fp8") and kv_cache_dtype != "fp8_ds_mla":
            raise NotImplementedError(f"{NAME} reads float16, bfloat16 and fp8_ds_mla caches, not {kv_cache_dtype}")
        if indexer is None and topk_indices_buffer is None:
            raise NotImplementedError(f"{NAME} needs the indexer's top-k buffer; this layer has neither")
        if why := dcp_refusal(releases.running(), self.dcp_world_size):
            raise NotImplementedError(why)
        _refuse_without_keys()
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_lora_rank = kv_lora_rank
        self.qk_rope_head_dim = qk_rope_head_dim
        self._indexer = indexer
        self._topk_indices_buffer = topk_indices_buffer
        heads = num_heads * max(self.dcp_world_size, 1)  # DCP gathers the heads of its group
        self._workspace = workspace.reserve(heads, kv_lora_rank, packed=kv_cache_dtype == "fp8_ds_mla")
        workspace.announce(head_size, kv_cache_dtype)

    @property
    def topk_indices_buffer(self) -> torch.Tensor:
        """int32 [tokens, at least index_topk]. Looked up anew each time: a draft model's indexers are pointed at the
        target's buffer after its layers are made. Layers that share another's top-k have the buffer alone."""
        found = self._topk_indices_buffer if self._indexer is None else self._indexer.topk_indices_buffer
        if found is None:
            raise RuntimeError(f"{NAME}: the indexer has no top-k buffer")
        return found

    @topk_indices_buffer.setter
    def topk_indices_buffer(self, buffer: torch.Tensor) -> None:
        self._indexer, self._topk_indices_buffer = None, buffer

    def record_logical_topk_ready(self) -> None:
        """Called when the indexer is done; rows are looked up on the same stream, so there is nothing to record."""

    def reserve_workspace(self) -> None:
        """Called in the profiling run (0.33.0), by every micro-batch, each of which has a workspace of its own: the one
        that constructs the layers has reserved only its own."""
        workspace.get(self._workspace)

    def do_kv_cache_update(
        self,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
        skip_scale: bool = False,
    ) -> None:
        """Writes the step's latents [T, d_v] and rotary parts [T, 1, d_r]. Ours, not vLLM's writer: in a packed cache
        that one copies the rotary part's 16 bits as they are, float16 too, where rows have bfloat16."""
        if kv_cache.numel() == 0:
            return
        rope = None if self.qk_rope_head_dim == 0 else k_pe.reshape(-1, self.qk_rope_head_dim)
        slots = slot_mapping.flatten()[: kv_c_normed.shape[0]]
        write_latent_cache(kv_c_normed, rope, kv_cache, slots, implementation=_on_cpu(kv_c_normed, "triton"))

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: Any,
        layer: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """q [T, H, d_v + d_r], or its two parts; -> out [T, H, d_v] in q's dtype, lse fp32 [T, H], natural log."""
        if isinstance(q, tuple):
            q = q[0] if self.qk_rope_head_dim == 0 else torch.cat(q, dim=-1)
        tokens = q.shape[0]
        positions = self.topk_indices_buffer[:tokens, :MAX_TOPK]
        rows, counts = cache_rows(
            positions,
            attn_metadata.req_id_per_token[:tokens],
            attn_metadata.block_table,
            attn_metadata.block_size,
            dcp_size=max(self.dcp_world_size, 1),
            dcp_rank=self.dcp_rank if self.dcp_world_size > 1 else 0,
            interleave=attn_metadata.cp_kv_cache_interleave_size,
        )
        return sparse_mla(
            q,
            kv_c_and_k_pe_cache,
            rows,
            self.scale,
            d_v=self.kv_lora_rank,
            valid=counts,
            implementation=_on_cpu(q, "latent"),
            workspace=workspace.get(self._workspace),
        )


def _hisparse() -> Any:
    """vLLM's configuration of it (0.30.0 on), which keeps most of a layer's cache on the host; None where it is off."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    return None if config is None else getattr(config.attention_config, "hisparse_config", None)


def _refuse_without_keys() -> None:
    """Raises NotImplementedError where no indexer runs: now, not at the first batch, when the weights are loaded."""
    from vllm.config import get_current_vllm_config_or_none
    from vllm.platforms import current_platform

    config = get_current_vllm_config_or_none()
    if config is None or config.model_config is None or not current_platform.is_cuda():
        return
    gpu = current_platform.get_device_capability()
    architecture = (getattr(config.model_config.hf_config, "architectures", None) or [""])[0]
    why = indexers.missing(
        releases.running(),
        (gpu.major, gpu.minor),
        architecture,
        dtype=str(config.model_config.dtype).removeprefix("torch."),
        own=settings.is_on(settings.INDEXER),
        variable=settings.INDEXER,
    )
    if why:
        raise NotImplementedError(why)


def _on_cpu(values: torch.Tensor, kernel: str) -> str | None:
    """On CPU tensors the reference, unless Triton's interpreter is on, and can: it has no float32 kernel."""
    if values.device.type != "cpu":
        return None
    return kernel if interpreter.interpreting() and values.dtype != torch.float32 else "reference"
