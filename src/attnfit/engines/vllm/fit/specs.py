"""The KV cache spec of every kind of layer, once the model is built and the block sizes are settled.

Each builder follows one class' `get_kv_cache_spec` (0.33.0, named beside it). A class that was not read is Unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from attnfit.core import Capability
from attnfit.engines.vllm.fit.kernel_blocks import packed, window_block
from attnfit.engines.vllm.fit.older import NEWEST, rules
from attnfit.engines.vllm.fit.spec import Spec, ceil_div
from attnfit.engines.vllm.launch.blocks import BlockSizes
from attnfit.engines.vllm.launch.gdn import prefill_checkpoint_alignment
from attnfit.engines.vllm.launch.mamba_state import num_speculative_tokens, state_bytes
from attnfit.engines.vllm.launch.pages import element_bytes
from attnfit.engines.vllm.launch.state import EngineConfig, KvLayer, Unknown

#: bytes of one token in the opaque latent layouts (model_executor/layers/attention/mla_attention.py:1388)
PACKED_LATENT = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
V4_TOKEN = 584  # models/deepseek_v4/attention.py:882: 448 B latent + 128 B rope + 8 B scales


class Built:
    """One launch whose model is built: what every builder reads."""

    def __init__(
        self,
        cfg: EngineConfig,
        kv_cache_dtype: str,
        kv_layers: Sequence[KvLayer],
        sizes: BlockSizes,
        capability: Capability,
    ) -> None:
        self.cfg, self.kv, self.layers, self.sizes, self.capability = cfg, kv_cache_dtype, kv_layers, sizes, capability

    @property
    def block(self) -> int:
        if self.sizes.block_size is None:
            raise Unknown("the block size once the model is built")
        return self.sizes.block_size

    def number(self, key: str) -> int:
        value = self.cfg.text.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise Unknown(f"{key} in config.json")
        return value


def layer_specs(built: Built) -> list[Spec]:
    """What each kind of layer declares, in the order of first occurrence. Raises Unknown, naming the class."""
    return [_spec(built, layer) for layer in built.layers]


def _spec(b: Built, layer: KvLayer) -> Spec:
    if layer.mamba_type is not None:
        return _state(b, layer)
    builder = _BUILDERS.get(layer.layer_class)
    if builder is None:
        raise Unknown(f"the KV cache spec of layer class {layer.layer_class}")
    return builder(b, layer)


def _base(layer: KvLayer, kind: str | None, **fields: object) -> Spec:
    return Spec(layer_class=layer.layer_class, kind=kind, count=layer.count, role=layer.role, **fields)  # type: ignore[arg-type]


def _attention(b: Built, layer: KvLayer) -> Spec:
    """layers/attention/attention.py:611."""
    if layer.attn_type != "decoder":
        return _base(layer, None)
    if layer.backend.endswith("_DIFFKV"):
        raise Unknown(f"the value head size of {layer.layer_class} layers on {layer.backend}")
    plain = _base(layer, "FullAttentionSpec", block_size=b.block, sharded=True, **_heads(b, layer))
    if layer.sliding_window is None:
        return plain
    if not rules(b.cfg.release).window_fits_page:
        return msgspec.structs.replace(plain, kind="SlidingWindowSpec", window=layer.sliding_window)
    one = packed(msgspec.structs.replace(plain, block_size=1), layer, b)
    token, shared = one.natural_bytes, b.sizes.skip_page_bytes
    block = window_block(b, layer, token, shared or token * b.block)
    return msgspec.structs.replace(
        plain, kind="SlidingWindowSpec", block_size=block, window=layer.sliding_window, padded=shared
    )


def _heads(b: Built, layer: KvLayer) -> dict[str, object]:
    if not layer.head_size or not layer.num_kv_heads:
        raise Unknown(f"the KV heads of {layer.layer_class} layers")
    kv = layer.kv_cache_dtype or "auto"
    content = 2 * layer.head_size * element_bytes(kv, b.cfg.dtype)
    return {"heads": layer.num_kv_heads, "content": content, "stored_as": f"{mode(kv)} {layer.head_size}"}


def mode(kv: str) -> str:
    """KV dtypes that name the same format read alike (kv_cache_interface.py:115)."""
    if kv in ("fp8", "fp8_e4m3", "fp8_inc"):
        return "fp8"
    return "none" if kv in ("auto", "float16", "bfloat16", "float32") else kv


def _no_cache(b: Built, layer: KvLayer) -> Spec:
    return _base(layer, None)


def _chunked(b: Built, layer: KvLayer) -> Spec:
    """layers/attention/chunked_local_attention.py:119."""
    return _base(
        layer, "ChunkedLocalAttentionSpec", block_size=b.block, sharded=True, chunk=b.number("attention_chunk_size"),
        **_heads(b, layer),
    )  # fmt: skip


def _latent(b: Built, layer: KvLayer) -> Spec:
    """layers/attention/mla_attention.py:1371, models/kimi_k3/nvidia/mla.py:421."""
    kv = layer.kv_cache_dtype or "auto"
    size = layer.head_size
    if not size:
        raise Unknown(f"the latent size of {layer.layer_class} layers")
    content = PACKED_LATENT.get(kv) or size * element_bytes(kv, b.cfg.dtype)
    slides = layer.sliding_window is not None
    return _base(
        layer, "SlidingWindowMLASpec" if slides else "MLAAttentionSpec", block_size=b.block, sharded=True,
        content=content, window=layer.sliding_window, stored_as=f"latent {mode(kv)} {size}",
    )  # fmt: skip


def _indexer(b: Built, layer: KvLayer) -> Spec:
    """model_executor/models/deepseek_v2.py:658: FP8 keys and a float scale for each 128 of them."""
    return _base(
        layer, "MLAAttentionSpec", block_size=b.block, sharded=True, content=_index_bytes(b), stored_as="index keys"
    )


def _index_bytes(b: Built) -> int:
    head = b.number("index_head_dim")
    return head + head // 128 * 4


def _pooled_indexer(b: Built, layer: KvLayer) -> Spec:
    """models/glm5next/common/attention.py:112: one entry for each `index_kpool` tokens."""
    return _base(
        layer, "MLAAttentionSpec", block_size=b.block, sharded=True, ratio=b.number("index_kpool"),
        content=_index_bytes(b), stored_as="pooled index keys",
    )  # fmt: skip


def _tail(b: Built, layer: KvLayer) -> Spec:
    """models/glm5next/common/attention.py:156: the keys and gate scores of the pool being filled, per request."""
    pool = b.number("index_kpool")
    spans = ceil_div(pool + num_speculative_tokens(b.cfg), pool)
    ring = pool * (1 << (spans - 1).bit_length())
    return _base(
        layer, "CircularBufferSpec", block_size=ring, heads=2, content=b.number("index_head_dim") * 2,
        stored_as="pool being filled",
    )  # fmt: skip


def _v4_packed(b: Built) -> bool:
    return b.kv == "fp8_ds_mla"


def _v4_attention(b: Built, layer: KvLayer) -> Spec:
    """models/deepseek_v4/attention.py:860. Uncompressed layers only have the sliding cache below."""
    if layer.ratio <= 1:
        return _base(layer, None)
    kv = layer.kv_cache_dtype or "auto"
    packed = kv == "fp8_ds_mla"
    content = V4_TOKEN if packed else b.number("head_dim") * element_bytes(kv, b.cfg.dtype)
    return _base(
        layer, "MLAAttentionSpec", block_size=b.block, sharded=True, ratio=layer.ratio, content=content,
        alignment=576 if packed else 512, stored_as=f"compressed latent {kv}",
    )  # fmt: skip


def _v4_window(b: Built, layer: KvLayer) -> Spec:
    """v1/attention/backends/mla/sparse_swa.py:120."""
    packed = b.kv in PACKED_LATENT
    content = V4_TOKEN if packed else b.number("head_dim") * element_bytes(b.kv, b.cfg.dtype)
    return _base(
        layer, "SlidingWindowMLASpec", block_size=64, sharded=True, content=content,
        alignment=576 if packed else 512, window=b.number("sliding_window"), stored_as=f"window latent {b.kv}",
    )  # fmt: skip


def _v4_indexer(b: Built, layer: KvLayer) -> Spec:
    """models/deepseek_v4/attention.py:911."""
    return _base(
        layer, "MLAAttentionSpec", block_size=b.block, sharded=True, ratio=layer.ratio, content=_index_bytes(b),
        alignment=576 if _v4_packed(b) else 512, stored_as="index keys",
    )  # fmt: skip


def _v4_compressor(b: Built, layer: KvLayer) -> Spec:
    """models/deepseek_v4/compressor.py:179: float32 states in blocks of 4 (ratio 4) or 8 tokens (ratio 128)."""
    block = {4: 4, 128: 8}.get(layer.ratio)
    if block is None or layer.width is None:
        raise Unknown(f"the compressor states of ratio {layer.ratio}")
    return _base(
        layer, "SlidingWindowMLASpec", block_size=block, sharded=True, content=layer.width * 4,
        alignment=576 if _v4_packed(b) else 512, window=layer.sliding_window, stored_as="compressor states",
    )  # fmt: skip


def _state(b: Built, layer: KvLayer) -> Spec:
    """layers/mamba/abstract.py:72: one state a block; in "align" mode a request holds the last two and a checkpoint."""
    cfg = b.cfg
    classes = {row.layer_class for row in b.layers if row.mamba_type is not None}
    if len(classes) > 1:
        raise Unknown(f"the states of {', '.join(sorted(classes))} in one model")
    block = b.sizes.mamba_block_size
    if block is None:
        raise Unknown("the block size of the recurrent layers")
    blocks = 1 + num_speculative_tokens(cfg)
    if cfg.mamba_cache_mode == "align":
        blocks += 1 + (_checkpoints(b, layer) if cfg.release == NEWEST else 0)
    return _base(
        layer, "MambaSpec", block_size=block, ratio=0, content=state_bytes(cfg), padded=b.sizes.mamba_page_bytes,
        state_blocks=blocks, stored_as=str(layer.mamba_type),
    )  # fmt: skip


def _checkpoints(b: Built, layer: KvLayer) -> int:
    """Blocks kept for states exported in mid-prefill (mamba_mixer2.py:1108, qwen_gdn_linear_attn.py:739)."""
    if layer.layer_class == "MambaMixer2":
        return 1
    if layer.layer_class == "QwenGatedDeltaNetAttention":
        return int(prefill_checkpoint_alignment(b.cfg, b.layers, b.capability) is not None)
    if layer.layer_class in ("KimiK3DeltaAttention", "Glm5NextLinearAttention"):
        return int(_flash_kda(b))
    return 0


def _flash_kda(b: Built) -> bool:
    """Whether FlashKDA prefills (models/kimi_k3/nvidia/kda.py:363, glm5next/common/kda.py:137): it exports states."""
    extra = b.cfg.flags.get("additional_config")
    asked = b.cfg.flags.get("kda_prefill_backend") or (
        extra.get("kda_prefill_backend") if isinstance(extra, dict) else None
    )
    kda = b.cfg.text.get("linear_attn_config")
    kda = kda if isinstance(kda, dict) else {}
    bounded = kda.get("head_dim") == 128 and kda.get("gate_lower_bound") is not None
    able = b.capability.major in (9, 10, 12) and b.cfg.dtype == "bfloat16" and bounded
    return able and (asked or "auto") in ("auto", "flashkda")


_BUILDERS: dict[str, Callable[[Built, KvLayer], Spec]] = {
    "Attention": _attention,
    "EncoderOnlyAttention": _no_cache,
    "ChunkedLocalAttention": _chunked,
    "MLAAttention": _latent,
    "MultiHeadLatentAttention": _latent,
    "DeepseekV32Attention": _latent,
    "DeepseekV32IndexerCache": _indexer,
    "Glm5NextIndexerCache": _pooled_indexer,
    "Glm5NextTailCache": _tail,
    "DeepseekV4FlashMLAAttention": _v4_attention,
    "DeepseekV4FlashInferMLAAttention": _v4_attention,
    "DeepseekV4FlashInferSM120Attention": _v4_attention,
    "DeepseekV4SWACache": _v4_window,
    "DeepseekV4IndexerCache": _v4_indexer,
    "CompressorStateCache": _v4_compressor,
}
