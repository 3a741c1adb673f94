"""The fused MoE layer of a model: its dimensions, routing and place, from the config.

What each model class hands to `FusedMoEFactory` (vllm/model_executor/layers/fused_moe/layer.py of 0.33.0) is data in
`kernel_facts/moe_models.json`. A class without an entry is Unknown only where its answer would matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from attnfit.engines.vllm.launch import kernel_facts
from attnfit.engines.vllm.launch.moe import MoeLayer, MoeParallel
from attnfit.engines.vllm.launch.state import EngineConfig, Unknown


class MoeSite(NamedTuple):
    """The first fused MoE layer that the model builds."""

    number: int  # of the decoder layer
    layer: MoeLayer
    where: str
    known: bool  # the model class has an entry; else the common shape was assumed
    rule: dict[str, Any]


_GENERIC: dict[str, Any] = {
    "where": "",
    "experts": ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"],
    "intermediate": ["moe_intermediate_size", "intermediate_size"],
    "hidden": ["hidden_size"],
    "first": "all",
    "renormalize": True,
}


def first_moe(cfg: EngineConfig) -> MoeSite | None:
    """The first fused MoE layer on this rank, None for a dense model. Raises Unknown where a key is missing."""
    if not cfg.is_moe:
        return None
    known = kernel_facts.load("moe_models")["architectures"].get(cfg.architecture)
    rule: dict[str, Any] = known or _GENERIC
    text = cfg.text
    experts = _first_int(text, rule["experts"])
    if not experts:
        return None
    index = _FIRST[rule["first"]](cfg, text)
    if index is None:
        return None
    parallel = moe_parallel(cfg, rule)
    layer = MoeLayer(
        num_experts=experts + _redundant(cfg),
        hidden=_need(text, rule["hidden"]),
        intermediate=_need(text, rule["intermediate"]),
        parallel=parallel,
        dtype=cfg.dtype,
        activation=_activation(text, rule, index),
        routing=_routing(text, rule),
        logits=_logits(cfg, text, rule),
        has_bias=bool(rule.get("has_bias")),
        lora=bool(cfg.flags.get("enable_lora")),
        hash_routing=bool(rule.get("hash_first")),
        swiglu=(_float(text.get(rule.get("swiglu_limit", ""))), None, None),
        moe_backend=str(cfg.flags.get("moe_backend") or "auto").lower().replace("-", "_"),
        batch_invariant=cfg.flags.env.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"),
    )
    return MoeSite(index, layer, rule["where"], known is not None, rule)


def moe_parallel(cfg: EngineConfig, rule: dict[str, Any]) -> MoeParallel:
    """How the experts are split (fused_moe/config.py:1117)."""
    a2a = str(cfg.flags.get("all2all_backend") or "allgather_reducescatter")
    wants = rule.get("sequence_parallel")
    sequence = bool(wants) and cfg.expert_parallel and cfg.tp > 1
    if wants == "deepseek_v4":
        sequence = sequence and cfg.pp == 1 and cfg.dp > 1
    elif wants:
        sequence = sequence and cfg.dp > 1 and a2a in _SEQUENCE_PARALLEL
    flat = cfg.tp * cfg.dp * cfg.pcp
    use_ep = flat > 1 and cfg.expert_parallel
    return MoeParallel(
        tp_size=1 if use_ep else flat,
        pcp_size=cfg.pcp,
        dp_size=cfg.dp,
        ep_size=flat if use_ep else 1,
        sp_size=cfg.tp if sequence else 1,
        use_ep=use_ep,
        all2all_backend=a2a,
        enable_eplb=bool(cfg.flags.get("enable_eplb")),
    )


# vllm/config/parallel.py:768
_SEQUENCE_PARALLEL = (
    "allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency", "deepep_v2",
    "flashinfer_nvlink_one_sided", "passthrough", "mori_high_throughput", "mori_low_latency", "nixl_ep",
)  # fmt: skip


def _redundant(cfg: EngineConfig) -> int:
    config = cfg.flags.get("eplb_config")
    if isinstance(config, dict) and cfg.flags.get("enable_eplb"):
        return int(config.get("num_redundant_experts") or 0)
    return 0


def _first_int(text: dict[str, Any], keys: list[str]) -> int | None:
    for key in keys:
        value = text.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _need(text: dict[str, Any], keys: list[str]) -> int:
    value = _first_int(text, keys)
    if value is None:
        raise Unknown(f"one of {', '.join(keys)} in config.json (its experts need it)")
    return value


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _value(text: dict[str, Any], rule: Any, default: Any) -> Any:
    """A constant, or a key with its default."""
    if isinstance(rule, dict):
        return text.get(rule["key"], rule.get("default", default))
    return default if rule is None else rule


def _activation(text: dict[str, Any], rule: dict[str, Any], index: int) -> str:
    given = rule.get("activation")
    name = str(_value(text, given, "silu"))
    limits = text.get(rule.get("swiglustep", "")) or []
    if isinstance(limits, list) and index < len(limits) and limits[index] not in (None, 0):
        return "swiglustep"
    if name == "gelu_pytorch_tanh":
        name = "gelu_tanh"
    return f"{name}_no_mul" if isinstance(given, dict) and given.get("no_mul") else name


def _routing(text: dict[str, Any], rule: dict[str, Any]) -> str:
    """RoutingMethodType (fused_moe/config.py:135, router/router_factory.py)."""
    if "routing" in rule:
        return str(rule["routing"])
    scoring = _value(text, rule.get("scoring"), "softmax")
    renormalize = rule.get("renormalize", True)
    if isinstance(renormalize, str):
        renormalize = text.get(renormalize)
    renormalize = bool(_value(text, renormalize, True))
    bias = rule.get("bias", False)
    if isinstance(bias, dict):
        bias = text.get(bias["key"]) == bias["equals"] if "equals" in bias else bool(text.get(bias["key"]))
    grouped = bool(_value(text, rule.get("grouped"), False))
    groups = _first_int(text, ["n_group", "num_expert_group"]) if grouped else None
    if scoring == "sqrtsoftplus":
        return "DeepseekV4" if renormalize else "Unspecified"
    if bias:
        if scoring != "sigmoid" or not renormalize:
            return "Unspecified"
        return "DeepSeekV3" if groups else "MiniMax2"
    if scoring == "sigmoid":
        return "SigmoidRenorm" if renormalize else "Sigmoid"
    return "RenormalizeNaive" if renormalize else "Default"


def _logits(cfg: EngineConfig, text: dict[str, Any], rule: dict[str, Any]) -> str | None:
    given = rule.get("logits")
    if given == "deepseek":  # deepseek_v2.py:135
        fp32 = text.get("model_type") == "glm_moe_dsa" or text.get("moe_router_dtype") == "float32"
        return "float32" if fp32 else None
    return given


First = Callable[[EngineConfig, dict[str, Any]], int | None]


def _dense_first(cfg: EngineConfig, text: dict[str, Any]) -> int | None:
    return _first_int(text, ["first_k_dense_replace"]) or 0


def _deepseek(cfg: EngineConfig, text: dict[str, Any]) -> int | None:
    start = _first_int(text, ["first_k_dense_replace"]) or 0
    step = _first_int(text, ["moe_layer_freq"]) or 1
    return -(-start // step) * step


def _qwen3(cfg: EngineConfig, text: dict[str, Any]) -> int | None:
    dense = text.get("mlp_only_layers") or []
    step = _first_int(text, ["decoder_sparse_step"]) or 1
    layers = _first_int(text, ["num_hidden_layers"]) or 0
    return next((i for i in range(layers) if i not in dense and (i + 1) % step == 0), None)


def _nemotron_h(cfg: EngineConfig, text: dict[str, Any]) -> int | None:
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        found = pattern.find("E")
        return None if found < 0 else found
    kinds = text.get("layers_block_type") or text.get("layer_types")
    if isinstance(kinds, list):
        return next((i for i, kind in enumerate(kinds) if kind in ("moe", "E")), None)
    raise Unknown("hybrid_override_pattern in config.json")


def _llama4(cfg: EngineConfig, text: dict[str, Any]) -> int | None:
    step = _first_int(text, ["interleave_moe_layer_step"])
    return (step if step is not None else 1) - 1 if step != 0 else None


def _step3p5(cfg: EngineConfig, text: dict[str, Any]) -> int | None:
    named = text.get("moe_layers_enum")
    if isinstance(named, str) and named.strip():
        return min(int(i) for i in named.strip().split(","))
    kinds = text.get("mlp_layer_types")
    if isinstance(kinds, list):
        return next((i for i, kind in enumerate(kinds) if kind != "dense"), None)
    return 1


def _mlp_layer_types(cfg: EngineConfig, text: dict[str, Any]) -> int | None:
    kinds = text.get("mlp_layer_types")
    if isinstance(kinds, list):
        return next((i for i, kind in enumerate(kinds) if kind != "dense"), None)
    return _deepseek(cfg, text)


def _unknown(cfg: EngineConfig, text: dict[str, Any]) -> int | None:
    return 0


_FIRST: dict[str, First] = {
    "all": lambda cfg, text: 0,
    "first_k_dense": _dense_first,
    "deepseek": _deepseek,
    "kimi": _deepseek,
    "qwen3": _qwen3,
    "nemotron_h": _nemotron_h,
    "llama4": _llama4,
    "step3p5": _step3p5,
    "mlp_layer_types": _mlp_layer_types,
    "unknown": _unknown,
}
