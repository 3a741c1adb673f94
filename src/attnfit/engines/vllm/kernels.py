"""Which of vLLM's own Triton kernels a launch will start for attention, and with which shapes.

What of them needs the release's code (tiles, split counts, strides) is asked in the child: `triton_kernels/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnfit.core import Launch, LayerQuestion
from attnfit.engines import KernelAsk
from attnfit.engines.vllm import ours
from attnfit.engines.vllm.launch import Case, Walked, walk
from attnfit.engines.vllm.launch.state import EngineConfig, KvLayer, Refusal, Unknown

SSM_DTYPES = ("float32", "float16", "bfloat16")


def asks(case: Case, launch: Launch) -> list[KernelAsk]:
    """One for each kind of layer whose backend's kernels can be asked about; none for a launch that does not pass."""
    try:
        walked = walk(case)
    except (Refusal, Unknown):
        return []
    found: dict[str, KernelAsk] = {}
    for layer in walked.answer.kv_layers:
        if layer.role == "target":
            for ask in _of(layer, walked, launch):
                found.setdefault(f"{ask.backend} {ask.about} {ask.unknown}", ask)
    return list(found.values())


def _of(layer: KvLayer, walked: Walked, launch: Launch) -> Iterator[KernelAsk]:
    try:
        if layer.backend in ours.NAMES:
            raise Unknown("attnfit's own are not asked about here; `attnfit kernels fit` compiles them")
        if layer.backend == "TRITON_MLA":
            yield _latent(layer, walked)
        elif layer.backend == "TRITON_ATTN" and layer.attn_type == "decoder":
            yield _paged(layer, walked, _question(layer, launch))
        elif layer.mamba_type == "GDN_ATTN":
            yield _delta(walked.config)
        elif layer.mamba_type is not None:
            raise Unknown(f"the kernels of {layer.mamba_type} layers are not asked about")
        elif "TRITON" in layer.backend or layer.backend == "TREE_ATTN":
            raise Unknown(f"its kernels for {layer.attn_type.replace('_', '-')} layers are not asked about")
    except Unknown as missing:
        yield KernelAsk(layer.backend, {}, unknown=str(missing))


def _question(layer: KvLayer, launch: Launch) -> LayerQuestion | None:
    """The selector's question that this layer asked."""
    for each in launch.layers:
        asked = each.question
        if each.role == layer.role and asked.head_size == layer.head_size and each.selection.chosen == layer.backend:
            return each
    return None


def _number(source: dict[str, Any], key: str) -> int:
    value = source.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unknown(f"{key} of config.json")
    return value


def _common(cfg: EngineConfig, block_size: int | None) -> dict[str, Any]:
    if block_size is None:
        raise Unknown("the block size")
    return {"dtype": cfg.dtype, "block_size": block_size, "max_model_len": cfg.max_model_len}


def _latent(layer: KvLayer, walked: Walked) -> KernelAsk:
    cfg = walked.config
    cache = layer.kv_cache_dtype or "auto"
    about = {
        "kernel": "mla-decode",
        **_common(cfg, walked.sizes.block_size),
        "kv_cache_dtype": cache,
        "num_heads": cfg.num_heads * cfg.dcp,  # decode context parallelism gathers the heads of all its ranks
        "kv_lora_rank": _number(cfg.text, "kv_lora_rank"),
        "qk_rope_head_dim": _number(cfg.text, "qk_rope_head_dim"),
    }
    said = (
        f"{about['num_heads']} query heads, latent rows of {about['kv_lora_rank']} + {about['qk_rope_head_dim']}, "
        f"{cfg.dtype}, KV cache {cache}, blocks of {about['block_size']}, up to {cfg.max_model_len} tokens"
    )
    return KernelAsk("TRITON_MLA", about, (said,))


def _paged(layer: KvLayer, walked: Walked, asked: LayerQuestion | None) -> KernelAsk:
    cfg = walked.config
    cache = layer.kv_cache_dtype or "auto"
    heads = asked.question.num_heads if asked is not None else None
    size, kv_heads = layer.head_size, layer.num_kv_heads
    if size is None or not kv_heads:
        raise Unknown("the layer's head size and KV heads")
    if cfg.text.get("alibi") or cfg.config.get("alibi"):
        raise Unknown("kernels with ALiBi slopes are not asked about")
    about = {
        "kernel": "unified-attention",
        **_common(cfg, walked.sizes.block_size),
        "kv_cache_dtype": cache,
        "num_heads": heads or cfg.num_heads,
        "num_kv_heads": kv_heads,
        "head_size": size,
        "sliding_window": layer.sliding_window,
        "sinks": bool(asked is not None and asked.question.has_sink),
        "softcap": cfg.text.get("attn_logit_softcapping"),
    }
    beside = [
        text
        for text, there in (
            (f"a window of {layer.sliding_window}", layer.sliding_window),
            ("attention sinks", about["sinks"]),
            (f"scores capped at {about['softcap']}", about["softcap"]),
        )
        if there
    ]
    said = (
        f"{about['num_heads']} query heads, {kv_heads} KV heads of {size}, {cfg.dtype}, KV cache {cache}, "
        f"blocks of {about['block_size']}"
    )
    return KernelAsk("TRITON_ATTN", about, (", ".join([said, *beside]),))


def _delta(cfg: EngineConfig) -> KernelAsk:
    text, tp = cfg.text, cfg.tp
    keys, values = _number(text, "linear_num_key_heads"), _number(text, "linear_num_value_heads")
    if keys % tp or values % tp:
        raise Unknown(f"linear attention heads that do not divide by {tp} ranks")
    conv = cfg.dtype if cfg.mamba_cache_dtype == "auto" else cfg.mamba_cache_dtype
    state = conv if cfg.mamba_ssm_cache_dtype == "auto" else cfg.mamba_ssm_cache_dtype
    if state not in SSM_DTYPES:
        raise Unknown(f"recurrent states of {state} are not asked about")
    about = {
        "kernel": "gdn",
        "dtype": cfg.dtype,
        "linear_num_key_heads": keys // tp,
        "linear_num_value_heads": values // tp,
        "linear_key_head_dim": _number(text, "linear_key_head_dim"),
        "linear_value_head_dim": _number(text, "linear_value_head_dim"),
        "linear_conv_kernel_dim": _number(text, "linear_conv_kernel_dim"),
        "state_dtype": state,
        "gdn_prefill_backend": cfg.flags.get("gdn_prefill_backend"),
    }
    said = (
        f"linear attention with {keys // tp} key heads of {about['linear_key_head_dim']} and {values // tp} value "
        f"heads of {about['linear_value_head_dim']} a rank, {cfg.dtype}, states in {state}"
    )
    return KernelAsk("GDN_ATTN", about, (said,))
