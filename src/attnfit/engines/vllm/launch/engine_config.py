"""Stage create_engine_config: config.json + flags -> what the engine has resolved before it builds the model.

`resolve` follows vllm/engine/arg_utils.py `create_engine_config` in its own order, so that the first refusal is the
engine's first refusal. Proven on the releases of `facts.PROVEN`; for others the selector's facts are derived from that
release's own tables and the answer says so.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from attnfit.core import Capability
from attnfit.engines.vllm.launch import facts as tables
from attnfit.engines.vllm.launch import kv_dtype, parallel, quant, speculative
from attnfit.engines.vllm.launch.arch import ModelInfo, resolve_architecture, runner_and_convert
from attnfit.engines.vllm.launch.dtype import config_dtype, resolve_dtype
from attnfit.engines.vllm.launch.hf import HfConfig
from attnfit.engines.vllm.launch.hooks import CacheState, apply_hook, hook_of, mamba
from attnfit.engines.vllm.launch.lengths import resolve_max_model_len
from attnfit.engines.vllm.launch.load import load_config
from attnfit.engines.vllm.launch.messages import plain, value_error
from attnfit.engines.vllm.launch.modes import check_lora, check_scheduler, cudagraph_mode, skips_tokenizer
from attnfit.engines.vllm.launch.sizes import Sizes, sizes_of
from attnfit.engines.vllm.launch.state import EngineConfig, ParsedFlags, Refusal, Unknown

_MM_PREFIX_MODALITIES = {
    "gemma3": ("image",), "paligemma": ("image",), "molmo2": ("image", "video"), "bagel": ("image",),
    "moondream3": ("image",),
}  # fmt: skip


class Resolution:
    """`resolve(..., keep_going=True)`: the configuration and every refusal met on the way, in the engine's order."""

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
    return _Resolver(config, hf_quant, capability, flags, release, env, path, files, gpus, False).run().config


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
) -> Resolution:
    """Like `resolve`, but goes on after a refusal where the selector's facts still follow from the dimensions."""
    return _Resolver(config, hf_quant, capability, flags, release, env, path, files, gpus, True).run()


