"""Cache, attention and parallel settings, the architecture's hooks, and VllmConfig's own checks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from attnfit.engines.vllm import ours
from attnfit.engines.vllm.launch import kv_dtype, parallel, quant
from attnfit.engines.vllm.launch.arch import ModelInfo
from attnfit.engines.vllm.launch.hooks import CacheState, apply_hook, mamba
from attnfit.engines.vllm.launch.messages import plain, value_error
from attnfit.engines.vllm.launch.modes import check_lora, check_microbatches, check_replay, skips_tokenizer
from attnfit.engines.vllm.launch.sizes import Sizes
from attnfit.engines.vllm.launch.state import Refusal, Unknown
from attnfit.engines.vllm.launch.way import Way
from attnfit.errors import did_you_mean
from attnfit.hf.config import HfConfig


def cache_state(way: Way, info: ModelInfo, node: HfConfig, pooling: bool, hybrid: bool) -> tuple[bool, CacheState]:
    attn = attn_type(way, info, node, pooling, hybrid)
    chunked_ok = attn not in ("encoder_only", "encoder_decoder")
    prefix_ok = attn in ("decoder", "hybrid") and not (pooling and attn == "hybrid")
    if pooling and attn == "decoder" and (info.seq_pooling in ("MEAN", "CLS") or info.tok_pooling == "STEP"):
        chunked_ok = prefix_ok = False
    chunked = way.flags.get("enable_chunked_prefill")
    prefix = way.flags.get("enable_prefix_caching")
    block = way.whole("block_size")
    if block is not None and block <= 0:
        raise Unknown(f"how vLLM {way.release} fails with --block-size {block}; give 1 or more, or drop it")
    return bool(chunked_ok if chunked is None else chunked), CacheState(
        block_size=16 if block is None else block,
        enable_prefix_caching=bool(prefix_ok if prefix is None else prefix),
        mamba_cache_dtype=way.word("mamba_cache_dtype", "auto"),
        mamba_ssm_cache_dtype=way.word("mamba_ssm_cache_dtype", "auto"),
        mamba_block_size=way.whole("mamba_block_size"),
    )


def attn_type(way: Way, info: ModelInfo, node: HfConfig, pooling: bool, hybrid: bool) -> str:
    if pooling:
        if info.seq_pooling == "CLS" or not node.get("is_causal", True):
            return "encoder_only"
        return info.attn_type
    if hybrid:
        return "hybrid"
    if "attention_free" in info:
        return "attention_free"
    both = node.get("is_encoder_decoder", False) or node.text().get("is_encoder_decoder", False)
    return "encoder_decoder" if both else "decoder"


def kv_and_attention(
    way: Way, node: HfConfig, text: HfConfig, checkpoint: dict[str, Any] | None, hybrid: bool
) -> tuple[str, list[str], dict[str, Any]]:
    asked = way.word("kv_cache_dtype", "auto")
    known: list[str] = way.facts["cache_dtypes"]
    if known and asked not in known:
        raise value_error(
            "CacheConfig", f"Invalid kv_cache_dtype: {asked!r}. Valid values are: {known}", "vllm/config/cache.py"
        )
    now = asked
    if asked == "auto" and "kv_checkpoint" in way.checks:
        now = kv_dtype.from_checkpoint(top_quant(way, node, checkpoint))
    skip = [str(x) for x in way.flags.get("kv_cache_dtype_skip_layers") or []]
    attention = copy.deepcopy(way.flags.get("attention_config") or {})
    if kv_dtype.packed(now):
        try:
            skip = sorted(set(skip) | set(kv_dtype.boundary_layers(text, node, hybrid)))
        except Refusal as refusal:
            way.met(refusal)
    return now, skip, attention if isinstance(attention, dict) else {}


def top_quant(way: Way, node: HfConfig, checkpoint: dict[str, Any] | None) -> dict[str, Any] | None:
    """Only the top-level settings are looked at for the KV dtype, and with the method's name filled in."""
    return checkpoint if node.get("quantization_config") is not None else None


def attention_backend(way: Way, attention: dict[str, Any], kv: str) -> None:
    backend = way.flags.get("attention_backend")
    if backend is not None:
        if attention.get("backend") is not None:
            way.met(
                plain(
                    "ValueError",
                    "attention_backend and attention_config.backend are mutually exclusive",
                    "vllm/engine/arg_utils.py",
                )
            )
        attention["backend"] = backend
    if isinstance(attention.get("backend"), str):
        name = attention["backend"]
        attention["backend"] = None if name.lower() == "auto" else name.upper()
    _known_backend(way, attention)
    if attention.get("backend") in ("CUTLASS_MSA", "TRITON_MSA"):
        attention["backend"] = None
    version = attention.get("flash_attn_version")
    if kv_dtype.packed(kv) and (version is None or version >= 3):
        attention["flash_attn_version"] = 2


