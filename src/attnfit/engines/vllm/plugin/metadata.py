"""What a step's layers share: which request each token is of, and the block table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from attnfit.engines.vllm.plugin import releases


@dataclass
class TritonMLASparseMetadata(releases.base("AttentionMetadata")):  # type: ignore[misc]
    """All tokens are MQA tokens, prefill too: to vLLM's MLA layer the whole batch is decodes."""

    num_actual_tokens: int  # padded in CUDA graphs
    num_reqs: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: torch.Tensor  # int32 [requests + 1]
    seq_lens: torch.Tensor  # int32 [requests]
    slot_mapping: torch.Tensor  # int64 [T]
    block_table: torch.Tensor  # int32 [requests, blocks]
    req_id_per_token: torch.Tensor  # int32 [T], a view of one buffer for all steps
    block_size: int
    topk_tokens: int
    num_decodes: int
    num_decode_tokens: int
    num_prefills: int = 0
    prefill: None = None  # no dense MHA: what vLLM looks for in `prefill` it must not find
    decode: None = None
    prefill_max_seq_len: int = 0
    cp_kv_cache_interleave_size: int = 1


class TritonMLASparseMetadataBuilder(releases.base("AttentionMetadataBuilder")):  # type: ignore[misc]
    """Builds the metadata of a step, on the device alone; the batch need not be reordered."""

    _cudagraph_support: ClassVar[Any] = releases.base("AttentionCGSupport").UNIFORM_BATCH

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device, **rest: Any
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device, **rest)
        scheduler, parallel = vllm_config.scheduler_config, vllm_config.parallel_config
        self.topk_tokens = int(vllm_config.model_config.hf_text_config.index_topk)
        self.interleave = int(getattr(parallel, "cp_kv_cache_interleave_size", 1))
        # CUDA graphs replay with these addresses: one buffer, written anew for each step.
        self._requests = torch.zeros(int(scheduler.max_num_batched_tokens), dtype=torch.int32, device=device)
        self._tokens = torch.arange(self._requests.shape[0], dtype=torch.int32, device=device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> TritonMLASparseMetadata:
        common = common_attn_metadata
        tokens, requests = int(common.num_actual_tokens), int(common.num_reqs)
        return TritonMLASparseMetadata(
            num_actual_tokens=tokens,
            num_reqs=requests,
            max_query_len=int(common.max_query_len),
            max_seq_len=int(common.max_seq_len),
            query_start_loc=common.query_start_loc,
            seq_lens=common.seq_lens,
            slot_mapping=common.slot_mapping,
            block_table=common.block_table_tensor,
            req_id_per_token=self._request_of(common.query_start_loc[: requests + 1], tokens),
            block_size=int(self.kv_cache_spec.block_size),
            topk_tokens=self.topk_tokens,
            num_decodes=requests,
            num_decode_tokens=tokens,
            cp_kv_cache_interleave_size=self.interleave,
        )

    def _request_of(self, starts: torch.Tensor, tokens: int) -> torch.Tensor:
        """int32 [T] from int32 [requests + 1]; requests without a token (padding) are skipped, padded tokens are the
        last request's. Read from the device's own starts: adaptive verification cuts drafts there only."""
        if tokens > self._requests.shape[0]:
            raise ValueError(f"a step of {tokens} tokens; max_num_batched_tokens is {self._requests.shape[0]}")
        ends = starts[1:].contiguous()
        found = torch.searchsorted(ends, self._tokens[:tokens], right=True, out_int32=True)
        requests = self._requests[:tokens]
        requests.copy_(found.clamp_(max=ends.shape[0] - 1))
        return requests
