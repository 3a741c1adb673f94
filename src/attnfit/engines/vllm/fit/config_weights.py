"""The tensors a checkpoint of this config.json must have, for architectures whose dimensions say it all.

For a launch whose weights are not at hand. Named as checkpoints name them, so that the same sharding rules apply; held
against the parameters the real engine builds (docs/proofs.md). Encoders of images and sound are not derived.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

from attnfit.engines.vllm.fit.weights import Tensors
from attnfit.engines.vllm.launch.state import EngineConfig, Unknown

Named = Iterator[tuple[str, tuple[int, ...]]]


class Derived(NamedTuple):
    """All tensors at the fewest and at the most bytes their quantisation allows."""

    low: Tensors
    high: Tensors
    towers: bool  # the model has encoders that are not counted


_DENSE = frozenset(
    {
        "LlamaForCausalLM", "MistralForCausalLM", "Ministral3ForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
        "Gemma3ForConditionalGeneration", "Gemma3ForCausalLM", "Mistral3ForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
    }
)  # fmt: skip
_MOE = frozenset({"Qwen3MoeForCausalLM", "MiniMaxM2ForCausalLM", "Glm4MoeForCausalLM", "GptOssForCausalLM"})
_LATENT = frozenset({"DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM",
                     "KimiK25ForConditionalGeneration"})  # fmt: skip
_DELTA = frozenset({"Qwen3NextForCausalLM", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration"})
#: architectures whose tensors are known, every layer with some of its own
DERIVED = _DENSE | _MOE | _LATENT | _DELTA


def derive(cfg: EngineConfig) -> Derived:
    """Raises Unknown for an architecture or a quantisation that is not derived."""
    if cfg.architecture not in DERIVED:
        raise Unknown(
            f"the weights of {cfg.architecture} (no safetensors files at hand, and not derived from a config)"
        )
    rates = _rates(cfg)
    low: dict[str, tuple[str, tuple[int, ...], int]] = {}
    high: dict[str, tuple[str, tuple[int, ...], int]] = {}
    for name, shape in _tensors(_Dims(cfg)):
        plain = prod(shape) * rates.plain
        if len(shape) < 2 or name.endswith(".bias") or any(word in name for word in _NEVER):
            low[name] = high[name] = (rates.dtype, shape, plain)
            continue
        expert = ".experts." in name
        low[name] = _stored(shape, rates.low if expert or not rates.experts_only else None, rates, plain)
        sure = rates.all_sure or (expert and rates.experts_sure)
        high[name] = _stored(shape, rates.low if sure else None, rates, plain)
    towers = cfg.is_multimodal and not cfg.flags.get("language_model_only")
    return Derived(low, high, towers)


_NEVER = ("embed_tokens", "lm_head", ".gate.weight", "router", "conv1d", "indexer.weights_proj")


class _Rates(NamedTuple):
    """Bytes of one element of a quantised linear layer, its scales included."""

    low: float | None  # None: nothing is quantised
    all_sure: bool  # every linear layer is
    experts_sure: bool
    experts_only: bool
    plain: int  # bytes of an unquantised element
    dtype: str


def _stored(shape: tuple[int, ...], rate: float | None, rates: _Rates, plain: int) -> tuple[str, tuple[int, ...], int]:
    return (rates.dtype, shape, plain) if rate is None else ("U8", shape, int(prod(shape) * rate))


def _rates(cfg: EngineConfig) -> _Rates:
    quant, method = cfg.quant_config or {}, cfg.quantization
    plain = {"float32": 4}.get(cfg.dtype, 2)
    dtype = "F32" if plain == 4 else "BF16"
    if method is None:
        return _Rates(None, False, False, False, plain, dtype)
    if not quant:  # quantised while it loads: the checkpoint itself is not
        return _Rates(None, False, False, False, plain, dtype)
    block = quant.get("weight_block_size")
    listed = quant.get("modules_to_not_convert") or quant.get("ignored_layers") or quant.get("ignore")
    if method == "fp8":
        scale = 4 / (int(block[0]) * int(block[1])) if isinstance(block, list) and len(block) == 2 else 0.0
        return _Rates(1 + scale, not listed, True, False, plain, dtype)
    if method in ("gpt_oss_mxfp4", "mxfp4"):
        return _Rates(0.5 + 1 / 32, False, True, True, plain, dtype)
    if method == "modelopt_fp4":
        return _Rates(0.5 + 1 / 16, False, True, False, plain, dtype)
    if method == "modelopt_mixed":  # layer by layer NVFP4, FP8 or plain: between all of the first and all of the last
        return _Rates(0.5 + 1 / 16, False, False, False, plain, dtype)
    if method == "compressed-tensors":
        return _Rates(_compressed(quant), False, True, False, plain, dtype)
    if method in ("awq", "awq_marlin", "gptq", "gptq_marlin", "auto_awq", "auto_gptq"):
        bits = quant.get("bits") or quant.get("w_bit")
        if bits not in (4, 8):
            raise Unknown(f"the bits of {method} weights")
        return _Rates(bits / 8, False, True, False, plain, dtype)
    raise Unknown(f"the bytes of {method} weights (no safetensors files at hand)")


def _compressed(quant: dict[str, Any]) -> float:
    """The fewest bytes an element takes in any of the groups, with a scale of 16 bits for each group of channels."""
    groups = quant.get("config_groups")
    rates: list[float] = []
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict) or weights.get("num_bits") not in (4, 8):
            raise Unknown("the bits of compressed-tensors weights")
        size = weights.get("group_size")
        rates.append(weights["num_bits"] / 8 + (2 / size if isinstance(size, int) and size > 0 else 0))
    if not rates:
        raise Unknown("the bits of compressed-tensors weights")
    return min(rates)


class _Dims:
    def __init__(self, cfg: EngineConfig) -> None:
        self.cfg, self.text = cfg, cfg.text

    def __call__(self, *keys: str) -> int:
        for key in keys:
            value = self.text.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
        raise Unknown(f"{keys[0]} in config.json")

    def get(self, key: str, default: Any = None) -> Any:
        value = self.text.get(key)
        return default if value is None else value

    @property
    def hidden(self) -> int:
        return self("hidden_size")

    @property
    def head(self) -> int:
        given = self.text.get("head_dim")
        return given if isinstance(given, int) and given > 0 else self.hidden // self("num_attention_heads")


def _tensors(d: _Dims) -> Named:
    arch = d.cfg.architecture
    yield "model.embed_tokens.weight", (d("vocab_size"), d.hidden)
    if not (d.get("tie_word_embeddings") or d.cfg.config.get("tie_word_embeddings")):
        yield "lm_head.weight", (d("vocab_size"), d.hidden)
    for i in range(d("num_hidden_layers")):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (d.hidden,)
        yield at + "post_attention_layernorm.weight", (d.hidden,)
        parts = _latent(d, i) if arch in _LATENT else _delta(d, i) if arch in _DELTA else _attention(d)
        for name, shape in parts:
            yield at + name, shape
        for name, shape in _mlp(d, i):
            yield at + "mlp." + name, shape


def _attention(d: _Dims, gated: bool = False) -> Named:
    heads, kv, head = d("num_attention_heads"), d("num_key_value_heads", "num_attention_heads"), d.head
    yield "self_attn.q_proj.weight", (heads * head * (2 if gated else 1), d.hidden)
    yield "self_attn.k_proj.weight", (kv * head, d.hidden)
    yield "self_attn.v_proj.weight", (kv * head, d.hidden)
    yield "self_attn.o_proj.weight", (d.hidden, heads * head)
    if d.cfg.architecture == "GptOssForCausalLM":
        yield "self_attn.q_proj.bias", (heads * head,)
        yield "self_attn.k_proj.bias", (kv * head,)
        yield "self_attn.v_proj.bias", (kv * head,)
        yield "self_attn.o_proj.bias", (d.hidden,)


def _latent(d: _Dims, i: int) -> Named:
    """deepseek_v2.py: queries and the latent through a low rank, an indexer where attention is sparse."""
    from attnfit.engines.vllm.launch.plan import Ctx
    from attnfit.engines.vllm.launch.plans_mla import has_indexer

    heads, rank, rope = d("num_attention_heads"), d("kv_lora_rank"), d("qk_rope_head_dim")
    nope, value, q_rank = d("qk_nope_head_dim"), d("v_head_dim"), d.get("q_lora_rank")
    if q_rank:
        yield "self_attn.q_a_proj.weight", (q_rank, d.hidden)
        yield "self_attn.q_b_proj.weight", (heads * (nope + rope), q_rank)
    else:
        yield "self_attn.q_proj.weight", (heads * (nope + rope), d.hidden)
    yield "self_attn.kv_a_proj_with_mqa.weight", (rank + rope, d.hidden)
    yield "self_attn.kv_b_proj.weight", (heads * (nope + value), rank)
    yield "self_attn.o_proj.weight", (d.hidden, heads * value)
    if d.get("index_topk") and has_indexer(Ctx(d.cfg, d.text, d.cfg.architecture), i):
        index_heads, index_head = d("index_n_heads"), d("index_head_dim")
        yield "self_attn.indexer.wq_b.weight", (index_heads * index_head, q_rank or d.hidden)
        yield "self_attn.indexer.wk.weight", (index_head, d.hidden)
        yield "self_attn.indexer.weights_proj.weight", (index_heads, d.hidden)


def _delta(d: _Dims, i: int) -> Named:
    """Gated delta net, and gated full attention in between (qwen3_next.py)."""
    types = d.get("layer_types")
    every = d.get("full_attention_interval", 4)
    full = types[i] == "full_attention" if isinstance(types, list) and i < len(types) else (i + 1) % every == 0
    if full:
        yield from _attention(d, gated=True)
        return
    keys = d("linear_num_key_heads") * d("linear_key_head_dim")
    values = d("linear_num_value_heads") * d("linear_value_head_dim")
    yield "linear_attn.in_proj_qkvz.weight", (2 * keys + 2 * values, d.hidden)
    yield "linear_attn.in_proj_ba.weight", (2 * d("linear_num_value_heads"), d.hidden)
    yield "linear_attn.conv1d.weight", (2 * keys + values, 1, d("linear_conv_kernel_dim"))
    yield "linear_attn.out_proj.weight", (d.hidden, values)


def _mlp(d: _Dims, i: int) -> Named:
    experts = _experts(d)
    if not experts or _is_dense(d, i):
        yield from _gated("", d("intermediate_size"), d.hidden)
        return
    width = d("moe_intermediate_size", "intermediate_size")
    yield "gate.weight", (experts, d.hidden)
    for name, shape in _gated("experts.0.", width, d.hidden):
        yield name, (experts, *shape)
    if d.cfg.architecture == "GptOssForCausalLM":
        yield "experts.0.gate_proj.bias", (experts, 2 * width)
        yield "experts.0.down_proj.bias", (experts, d.hidden)
    shared = d.get("n_shared_experts", 0)
    shared_width = d.get("shared_expert_intermediate_size") or (shared or 0) * width
    if shared_width:
        yield from _gated("shared_experts.", shared_width, d.hidden)


def _gated(at: str, width: int, hidden: int) -> Named:
    yield at + "gate_proj.weight", (width, hidden)
    yield at + "up_proj.weight", (width, hidden)
    yield at + "down_proj.weight", (hidden, width)


def _experts(d: _Dims) -> int:
    for key in ("n_routed_experts", "num_local_experts", "num_experts"):
        value = d.text.get(key)
        if isinstance(value, int) and value > 0:
            return value
    return 0


def _is_dense(d: _Dims, i: int) -> bool:
    """Layers whose MLP has no experts: the first few, named ones, or all but every n-th."""
    step, frequency = d.get("decoder_sparse_step", 1), d.get("moe_layer_freq", 1)
    if i < d.get("first_k_dense_replace", 0) or i in d.get("mlp_only_layers", ()):
        return True
    return bool((i + 1) % step) or (isinstance(frequency, int) and bool(i % frequency))
