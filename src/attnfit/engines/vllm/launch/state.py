"""What the engine has resolved before it builds the model: the hand-over between the stages of a launch.

`engine_config` fills it (stage create_engine_config), `layers`, `construct` and `blocks` read it (stages selector,
model_init, update_block_size). Field names follow vLLM's own config objects.
"""

from __future__ import annotations

from typing import Any

import msgspec

from attnfit.core import Capability
from attnfit.engines.vllm.ours import Ours
from attnfit.hf.errors import Unknown as Unknown


class Refusal(Exception):
    """The engine refuses here. `message` is its own text, exception name first; `where` is its source file:line.

    `detail` is what the engine printed before, where that says more (the argument parser's own words).
    """

    def __init__(self, stage: str, message: str, where: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.stage, self.message, self.where, self.detail = stage, message, where, detail


class ParsedFlags(msgspec.Struct, kw_only=True):
    """`vllm serve` flags as the release's own parser would see them."""

    values: dict[str, Any]  # dest -> value, only what the user gave (JSON-valued flags are decoded)
    defaults: dict[str, Any]  # dest -> the parser's default, for every flag of the release
    env: dict[str, str]  # VAR=value in front of the command

    def get(self, dest: str) -> Any:
        return self.values.get(dest, self.defaults.get(dest))


class EngineConfig(msgspec.Struct, kw_only=True):
    """VllmConfig as far as a launch's verdict depends on it."""

    release: str
    capability: Capability
    flags: ParsedFlags
    # model
    config: dict[str, Any]  # config.json with --hf-overrides applied, as the config class of the release fills it
    text: dict[str, Any]  # hf_text_config: the same, or its nested text_config
    architecture: str
    model_type: str
    dtype: str  # float16 | bfloat16 | float32
    quantization: str | None  # resolved method name, e.g. "fp8", "modelopt_fp4"
    quant_config: dict[str, Any] | None  # quantization_config / hf_quant_config as found
    head_size: int
    num_heads: int  # per rank
    num_kv_heads: int  # per rank
    use_mla: bool
    is_hybrid: bool
    is_attention_free: bool = False
    is_mm_prefix_lm: bool = False
    is_moe: bool = False
    is_multimodal: bool = False
    rswa_window: int | None = None
    sliding_window: int | None = None
    max_model_len: int = 0
    runner_type: str = "generate"
    enforce_eager: bool = False
    # cache
    kv_cache_dtype: str = "auto"
    block_size: int | None = None  # cache_config.block_size at the end of create_engine_config
    user_specified_block_size: bool = False
    enable_prefix_caching: bool = True
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    mamba_cache_mode: str = "none"
    mamba_block_size: int | None = None
    kv_cache_dtype_skip_layers: tuple[str, ...] = ()
    # parallel
    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    pcp: int = 1
    expert_parallel: bool = False
    # attention, scheduler, the rest
    attention: dict[str, Any] = msgspec.field(default_factory=dict)  # attention_config: backend, backend_per_kind, ...
    speculative: dict[str, Any] | None = None  # resolved: method, num_speculative_tokens, draft config
    kv_transfer: dict[str, Any] | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    notes: list[str] = msgspec.field(default_factory=list)
    sizes: Any = None  # launch.sizes.Sizes: whole-model numbers, before they are divided among ranks
    text_class: str = ""  # of hf_text_config, "LlamaConfig"
    model_class: str = ""  # "vllm.models.deepseek_v32:GlmMoeDsaForCausalLM"
    cudagraph_mode: str | None = None  # None: not derived
    plugin: Ours | None = None  # attnfit's own


class KvLayer(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of cache-bearing layer of the model as built on this rank, in the order the engine builds them.

    `layers` writes these, `blocks` reads them. Field names follow the launch oracle's `kv_layers`.
    """

    layer_class: str  # "Attention", "MLAAttention", "MambaMixer2", "DeepseekV32IndexerCache", ...
    backend: str  # get_attn_backend().get_name(): "FLASHINFER", "GDN_ATTN", "DEEPSEEK_V32_INDEXER", ...
    kv_cache_dtype: str | None = None
    head_size: int | None = None
    num_kv_heads: int | None = None
    mamba_type: str | None = None  # "GDN_ATTN" | "MAMBA2" | ...: a state-space layer
    sliding_window: int | None = None
    attn_type: str = "decoder"
    use_sparse: bool = False
    role: str = "target"  # "target" | "draft"
    count: int = 1
    first_layer: int | None = None  # index of the first decoder layer of this kind
    ratio: int = 1  # tokens that one stored state covers
    width: int | None = None  # elements of one stored state, where the class does not call it head_size