def _known_backend(way: Way, attention: dict[str, Any]) -> None:
    """A name that is no member of the release's enum: its metaclass raises (attention/backends/registry.py)."""
    from attnfit.engines.vllm.flags import load_table

    name, found = attention.get("backend"), load_table(way.release).classes.get("AttentionBackendEnum", {})
    if not isinstance(name, str) or "meta" not in found or name in found["enum"]:
        return
    if way.plugin is not None and way.plugin.loaded and name in way.plugin.names:
        return
    text = f"Unknown attention backend: '{name}'. Valid options are: {', '.join(found['enum'])}"
    way.met(plain("ValueError", text, "vllm/v1/attention/backends/registry.py"))
    attention["backend"] = None
    if name in ours.NAMES:
        way.notes.append(f"{name} is attnfit's own backend; {ours.reached(way.plugin)}")
        return
    close = did_you_mean(name.replace("-", "_"), found["enum"], beginning=True)
    way.notes.append(f"{name} is no attention backend{close or '; attnfit backends lists them'}")


def groups_of(way: Way, is_moe: bool) -> parallel.Parallel:
    try:
        return parallel.resolve_parallel(way.flags, is_moe, way.gpus, way.release)
    except Refusal as refusal:
        way.met(refusal)
        return parallel.Parallel(
            tp=max(1, way.whole("tensor_parallel_size") or 1), pp=1, dp=1, dcp=1, pcp=1, expert=False
        )


def hooks_and_lengths(
    way: Way,
    node: HfConfig,
    text: HfConfig,
    hook: str,
    cache: CacheState,
    attention: dict[str, Any],
    chunked: bool,
    hybrid: bool,
    length: int,
    kv: str,
) -> None:
    """The architecture's own hook, then what every model with state-space layers gets."""
    try:
        apply_hook(hook, node, text, cache, attention, way.capability, kv, way.release)
        if hybrid or hook == "MambaModelConfig":
            if "mamba_align" not in way.checks:
                way.notes.append("Mamba cache modes of this release are not derived")
            mamba(cache, chunked or "mamba_chunked" not in way.checks, length)
    except Refusal as refusal:
        way.met(refusal)


def settled_block_size(way: Way, cache: CacheState, use_mla: bool, hybrid: bool) -> int | None:
    """The block size at the end of the stage.

    None where an older release settles it here from the backend or the state-space layers, which is not derived.
    """
    given = way.flags.get("block_size") is not None
    return cache.block_size if way.proven or given or not (use_mla or hybrid) else None


def kv_transfer(way: Way) -> dict[str, Any] | None:
    value = way.flags.get("kv_transfer_config")
    return value if isinstance(value, dict) else None


def late_checks(
    way: Way,
    kv: str,
    dtype: str,
    groups: parallel.Parallel,
    sizes: Sizes,
    info: ModelInfo,
    use_mla: bool,
    method: str | None,
    checkpoint: dict[str, Any] | None,
    cache: CacheState,
    length: int,
) -> None:
    """VllmConfig.__post_init__ after the hooks, then its validators."""
    online = way.flags.get("quantization_config") is not None
    transfer = kv_transfer(way)
    rules: list[tuple[str, Callable[[], None]]] = [
        ("kv_mismatch", lambda: kv_dtype.reject_mismatch(kv, dtype)),
        ("", lambda: parallel.verify_model(groups, sizes, info, use_mla, gqa="gqa_dcp" in way.checks)),
        ("nixl_dcp", lambda: parallel.verify_nixl(groups, transfer, use_mla)),
        ("lora", lambda: check_lora(way, info)),
        ("", lambda: quant.check_method(way.facts, method, checkpoint, way.hf_quant, dtype, way.capability, online)),
        ("microbatches", lambda: check_microbatches(way)),
        ("", lambda: skips_tokenizer(way)),
        ("nvfp4_mla", lambda: kv_dtype.reject_nvfp4_mla(kv, use_mla)),
        ("mamba_block", lambda: _mamba_block(way, cache, length)),
        ("replayssm", lambda: check_replay(way, info)),
    ]
    checks = [check for name, check in rules if not name or name in way.checks]
    for check in checks:
        try:
            check()
        except Refusal as refusal:
            way.met(refusal)


def _mamba_block(way: Way, cache: CacheState, length: int) -> None:
    if cache.mamba_block_size not in (None, length) and not cache.enable_prefix_caching:
        raise value_error(
            "VllmConfig",
            "--mamba-block-size can only be set with --enable-prefix-caching",
            "vllm/config/vllm.py:3449",
        )
