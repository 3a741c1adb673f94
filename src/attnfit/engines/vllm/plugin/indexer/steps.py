"""What a step's indexers share: how many keys each token sees, and which tokens are computed together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from vllm.v1.attention.backends.mla.indexer import DeepseekV32IndexerBackend

from attnfit.engines.vllm.plugin import releases

TILE = 32  # tokens of a prefill that share one load of the keys


class Tile(NamedTuple):
    """`runs` runs of `tokens` tokens each: of one request, one run after another, or of as many requests."""

    first_token: int
    first_request: int
    runs: int
    tokens: int
    one_request: bool


@dataclass
class IndexerStep(releases.base("AttentionMetadata")):  # type: ignore[misc]
    slot_mapping: torch.Tensor  # int64 [T]
    block_table: torch.Tensor  # int32 [requests, blocks]
    lengths: torch.Tensor  # int32 [T]: keys that a token sees, itself included; a view of one buffer for all steps
    tiles: list[Tile]
    num_tokens: int
    width: int  # no token sees more keys


class IndexerStepBuilder(releases.base("AttentionMetadataBuilder")):  # type: ignore[misc]
    _cudagraph_support: ClassVar[Any] = releases.base("AttentionCGSupport").UNIFORM_BATCH

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device, **rest: Any
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device, **rest)
        self.max_model_len = int(vllm_config.model_config.max_model_len)
        most = int(vllm_config.scheduler_config.max_num_batched_tokens)
        self._lengths = torch.zeros(most, dtype=torch.int32, device=device)
        self._tokens = torch.arange(most, dtype=torch.int32, device=device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> IndexerStep:
        return self._step(common_attn_metadata, min(int(common_attn_metadata.max_seq_len), self.max_model_len))

    def build_for_cudagraph_capture(self, common_attn_metadata: Any) -> IndexerStep:
        return self._step(common_attn_metadata, self.max_model_len)  # a graph is replayed for any length

    def _step(self, common: Any, width: int) -> IndexerStep:
        requests, tokens = int(common.num_reqs), int(common.num_actual_tokens)
        if tokens > self._lengths.shape[0]:
            raise ValueError(f"a step of {tokens} tokens; max_num_batched_tokens is {self._lengths.shape[0]}")
        starts = common.query_start_loc[: requests + 1]
        lengths = self._lengths[:tokens]
        request = torch.searchsorted(starts[1:].contiguous(), self._tokens[:tokens], right=True)
        request.clamp_(max=requests - 1)
        seen = common.seq_lens[request] - (starts[request + 1] - 1 - self._tokens[:tokens])
        # Tokens beyond the last request's are padding of a CUDA graph: they see nothing.
        lengths.copy_(torch.where(self._tokens[:tokens] < starts[-1], seen, 0))
        return IndexerStep(
            slot_mapping=common.slot_mapping[:tokens],
            block_table=common.block_table_tensor[:requests],
            lengths=lengths,
            tiles=list(tiles_of(common.query_start_loc_cpu[: requests + 1].tolist())),
            num_tokens=tokens,
            width=width,
        )


class IndexerBackend(DeepseekV32IndexerBackend):
    @classmethod
    def supports_pcp(cls) -> bool:
        return False

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return False  # tiles follow the host's lengths

    @staticmethod
    def get_name() -> str:
        return "ATTNFIT_INDEXER"

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [releases.base("MultipleOf")(1)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return []  # any: the cache of e4m3 codes has four bytes a key more than the keys have values

    @staticmethod
    def get_builder_cls() -> type[IndexerStepBuilder]:
        return IndexerStepBuilder


def tiles_of(starts: list[int]) -> Iterator[Tile]:
    """Splits a batch, given where each request's tokens begin: neighbours of one short length (decode, speculation)
    go together, a longer request goes in runs of TILE tokens and a rest."""
    request = 0
    while request < len(starts) - 1:
        first, tokens = starts[request], starts[request + 1] - starts[request]
        if tokens > TILE:
            runs, rest = divmod(tokens, TILE)
            yield Tile(first, request, runs, TILE, True)
            if rest:
                yield Tile(first + runs * TILE, request, 1, rest, True)
            request += 1
            continue
        last = request
        while last < len(starts) - 1 and starts[last + 1] - starts[last] == tokens:
            last += 1
        if tokens:
            yield Tile(first, request, last - request, tokens, False)
        request = last
