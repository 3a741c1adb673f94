"""What refuses while the model is built, in the order it is built.

Between two selector questions the engine builds linear layers, experts, the chosen backend's implementation: each may
refuse. `check` walks the model's layers the same way; what comes first wins, a selector's refusal included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from attnfit.core import Capability, LayerQuestion
from attnfit.engines.vllm.launch.deepseek_v4 import IS_V4, check_v4, v4_kv_cache_dtype
from attnfit.engines.vllm.launch.draft_init import check_draft_experts
from attnfit.engines.vllm.launch.expert_blocks import check_expert_blocks
from attnfit.engines.vllm.launch.impl_checks import UNQUANTISED, check_impl
from attnfit.engines.vllm.launch.integer_scheme import groups_fit
from attnfit.engines.vllm.launch.kernel_variables import kernel_facts_of
from attnfit.engines.vllm.launch.linear import check_linear_backend, linear_steps
from attnfit.engines.vllm.launch.model_asserts import early_checks, layer_checks
from attnfit.engines.vllm.launch.moe import MoeLayer, Oracle
from attnfit.engines.vllm.launch.moe_layers import MoeSite, first_moe
from attnfit.engines.vllm.launch.moe_select import select
from attnfit.engines.vllm.launch.ours_checks import check_indexer
from attnfit.engines.vllm.launch.quant_scheme import experts_scheme, method_without_eplb
from attnfit.engines.vllm.launch.scheme_capability import check_schemes
from attnfit.engines.vllm.launch.state import EngineConfig, KvLayer, Refusal, Unknown

if TYPE_CHECKING:
    from attnfit.engines.vllm.launch.layers import LayerAnswer

MODEL_INIT, DRAFT_INIT = "model_init", "draft_init"


class Step(NamedTuple):
    """One thing that construction does: decoder layer, place within it, and the check."""

    layer: int
    place: int  # 0 projections before attention, 1 attention, 2 projections after it, 3 experts or MLP
    run: Callable[[], None]


def check(
    cfg: EngineConfig, answer: LayerAnswer, capability: Capability, env: Mapping[str, bool] | None = None
) -> None:
    """None if the model is built. Raises the first Refusal in the engine's order (stage selector, model_init or
    draft_init), or Unknown if a step that comes before any certain refusal cannot be decided.

    `env` says which optional packages and services the environment has; a fact it lacks is what `pip install` brings.
    """
    facts = kernel_facts_of(cfg, env or {})
    early_checks(cfg, capability)
    check_indexer(cfg)
    check_linear_backend(cfg, capability)
    for step in sorted(_steps(cfg, answer, capability, facts), key=lambda step: (step.layer, step.place)):
        step.run()
    if answer.unknown:
        raise Unknown("; ".join(answer.unknown))
    for layer in answer.layers:
        if layer.role != "target":
            _ask(cfg, layer, capability, DRAFT_INIT)
    check_draft_experts(cfg, capability, facts)


def _steps(cfg: EngineConfig, answer: LayerAnswer, capability: Capability, env: Mapping[str, bool]) -> Iterator[Step]:
    # the first linear layers of a decoder layer are built before its attention, unless attention is left out
    whole = "attn" not in str((cfg.quant_config or {}).get("ignore"))
    yield Step(0, 0 if whole else 2, partial(check_schemes, cfg, capability))
    if cfg.architecture in IS_V4:
        yield Step(0, 1, partial(check_v4, cfg, capability))
    for layer in answer.layers:
        if layer.role == "target":
            yield Step(_first_asked(layer, answer.kv_layers), 1, partial(_ask, cfg, layer, capability, MODEL_INIT))
    for index, place, run in layer_checks(cfg, capability):
        yield Step(index, place, run)
    for index, place, run in linear_steps(cfg, capability):
        yield Step(index, place, run)
    site = first_moe(cfg)
    if site is not None and site.number < _layers_here(cfg):
        yield Step(site.number, 3, partial(check_experts, cfg, site, capability, env, MODEL_INIT))


def _first_asked(layer: LayerQuestion, kv_layers: Sequence[KvLayer]) -> int:
    """The decoder layer that asks this question first, as far as the cache-bearing layers tell."""
    slides = layer.question.has_sliding_window
    for exact in (True, False):
        for row in kv_layers:
            same = row.role == layer.role and (row.sliding_window is not None) == slides
            if same and (not exact or row.backend == layer.selection.chosen) and row.mamba_type is None:
                return row.first_layer or 0
    return 0


def _layers_here(cfg: EngineConfig) -> int:
    """Decoder layers of pipeline rank 0, at least (the rest of an uneven split goes elsewhere)."""
    count = cfg.text.get("num_hidden_layers")
    return count // cfg.pp if isinstance(count, int) else 10**9


def _ask(cfg: EngineConfig, layer: LayerQuestion, capability: Capability, stage: str) -> None:
    selection = layer.selection
    if selection.error is not None:
        raise Refusal("selector", selection.error)
    if selection.chosen is None:
        raise Unknown(selection.unknown or "which attention backend the selector chooses")
    kv = layer_kv_cache_dtype(selection.chosen, layer.question.kv_cache_dtype or "auto")
    check_impl(cfg, layer, capability, stage, kv)


def check_experts(
    cfg: EngineConfig, site: MoeSite, capability: Capability, env: Mapping[str, bool], stage: str
) -> None:
    """Raise Refusal if the model's experts cannot be built."""
    layer = site.layer
    if site.rule.get("max_tp") == "experts" and cfg.tp > layer.num_experts:
        raise Refusal(
            stage,
            f"ValueError: Tensor parallel size {cfg.tp} is greater than the number of experts {layer.num_experts}.",
            site.rule["max_tp_where"],
        )
    balanced = layer.parallel.enable_eplb and bool(site.rule.get("eplb"))
    if balanced and layer.parallel.use_ep and layer.num_experts % layer.parallel.ep_size:
        raise Refusal(
            stage,
            "ValueError: EPLB currently only supports even distribution of experts across ranks. Got "
            f"{layer.num_experts} experts and {layer.parallel.ep_size} EP ranks.",
            "vllm/model_executor/layers/fused_moe/layer.py:262",
        )
    if layer.intermediate % layer.parallel.tp_size:
        raise Refusal(stage, "AssertionError: ", "vllm/model_executor/layers/fused_moe/config.py:1349")
    if not site.known and layer.moe_backend != "auto":
        raise Unknown(f"how {cfg.architecture} builds its experts, which --moe-backend {layer.moe_backend} must take")
    if cfg.quantization == "gguf":
        _gguf_experts(layer, stage)
        return
    scheme, layer = experts_scheme(cfg, site, lambda name: Oracle(name, capability, env), stage)
    select(scheme, layer, capability, env, stage, str(cfg.text.get("model_type", "")))
    if layer.parallel.enable_eplb and (method := method_without_eplb(cfg, scheme)):
        raise Refusal(
            stage,
            f"NotImplementedError: EPLB is not supported {method}.",
            "vllm/model_executor/layers/fused_moe/routed_experts.py:197",
        )
    if scheme.group is not None and not groups_fit(layer, scheme.group):
        raise Refusal(stage, "AssertionError: ", "vllm/model_executor/layers/quantization/moe_wna16.py:286")
    check_expert_blocks(cfg.quant_config or {}, scheme, layer, cfg.tp, stage)


