"""The class that vLLM's selector asks and builds from. Its rules are those of serves.py."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from attnfit.engines.vllm.plugin import releases, serves
from attnfit.engines.vllm.plugin.impl import TritonMLASparseImpl
from attnfit.engines.vllm.plugin.metadata import TritonMLASparseMetadata, TritonMLASparseMetadataBuilder

PACKED_WIDTH = 656  # bytes of an fp8_ds_mla row
_ANY_BLOCK_SIZE = (releases.base("MultipleOf")(1),)


class TritonMLASparseBackend(releases.base("AttentionBackend")):  # type: ignore[misc]
    accept_output_buffer = True  # asked for by 0.16.0 only
    supported_dtypes: ClassVar[list[torch.dtype]] = [getattr(torch, name) for name in serves.DTYPES]
    supported_kv_cache_dtypes: ClassVar[list[str]] = list(serves.KV_CACHE_DTYPES)

    @staticmethod
    def get_name() -> str:
        return serves.NAME

    @staticmethod
    def get_impl_cls() -> type[TritonMLASparseImpl]:
        return TritonMLASparseImpl

    @staticmethod
    def get_builder_cls() -> type[TritonMLASparseMetadataBuilder]:
        return TritonMLASparseMetadataBuilder

    @staticmethod
    def get_metadata_cls() -> type[TritonMLASparseMetadata]:
        return TritonMLASparseMetadata

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return list(_ANY_BLOCK_SIZE)

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return list(serves.HEAD_SIZES)

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        return True

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return (capability.major, capability.minor) in serves.CAPABILITIES

    @classmethod
    def supports_combination(
        cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: str | None, *rest: Any, **named: Any
    ) -> str | None:
        """What no single question of the selector covers: a cache of another 16-bit type, packed rows without rope, and
        more keys a token than the kernel takes, which no question says: the model's config does."""
        topk = _index_topk()
        if topk is not None and not 0 < topk <= serves.MAX_TOPK:
            return f"index_topk: 1 to {serves.MAX_TOPK} required but got {topk}"
        wrong = serves.combination(
            head_size=head_size,
            dtype=str(dtype).removeprefix("torch."),
            kv_cache_dtype=kv_cache_dtype or "auto",
            writes_its_cache=releases.running() not in serves.LAYER_WRITES_CACHE,
        )
        return None if wrong is None else "{}: {} required but got {}".format(*wrong)

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """Asked for up to 0.28.0; later releases derive it from the layer's cache spec."""
        return (num_blocks, block_size, PACKED_WIDTH if cache_dtype_str == "fp8_ds_mla" else head_size)


def _index_topk() -> int | None:
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    model = None if config is None else config.model_config
    return None if model is None else getattr(model.hf_text_config, "index_topk", None)