class _Resolver:
    """One pass over the engine's own order of checks."""

    def __init__(
        self,
        config: dict[str, Any],
        hf_quant: dict[str, Any] | None,
        capability: Capability,
        flags: ParsedFlags,
        release: str,
        env: Mapping[str, object] | None,
        path: str,
        files: frozenset[str] | None,
        gpus: int | None,
        keep_going: bool,
    ) -> None:
        self.raw, self.hf_quant, self.capability, self.flags = config, hf_quant, capability, flags
        self.release, self.path, self.files, self.gpus = release, path, files, gpus
        self.env = {**{k: v for k, v in (env or {}).items() if isinstance(v, str)}, **flags.env}
        self.keep_going = keep_going
        self.refusals: list[Refusal] = []
        self.notes: list[str] = []
        self.facts = tables.release_facts(release)
        self.classes = tables.class_tables(release)

    # ------------------------------------------------------------------------------------------------ helpers
    def _on(self, name: str) -> bool:
        return self.env.get(name, "") not in ("", "0", "false", "False")

    def _int(self, dest: str) -> int | None:
        value = self.flags.get(dest)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise Unknown(f"--{dest.replace('_', '-')} is {value!r}, not a whole number")

    def _word(self, dest: str, default: str) -> str:
        value = self.flags.get(dest)
        return default if value is None else str(value)

    def _met(self, refusal: Refusal) -> None:
        """Stop at the engine's first refusal, or remember it and go on."""
        if not self.keep_going:
            raise refusal
        self.refusals.append(refusal)

    # ------------------------------------------------------------------------------------------------ the way
    def run(self) -> Resolution:
        if self.release not in tables.PROVEN:
            self.notes.append(
                f"the way from config.json to the selector was proven on vLLM {', '.join(tables.PROVEN)} only"
            )
        node = self._load()
        text = node.text()
        if text is not node and not text.has("num_attention_heads"):
            raise value_error(
                "ModelConfig",
                "The text_config extracted from the model config does not have `num_attention_heads` attribute. This "
                "indicates a mismatch between the model config and vLLM's expectations. Please ensure that the model "
                "config is compatible with vLLM.",
                "vllm/transformers_utils/config.py",
            )
        mla_off = self._on("VLLM_MLA_DISABLE")
        sizes = sizes_of(self.facts, node, text, mla_off)
        info, runner = self._architecture(node, sizes)
        pooling = runner == "pooling"
        dtype = self._dtype(node, pooling)
        window = text.get("sliding_window")
        no_window = bool(self.flags.get("disable_sliding_window")) or window == 0
        length = self._length(text, sizes, window, no_window)
        if no_window:
            text.set("sliding_window", None)
            window = None
        if "multimodal" in info and not self._takes_images(node):
            sizes.is_mm_prefix_lm = False
        hook = hook_of(self.facts, info.architecture)
        checkpoint = self._checkpoint(node)
        quant.rewrite_for_architecture(hook, sizes.model_type, checkpoint)
        method = self._quant_method(checkpoint, sizes.model_type)
        hybrid = self._hybrid(info, node)
        chunked, cache = self._cache(info, node, pooling, hybrid)
        kv, skip, attention = self._kv(node, text, checkpoint, hybrid)
        groups = self._groups(sizes.num_experts > 0)
        use_mla = sizes.is_deepseek_mla and not mla_off and bool(text.get("is_causal", True))
        spec, draft_len = self._speculative(node, sizes, groups, info, dtype, length, use_mla)
        seqs, tokens = check_scheduler(self, groups, length, chunked, info)
        self._attention(attention, kv)
        # VllmConfig.__post_init__
        length = self._vllm_config(
            info, node, text, sizes, hook, cache, attention, chunked, hybrid, length, draft_len, spec, groups, use_mla
        )
        kv = kv_dtype.architecture_edit(self.facts, info.architecture, node, text, kv, self.capability)
        self._late(kv, dtype, groups, sizes, info, use_mla, method, checkpoint, cache, length)
        per_rank_kv = 1 if use_mla else max(1, sizes.total_num_kv_heads // groups.tp)
        return Resolution(
            EngineConfig(
                release=self.release,
                capability=self.capability,
                flags=self.flags,
                config=node.plain(),
                text=text.plain(),
                architecture=info.architecture,
                model_type=sizes.model_type,
                dtype=dtype,
                quantization=method,
                quant_config=checkpoint,
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
                enforce_eager=bool(self.flags.get("enforce_eager")),
                kv_cache_dtype=kv,
                block_size=cache.block_size,
                user_specified_block_size=self.flags.get("block_size") is not None,
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
                kv_transfer=self._transfer(),
                max_num_seqs=seqs,
                max_num_batched_tokens=tokens,
                notes=self.notes,
                sizes=sizes,
                model_class=info.at,
                cudagraph_mode=cudagraph_mode(self, pooling, node),
            ),
            self.refusals,
        )

    # ------------------------------------------------------------------------------------------------ ModelConfig
    def _load(self) -> HfConfig:
        loaded = load_config(
            self.classes, self.raw, self.hf_quant, self.flags, self.path, self.files, keep_going=self.keep_going
        )
        for refusal in loaded.refusals:
            self._met(refusal)
        self.notes += loaded.notes
        return loaded.node

    def _architecture(self, node: HfConfig, sizes: Sizes) -> tuple[ModelInfo, str]:
        runner, convert = self._word("runner", "auto"), self._word("convert", "auto")
        if sizes.model_type in ("qwen3_5", "qwen3_omni_moe") and self.files:
            for name in ("joint_head_config.json", "decision_config.json"):
                if name in self.files:
                    raise Unknown(f"{name} changes the architecture of this model")
        if sizes.model_type == "deepseek_v4" and (node.get("vision_n_layers") or 0) > 0:
            if sizes.architectures == ["DeepseekV4ForCausalLM"]:
                sizes.architectures = ["DeepseekV4ForConditionalGeneration"]
        if sizes.model_type in ("mimo_v2", "mimo_v2_flash") and node.get("vision_config"):
            sizes.architectures = ["MiMoV2OmniForCausalLM"]
        if not sizes.architectures:
            base = self.classes.base_models.get(sizes.model_type)
            if base is not None:
                sizes.architectures = [base]
        impl = self._word("model_impl", "auto")
        if impl not in ("auto", "vllm"):
            raise Unknown(f"--model-impl {impl} is not derived here")
        try:
            info = resolve_architecture(self.facts, self.classes, node, sizes.architectures, runner)
        except Refusal as refusal:
            self._met(refusal)
            info = ModelInfo(sizes.architectures[0] if sizes.architectures else "", "", frozenset({"generates"}))
        try:
            runner, convert = runner_and_convert(
                info, sizes.architectures, self.facts["architectures"], runner, convert
            )
        except Refusal as refusal:
            self._met(refusal)
        return info, runner

    def _dtype(self, node: HfConfig, pooling: bool) -> str:
        weights = self.files is not None and any(f.endswith(".safetensors") for f in self.files)
        asked = self._word("dtype", "auto")
        if asked == "auto" and config_dtype(node) is None and not weights:
            self.notes.append(
                "config.json names no dtype; without the weights at hand the engine's preferred one is taken"
            )
        try:
            return resolve_dtype(self.facts, node, asked, self.capability, pooling, weights)
        except Refusal as refusal:
            self._met(refusal)
            return "float16" if asked in ("half", "float16") else asked

    def _length(self, text: HfConfig, sizes: Sizes, window: Any, no_window: bool) -> int:
        asked = self._int("max_model_len")
        if window is not None and (isinstance(window, bool) or not isinstance(window, int)):
            raise Unknown(f"sliding_window is {window!r} in config.json, not a whole number")
        try:
            return resolve_max_model_len(
                text, sizes, asked, window or None, no_window, self._on("VLLM_ALLOW_LONG_MAX_MODEL_LEN")
            )
        except Refusal as refusal:
            self._met(refusal)
            return int(asked or 0)

    def _takes_images(self, node: HfConfig) -> bool:
        """Whether multimodal input can still appear; without it a prefix model attends causally."""
        if self.flags.get("language_model_only"):
            return False
        limits = self.flags.get("limit_mm_per_prompt")
        model_type = str(node.get("model_type"))
        if not isinstance(limits, dict) or model_type not in self.facts["mm_prefix_model_types"]:
            return True
        kinds = _MM_PREFIX_MODALITIES.get(model_type)
        if kinds is None:
            raise Unknown(f"which kinds of input {model_type} takes (--limit-mm-per-prompt)")
        counts = [limits.get(k, 1) for k in kinds]
        counts = [c.get("count", 1) if isinstance(c, dict) else c for c in counts]
        return any(c != 0 for c in counts) or bool(self.flags.get("enable_mm_embeds"))

    def _checkpoint(self, node: HfConfig) -> dict[str, Any] | None:
        try:
            return quant.checkpoint_config(node)
        except Refusal as refusal:
            self._met(refusal)
            return None

    def _quant_method(self, checkpoint: dict[str, Any] | None, model_type: str) -> str | None:
        asked = self.flags.get("quantization")
        try:
            return quant.resolve_method(
                self.facts, checkpoint, asked, model_type, bool(self.flags.get("allow_deprecated_quantization"))
            )
        except Refusal as refusal:
            self._met(refusal)
            return None

    def _hybrid(self, info: ModelInfo, node: HfConfig) -> bool:
        if "hybrid" not in info:
            return False
        kinds = node.get("layer_types")
        return kinds is None or not all(k in ("attention", "full_attention") for k in kinds)

    # ------------------------------------------------------------------------------------------------ CacheConfig
    def _cache(self, info: ModelInfo, node: HfConfig, pooling: bool, hybrid: bool) -> tuple[bool, CacheState]:
        attn = self._attn_type(info, node, pooling, hybrid)
        chunked_ok = attn not in ("encoder_only", "encoder_decoder")
        prefix_ok = attn in ("decoder", "hybrid") and not (pooling and attn == "hybrid")
        if pooling and attn == "decoder" and (info.seq_pooling in ("MEAN", "CLS") or info.tok_pooling == "STEP"):
            chunked_ok = prefix_ok = False
        chunked = self.flags.get("enable_chunked_prefill")
        prefix = self.flags.get("enable_prefix_caching")
        block = self._int("block_size")
        if block is not None and block <= 0:
            raise Unknown(f"--block-size {block} is not positive")
        return bool(chunked_ok if chunked is None else chunked), CacheState(
            block_size=16 if block is None else block,
            enable_prefix_caching=bool(prefix_ok if prefix is None else prefix),
            mamba_cache_dtype=self._word("mamba_cache_dtype", "auto"),
            mamba_ssm_cache_dtype=self._word("mamba_ssm_cache_dtype", "auto"),
            mamba_block_size=self._int("mamba_block_size"),
        )

    def _attn_type(self, info: ModelInfo, node: HfConfig, pooling: bool, hybrid: bool) -> str:
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

    def _kv(
        self, node: HfConfig, text: HfConfig, checkpoint: dict[str, Any] | None, hybrid: bool
    ) -> tuple[str, list[str], dict[str, Any]]:
        asked = self._word("kv_cache_dtype", "auto")
        known: list[str] = self.facts["cache_dtypes"]
        if known and asked not in known:
            raise value_error(
                "CacheConfig", f"Invalid kv_cache_dtype: {asked!r}. Valid values are: {known}", "vllm/config/cache.py"
            )
        now = asked if asked != "auto" else kv_dtype.from_checkpoint(self._top_quant(node, checkpoint))
        skip = [str(x) for x in self.flags.get("kv_cache_dtype_skip_layers") or []]
        attention = copy.deepcopy(self.flags.get("attention_config") or {})
        if kv_dtype.packed(now):
            try:
                skip = sorted(set(skip) | set(kv_dtype.boundary_layers(text, node, hybrid)))
            except Refusal as refusal:
                self._met(refusal)
        return now, skip, attention if isinstance(attention, dict) else {}

    def _top_quant(self, node: HfConfig, checkpoint: dict[str, Any] | None) -> dict[str, Any] | None:
        """Only the top-level settings are looked at for the KV dtype, and with the method's name filled in."""
        return checkpoint if node.get("quantization_config") is not None else None

    # ------------------------------------------------------------------------------------------------ the others
    def _groups(self, is_moe: bool) -> parallel.Parallel:
        try:
            return parallel.resolve_parallel(self.flags, is_moe, self.gpus)
        except Refusal as refusal:
            self._met(refusal)
            return parallel.Parallel(tp=self._int("tensor_parallel_size") or 1, pp=1, dp=1, dcp=1, pcp=1, expert=False)

    def _speculative(
        self,
        node: HfConfig,
        sizes: Sizes,
        groups: parallel.Parallel,
        info: ModelInfo,
        dtype: str,
        length: int,
        use_mla: bool,
    ) -> tuple[dict[str, Any] | None, int | None]:
        asked = speculative.asked(self.flags)
        if asked is None:
            return None, None
        try:
            return self._draft(asked, node, sizes, groups, info, length, use_mla)
        except Refusal as refusal:
            self._met(refusal)
            return None, None

    def _draft(
        self,
        asked: dict[str, Any],
        node: HfConfig,
        sizes: Sizes,
        groups: parallel.Parallel,
        info: ModelInfo,
        length: int,
        use_mla: bool,
    ) -> tuple[dict[str, Any] | None, int | None]:
        method = speculative.method_of(asked)
        out: dict[str, Any] = {**asked, "method": method}
        if method in ("ngram", "ngram_gpu"):
            speculative.check_ngram(asked)
            out["num_speculative_tokens"] = speculative.check_tokens(asked, None)
            self._verify_in(asked, groups, sizes, info, use_mla)
            return out, None
        if method != "mtp" or asked.get("model") is not None:
            raise Unknown(f"the draft model of speculative method {method!r}: its config.json is not at hand")
        if self.raw.get("auto_map") and self.flags.get("trust_remote_code") and not self.classes.own_types:
            raise Unknown("the draft of a model with code of its own")
        fresh = self._reload()
        draft, n = speculative.mtp_draft(fresh)
        tokens = speculative.check_tokens(asked, n)
        draft_sizes = sizes_of(self.facts, draft, draft.text(), self._on("VLLM_MLA_DISABLE"))
        draft_info = resolve_architecture(self.facts, self.classes, draft, draft_sizes.architectures, "draft")
        draft_len = resolve_max_model_len(
            draft.text(), draft_sizes, None, None, False, True, target_len=length, model="DraftModelConfig"
        )
        draft_len = min(draft_len, length)
        alone = parallel.Parallel(
            tp=groups.tp, pp=1, dp=1, dcp=1, pcp=1, expert=groups.expert and draft_sizes.num_experts > 0
        )
        self._verify_in(asked, alone, draft_sizes, draft_info, draft_sizes.is_deepseek_mla)
        out |= {
            "num_speculative_tokens": tokens,
            "n_predict": n,
            "architecture": draft_info.architecture,
            "model_class": draft_info.at,
            "model_type": draft_sizes.model_type,
            "head_size": draft_sizes.head_size,
            "use_mla": draft_sizes.is_deepseek_mla,
            "num_hidden_layers": draft_sizes.total_num_hidden_layers,
            "max_model_len": draft_len,
            "config": draft.plain(),
            "text": draft.text().plain(),
        }
        return out, draft_len

    def _reload(self) -> HfConfig:
        """The draft reads the checkpoint again: dict overrides of the target do not reach it."""
        bare = ParsedFlags(
            values={k: v for k, v in self.flags.values.items() if k != "hf_overrides"},
            defaults=self.flags.defaults,
            env=self.flags.env,
        )
        return load_config(self.classes, self.raw, self.hf_quant, bare, self.path, self.files, keep_going=True).node

    def _verify_in(
        self,
        asked: dict[str, Any],
        groups: parallel.Parallel,
        sizes: Sizes,
        info: ModelInfo,
        use_mla: bool,
    ) -> None:
        """The draft is held against its groups inside SpeculativeConfig, before the target is."""
        try:
            parallel.verify_model(groups, sizes, info, use_mla, "VllmConfig")
        except Refusal as refusal:
            if "Value error, " not in refusal.message:
                raise
            text = refusal.message.split("Value error, ", 1)[1].split(" [type=", 1)[0]
            raise speculative.view(asked, text) from None

    def _attention(self, attention: dict[str, Any], kv: str) -> None:
        backend = self.flags.get("attention_backend")
        if backend is not None:
            if attention.get("backend") is not None:
                self._met(
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
        if attention.get("backend") in ("CUTLASS_MSA", "TRITON_MSA"):
            attention["backend"] = None
        version = attention.get("flash_attn_version")
        if kv_dtype.packed(kv) and (version is None or version >= 3):
            attention["flash_attn_version"] = 2

    def _vllm_config(
        self,
        info: ModelInfo,
        node: HfConfig,
        text: HfConfig,
        sizes: Sizes,
        hook: str,
        cache: CacheState,
        attention: dict[str, Any],
        chunked: bool,
        hybrid: bool,
        length: int,
        draft_len: int | None,
        spec: dict[str, Any] | None,
        groups: parallel.Parallel,
        use_mla: bool,
    ) -> int:
        try:
            apply_hook(hook, node, text, cache, attention, self.capability)
            if hybrid or hook == "MambaModelConfig":
                mamba(cache, chunked, length)
        except Refusal as refusal:
            self._met(refusal)
        if draft_len is not None and spec is not None and spec.get("method") == "draft_model":
            return min(length, draft_len)
        return length

    def _transfer(self) -> dict[str, Any] | None:
        value = self.flags.get("kv_transfer_config")
        return value if isinstance(value, dict) else None

    def _late(
        self,
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
        online = self.flags.get("quantization_config") is not None
        checks: list[Any] = [
            lambda: kv_dtype.reject_mismatch(kv, dtype),
            lambda: parallel.verify_model(groups, sizes, info, use_mla),
            lambda: parallel.verify_nixl(groups, self._transfer(), use_mla),
            lambda: check_lora(self, info),
            lambda: quant.check_method(self.facts, method, checkpoint, self.hf_quant, dtype, self.capability, online),
            lambda: skips_tokenizer(self),
            lambda: kv_dtype.reject_nvfp4_mla(kv, use_mla),
            lambda: self._mamba_block(cache, length),
        ]
        for check in checks:
            try:
                check()
            except Refusal as refusal:
                self._met(refusal)

    def _mamba_block(self, cache: CacheState, length: int) -> None:
        if cache.mamba_block_size not in (None, length) and not cache.enable_prefix_caching:
            raise value_error(
                "VllmConfig",
                "--mamba-block-size can only be set with --enable-prefix-caching",
                "vllm/config/vllm.py:3449",
            )
