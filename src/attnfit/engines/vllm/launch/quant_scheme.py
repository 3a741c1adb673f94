"""From a checkpoint's quantisation to the scheme its experts ask for.

Sources (0.33.0): vllm/model_executor/layers/quantization/{fp8,modelopt,mxfp4}.py, compressed_tensors/, online/,
vllm/models/deepseek_v4/quant_config.py.
"""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

from attnfit.engines.vllm.launch.ct_experts import compressed_tensors_experts
from attnfit.engines.vllm.launch.expert_blocks import OracleOf, can_refine, pad_to_blocks, refined_block
from attnfit.engines.vllm.launch.inc_scheme import inc_layer
from attnfit.engines.vllm.launch.integer_scheme import awq_or_gptq, inc_experts, moe_wna16, packed
from attnfit.engines.vllm.launch.moe import MoeLayer
from attnfit.engines.vllm.launch.moe_layers import MoeSite
from attnfit.engines.vllm.launch.moe_select import Scheme
from attnfit.engines.vllm.launch.quark_scheme import fp8_keys, quark_experts
from attnfit.engines.vllm.launch.skipped import ROOTS, excluded_modules
from attnfit.engines.vllm.launch.state import EngineConfig, Unknown

UNQUANTISED = Scheme("unquantized")


def experts_scheme(cfg: EngineConfig, site: MoeSite, oracle_of: OracleOf, stage: str) -> tuple[Scheme, MoeLayer]:
    """The scheme of the model's experts, and the layer as the scheme has adapted it. Raises Refusal or Unknown."""
    method, quant = cfg.quantization, cfg.quant_config or {}
    layer = site.layer
    if method is None or (method != "compressed-tensors" and experts_excluded(cfg, site)):
        return UNQUANTISED, layer
    if method in _ONLINE and not quant:
        return _ONLINE[method], layer
    if method == "fp8":
        return _fp8(quant, layer, oracle_of, stage)
    if method == "deepseek_v4_fp8":
        if str(cfg.config.get("expert_dtype", "fp4")) != "fp4":
            return _fp8(quant, layer, oracle_of, stage)
        return Scheme("mxfp4", "kMxfp4Static", deepseek_v4=True), layer
    if method == "mxfp4":
        return Scheme("mxfp4", "kMxfp4Static", deepseek_v4=True), layer
    if method == "gpt_oss_mxfp4":
        return Scheme("mxfp4", "kMxfp4Static"), layer
    if method == "modelopt_fp4" and _algorithm(quant) == "W4A16_NVFP4":
        return _MODELOPT["W4A16_NVFP4"], layer
    if method in _FIXED:
        return _FIXED[method], layer
    if method in ("awq", "awq_marlin", "auto_awq", "gptq", "gptq_marlin", "auto_gptq"):
        return awq_or_gptq(quant, layer), layer
    if method == "moe_wna16":
        return moe_wna16(*packed(quant)), layer
    if method == "inc":
        own = inc_layer(quant, expert_names(site), "the experts")
        return (UNQUANTISED if own is None else inc_experts(own, layer)), layer
    if method == "quark" and (keys := fp8_keys(quant)) is not None:
        return quark_experts(*keys, stage), layer
    if method == "compressed-tensors":
        found = compressed_tensors_experts(quant, expert_names(site))
        return (UNQUANTISED if found is None else found), layer
    if method == "modelopt_mixed":
        return _mixed(quant, expert_names(site)), layer
    raise Unknown(f"how {method} runs the experts")


# `--quantization` on an unquantised checkpoint (vllm/config/quantization.py:195); "fp8" is fp8_per_tensor
_ONLINE: dict[str, Scheme] = {
    "fp8": Scheme("fp8", "kFp8StaticTensorSym", "kFp8DynamicTensorSym"),
    "fp8_per_tensor": Scheme("fp8", "kFp8StaticTensorSym", "kFp8DynamicTensorSym"),
    "fp8_per_block": Scheme("fp8", "kFp8Static128BlockSym", "kFp8Dynamic128Sym"),
    "mxfp8": Scheme("mxfp8", "kMxfp8Static", "kMxfp8Dynamic"),
    "mxfp4": Scheme("mxfp4", "kMxfp4Static", "kMxfp4Dynamic"),
    "experts_int8": Scheme("int8", "kInt8StaticChannelSym", "kInt8DynamicTokenSym"),
    "int8_per_channel_weight_only": Scheme("int8", "kInt8StaticChannelSym", "kInt8DynamicTokenSym"),
}
_FIXED: dict[str, Scheme] = {
    "modelopt": Scheme("fp8", "kFp8StaticTensorSym", "kFp8StaticTensorSym"),
    "modelopt_fp4": Scheme("nvfp4", "kNvfp4Static", "kNvfp4Dynamic"),
    "modelopt_mxfp8": Scheme("mxfp8", "kMxfp8Static", "kMxfp8Dynamic"),
    "mxfp8": Scheme("mxfp8", "kMxfp8Static", "kMxfp8Dynamic"),
}


