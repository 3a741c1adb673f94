"""Stage create_engine_config: config.json + flags -> what the engine has resolved before it builds the model.

`resolve` follows vllm/engine/arg_utils.py `create_engine_config` in its own order, so that the first refusal is the
engine's first refusal. Proven on the releases of `facts.PROVEN`; for others the selector's facts are derived from that
release's own tables and the answer says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnfit.core import Capability
from attnfit.engines.vllm.launch import facts as tables
from attnfit.engines.vllm.launch import kv_dtype, quant
from attnfit.engines.vllm.launch.cache_side import (
    attention_backend,
    cache_state,
    groups_of,
    hooks_and_lengths,
    kv_and_attention,
    kv_transfer,
    late_checks,
    settled_block_size,
)
from attnfit.engines.vllm.launch.draft import limit_to_draft, resolve_speculative
from attnfit.engines.vllm.launch.field_bounds import check_fields, out_of_bounds
from attnfit.engines.vllm.launch.forced import settle_backend
from attnfit.engines.vllm.launch.hooks import hook_of
from attnfit.engines.vllm.launch.model_side import (
    architecture,
    checkpoint_settings,
    drop_window,
    is_hybrid,
    load_node,
    max_len,
    model_dtype,
    positive_length,
    quant_method,
    takes_images,
)
from attnfit.engines.vllm.launch.modes import check_scheduler, cudagraph_mode
from attnfit.engines.vllm.launch.sizes import sizes_of
from attnfit.engines.vllm.launch.state import EngineConfig, ParsedFlags, Refusal, Unknown
from attnfit.engines.vllm.launch.way import Way, in_plain_words
from attnfit.engines.vllm.ours import Ours, model_class_of


class Resolution:
    """The configuration and every refusal met on the way, in the engine's order (`resolve_all`)."""

    def __init__(self, config: EngineConfig, refusals: list[Refusal]) -> None:
        self.config, self.refusals = config, refusals


def resolve(
    config: dict[str, Any],
    hf_quant: dict[str, Any] | None,
    capability: Capability,
    flags: ParsedFlags,
    release: str,
    env: Mapping[str, object] | None = None,
    *,
    path: str = "",
    files: frozenset[str] | None = None,
    gpus: int | None = None,
) -> EngineConfig:
    """What the engine has resolved at the end of create_engine_config.

    config, hf_quant   config.json and hf_quant_config.json as parsed
    env                VAR=value seen by the engine (flags.env is merged over it); facts that are not text are not read
    path, files        the model directory as the engine sees it, and the names in it (None: only the config is known)
    gpus               GPUs of this node, None: not checked

    Raises Refusal(stage "create_engine_config") with the engine's own words, or Unknown naming what is missing.
    """
    return _first_refusal(Way(config, hf_quant, capability, flags, release, env, path, files, gpus, False)).config


def resolve_all(
    config: dict[str, Any],
    hf_quant: dict[str, Any] | None,
    capability: Capability,
    flags: ParsedFlags,
    release: str,
    env: Mapping[str, object] | None = None,
    *,
    path: str = "",
    files: frozenset[str] | None = None,
    gpus: int | None = None,
    table: dict[str, Any] | None = None,
    weight_dtypes: frozenset[str] | None = None,
    hub: bool = False,
    plugin: Ours | None = None,
) -> Resolution:
    """Like `resolve`, but goes on after a refusal where the selector's facts still follow from the dimensions.

    Raises the engine's first refusal where they do not. table: the release's facts, where they are not the usual ones.
    weight_dtypes, hub: as in `attnfit.core.Model`.
    """
    way = Way(
        config, hf_quant, capability, flags, release, env, path, files, gpus, True, table, weight_dtypes, hub, plugin
    )
    return _first_refusal(way)


def _first_refusal(way: Way) -> Resolution:
    """Whatever stops us later, the engine stops at its first refusal."""
    try:
        return _run(way)
    except Unknown:
        if way.refusals:
            raise way.refusals[0] from None
        raise
    except Refusal as refusal:
        first = way.refusals[0] if way.refusals else refusal
        raise (first if way.proven else in_plain_words(first)) from None