def _gguf_experts(layer: MoeLayer, stage: str) -> None:
    """One method, which chooses among no kernels (quantization/gguf.py, GGUFMoEMethod). Raises Refusal, Unknown."""
    if layer.moe_backend != "auto":
        raise Unknown(f"what --moe-backend {layer.moe_backend} does to experts in GGUF")
    if layer.parallel.enable_eplb:
        raise Refusal(
            stage,
            "NotImplementedError: EPLB is not supported GGUFMoEMethod.",
            "vllm/model_executor/layers/fused_moe/routed_experts.py:197",
        )


def layer_kv_cache_dtype(backend: str, kv_cache_dtype: str) -> str:
    """The KV dtype a sparse MLA backend makes of the one it was asked with (mla_attention.py:359)."""
    if backend == "FLASHMLA_SPARSE" and kv_cache_dtype not in (*UNQUANTISED, "nvfp4_ds_mla"):
        return "fp8_ds_mla"
    if backend == "FLASHINFER_MLA_SPARSE_SM120" and kv_cache_dtype in ("auto", "fp8", "fp8_e4m3"):
        return "fp8_ds_mla"
    return kv_cache_dtype


def kv_cache_dtype_after_init(cfg: EngineConfig, answer: LayerAnswer) -> str:
    """The run's KV cache dtype once the model is built: sparse MLA layers rewrite it for the layers that follow.

    Stops at the first layer that the selector refuses.
    """
    if cfg.architecture in IS_V4:
        return v4_kv_cache_dtype(cfg, cfg.capability)
    kv = cfg.kv_cache_dtype
    scheme = (cfg.quant_config or {}).get("kv_cache_scheme")
    for layer in answer.layers:
        if layer.role != "target":
            continue
        chosen = layer.selection.chosen
        if chosen is None:
            break
        question = layer.question
        if question.use_mla:
            asked = question.kv_cache_dtype or "auto"
            became = layer_kv_cache_dtype(chosen, asked)
            kv = became if became != asked else kv
        elif scheme and kv == "auto" and cfg.quantization == "compressed-tensors":
            kv = "fp8"  # attention.py:287
    return kv