# ModelOpt algorithm -> scheme (quantization/modelopt.py:1909)
_MODELOPT: dict[str, Scheme] = {
    "FP8": _FIXED["modelopt"],
    "NVFP4": _FIXED["modelopt_fp4"],
    "W4A16_NVFP4": Scheme("nvfp4", "kNvfp4Static", None),
    "MXFP8": _FIXED["mxfp8"],
}


def _algorithm(quant: dict[str, Any]) -> str:
    inner = quant.get("quantization")
    source = inner if isinstance(inner, dict) else quant
    return str(source.get("quant_algo") or "").upper()


def _mixed(quant: dict[str, Any], names: list[str]) -> Scheme:
    """The experts' algorithm in a MIXED_PRECISION checkpoint (modelopt.py:1745)."""
    inner = quant.get("quantization")
    listed = (inner if isinstance(inner, dict) else quant).get("quantized_layers")
    if not isinstance(listed, dict):
        raise Unknown("quantized_layers of the mixed-precision checkpoint")
    prefixes = [*(f"{name}." for name in names), *(name.removesuffix("experts") for name in names)]
    for prefix in prefixes:
        for key, info in listed.items():
            if key.startswith(prefix) and isinstance(info, dict):
                algorithm = str(info.get("quant_algo") or "").upper()
                if algorithm not in _MODELOPT:
                    raise Unknown(f"how the experts' algorithm {algorithm} runs")
                return _MODELOPT[algorithm]
    return UNQUANTISED


def method_without_eplb(cfg: EngineConfig, scheme: Scheme) -> str | None:
    """The engine's method class, if it does not take expert load balancing; None if it does."""
    if scheme is UNQUANTISED:
        return None
    named = {
        "gpt_oss_mxfp4": "GptOssMxfp4MoEMethod",
        "modelopt": "ModelOptFp8MoEMethod",
        "modelopt_mxfp8": "ModelOptMxFp8FusedMoE",
        "mxfp8": "ModelOptMxFp8FusedMoE",
    }
    if scheme.method is not None:
        return scheme.method
    method = cfg.quantization or ""
    if method in named and cfg.quant_config:
        return named[method]
    if scheme.oracle == "int8" and method == "compressed-tensors":
        return "CompressedTensorsW8A8Int8MoEMethod"
    if scheme.oracle == "wna16" and method != "compressed-tensors":
        awq = (cfg.quant_config or {}).get("quant_method") == "awq"
        return "AutoAWQMoEMethod" if awq else "AutoGPTQMoEMethod"
    return None


def expert_names(site: MoeSite) -> list[str]:
    """What checkpoints may call the experts of the first MoE layer."""
    return [
        f"{root}.{site.number}.{mlp}.experts"
        for root in ROOTS
        for mlp in ("mlp", "block_sparse_moe", "mixer", "feed_forward")
    ]


def experts_excluded(cfg: EngineConfig, site: MoeSite) -> bool:
    """Whether the checkpoint keeps the first MoE layer's experts unquantised."""
    names = expert_names(site)
    for pattern in excluded_modules(cfg.quant_config or {}):
        if pattern.startswith("re:"):
            continue  # regular expressions name linear layers of shared experts and attention
        bare, wild = pattern.rstrip("*").rstrip("."), any(sign in pattern for sign in "*?[")
        if any(name == bare or (wild and fnmatch(name, pattern)) for name in names):
            return True
    return False


def _fp8(quant: dict[str, Any], layer: MoeLayer, oracle_of: OracleOf, stage: str) -> tuple[Scheme, MoeLayer]:
    block = quant.get("weight_block_size")
    if not block:
        static = quant.get("activation_scheme", "dynamic") == "static"
        dynamic = "kFp8DynamicTokenSym" if layer.batch_invariant else "kFp8DynamicTensorSym"
        return Scheme("fp8", "kFp8StaticTensorSym", "kFp8StaticTensorSym" if static else dynamic), layer
    rows, cols = int(block[0]), int(block[1])
    refined = refined_block(layer, rows, cols)
    if layer.moe_backend != "auto" and not can_refine(layer, refined, oracle_of):
        layer = pad_to_blocks(layer, rows, cols, stage)
        refined = None if layer.per_rank % rows == 0 else refined
    weight = "kFp8Static128BlockSym" if (rows, cols) == (128, 128) else f"fp8block:{rows}"
    if refined is not None:
        weight = f"fp8block:{refined}"
    return Scheme("fp8", weight, "kFp8Dynamic128Sym"), layer