def _run(way: Way) -> Resolution:
    if not way.proven:
        way.notes.append(f"the way from config.json to the selector was proven on vLLM {', '.join(tables.PROVEN)} only")
    if (refusal := out_of_bounds(way.release, way.flags, "ModelConfig")) is not None:
        raise refusal  # nothing that follows would mean anything
    node = load_node(way)
    text = node.text()
    mla_off = way.on("VLLM_MLA_DISABLE")
    sizes = sizes_of(way.facts, node, text, mla_off)
    info, runner = architecture(way, node, sizes)
    pooling = runner == "pooling"
    dtype = model_dtype(way, node, pooling)
    window = text.get("sliding_window")
    no_window = bool(way.flags.get("disable_sliding_window")) or window == 0
    length = max_len(way, text, sizes, window, no_window)
    if no_window:
        drop_window(way, text)
        window = None
    if "multimodal" in info and not takes_images(way, node):
        sizes.is_mm_prefix_lm = False
    hook = hook_of(way.facts, info.architecture, info.registered)
    checkpoint = checkpoint_settings(way, node)
    quant.rewrite_for_architecture(way.facts, hook, sizes.model_type, checkpoint)
    method = quant_method(way, checkpoint, sizes.model_type)
    positive_length(way, length)
    hybrid = is_hybrid(way, info, node)
    check_fields(way, "CacheConfig")
    chunked, cache = cache_state(way, info, node, pooling, hybrid)
    kv, skip, attention = kv_and_attention(way, node, text, checkpoint, hybrid)
    groups = groups_of(way, sizes.num_experts > 0)
    use_mla = sizes.is_deepseek_mla and not mla_off
    if "non_causal_mla" in way.checks:
        use_mla = use_mla and bool(text.get("is_causal", True))
    spec = resolve_speculative(way, sizes, groups, info, length, use_mla)
    seqs, tokens = check_scheduler(way, groups, length, chunked, info)
    attention_backend(way, attention, kv)
    settle_backend(way, node, text, attention, use_mla)
    check_fields(way, "UVAOffloadConfig")
    # VllmConfig.__post_init__
    hooks_and_lengths(way, node, text, hook, cache, attention, chunked, hybrid, length, kv)
    hooked = info.architecture if info.architecture in way.facts["kv_hooks"] else info.registered
    kv = kv_dtype.architecture_edit(way.facts, hooked, node, text, kv, way.capability)
    length = limit_to_draft(spec, length)
    late_checks(way, kv, dtype, groups, sizes, info, use_mla, method, checkpoint, cache, length)
    per_rank_kv = 1 if use_mla else max(1, sizes.total_num_kv_heads // groups.tp)
    return Resolution(
        EngineConfig(
            release=way.release,
            capability=way.capability,
            flags=way.flags,
            config=node.plain(),
            text=text.plain(),
            architecture=info.architecture,
            model_type=sizes.model_type,
            dtype=dtype,
            quantization=method,
            quant_config=None if method == "gguf" else checkpoint,  # the tensors' own types decide
            head_size=sizes.head_size,
            num_heads=sizes.total_num_attention_heads // groups.tp,
            num_kv_heads=per_rank_kv,
            use_mla=use_mla,
            is_hybrid=hybrid,
            is_attention_free="attention_free" in info,
            is_mm_prefix_lm=sizes.is_mm_prefix_lm,
            is_moe=sizes.num_experts > 0,
            is_multimodal="multimodal" in info,
            rswa_window=sizes.rswa_window,
            sliding_window=window,
            max_model_len=length,
            runner_type=runner,
            enforce_eager=bool(way.flags.get("enforce_eager")),
            kv_cache_dtype=kv,
            block_size=settled_block_size(way, cache, use_mla, hybrid),
            user_specified_block_size=way.flags.get("block_size") is not None,
            enable_prefix_caching=cache.enable_prefix_caching,
            mamba_cache_dtype=cache.mamba_cache_dtype,
            mamba_ssm_cache_dtype=cache.mamba_ssm_cache_dtype,
            mamba_cache_mode=cache.mamba_cache_mode,
            mamba_block_size=cache.mamba_block_size,
            kv_cache_dtype_skip_layers=tuple(skip),
            tp=groups.tp,
            pp=groups.pp,
            dp=groups.dp,
            dcp=groups.dcp,
            pcp=groups.pcp,
            expert_parallel=groups.expert,
            attention=attention,
            speculative=spec,
            kv_transfer=kv_transfer(way),
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            notes=way.notes,
            sizes=sizes,
            text_class=str(getattr(text, "cls", "")),
            model_class=model_class_of(way.plugin, info.architecture, info.at),
            cudagraph_mode=cudagraph_mode(way, pooling, node),
            plugin=way.plugin,
        ),
        way.refusals,
    )
