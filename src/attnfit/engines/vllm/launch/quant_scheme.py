"""From a checkpoint's quantisation to the scheme its experts ask for.

Sources (0.33.0): vllm/model_executor/layers/quantization/{fp8,modelopt,mxfp4}.py, compressed_tensors/, online/,
vllm/models/deepseek_v4/quant_config.py.
"""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Any

from attnfit.engines.vllm.launch.expert_blocks import OracleOf, can_refine, pad_to_blocks, refined_block
from attnfit.engines.vllm.launch.moe import MoeLayer
from attnfit.engines.vllm.launch.moe_layers import MoeSite
from attnfit.engines.vllm.launch.moe_select import Scheme
from attnfit.engines.vllm.launch.state import EngineConfig, Unknown

UNQUANTISED = Scheme("unquantized")


def experts_scheme(cfg: EngineConfig, site: MoeSite, oracle_of: OracleOf, stage: str) -> tuple[Scheme, MoeLayer]:
    """The scheme of the model's experts, and the layer as the scheme has adapted it. Raises Refusal or Unknown."""
    method, quant = cfg.quantization, cfg.quant_config or {}
    layer = site.layer
    if method is None or experts_excluded(cfg, site):
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
        return _awq_or_gptq(quant, layer), layer
    if method == "compressed-tensors":
        return _compressed_tensors(quant, layer), layer
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


def excluded_modules(quant: dict[str, Any]) -> list[str]:
    inner = quant.get("quantization")
    inner = inner if isinstance(inner, dict) else {}
    for source in (quant, inner):
        for key in ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers"):
            value = source.get(key)
            if isinstance(value, list):
                return [str(each) for each in value]
    return []


def expert_names(site: MoeSite) -> list[str]:
    """What checkpoints may call the experts of the first MoE layer."""
    return [
        f"{root}.{site.number}.{mlp}.experts"
        for root in ("model.layers", "model.language_model.layers", "language_model.model.layers", "backbone.layers")
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


def _compressed_tensors(quant: dict[str, Any], layer: MoeLayer) -> Scheme:
    groups = quant.get("config_groups")
    groups = groups if isinstance(groups, dict) else {}
    if len(groups) != 1:
        raise Unknown("which of the checkpoint's quantisation groups the experts belong to")
    group = next(iter(groups.values()))
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    kind, bits, strategy = weights.get("type"), weights.get("num_bits"), weights.get("strategy")
    form = group.get("format") or quant.get("format")
    if kind == "int" and inputs is None and strategy in ("group", "channel") and form == "pack-quantized":
        return _wna16(weights, layer)
    if kind == "float" and bits == 8 and isinstance(inputs, dict) and inputs.get("num_bits") == 8:
        if strategy == "block":
            return Scheme("fp8", "kFp8Static128BlockSym", "kFp8Dynamic128Sym", cutlass=True)
        weight = {"channel": "kFp8StaticChannelSym", "tensor": "kFp8StaticTensorSym"}.get(str(strategy))
        tensor = "kFp8Dynamic128Sym" if inputs.get("dynamic") else "kFp8StaticTensorSym"
        act = {"token": "kFp8DynamicTokenSym", "tensor": tensor}.get(str(inputs.get("strategy")))
        if weight and act:
            return Scheme("fp8", weight, act, cutlass=True)
    if kind == "float" and bits == 4 and strategy == "tensor_group":
        return Scheme("nvfp4", "kNvfp4Static", "kNvfp4Dynamic" if inputs else None)
    if kind == "float" and bits == 4 and weights.get("group_size") == 32 and inputs is None:
        return Scheme("mxfp4", "kMxfp4Static")
    if kind == "int" and bits == 8 and isinstance(inputs, dict) and inputs.get("strategy") == "token":
        return Scheme("int8", "kInt8StaticChannelSym", "kInt8DynamicTokenSym")
    raise Unknown(f"how compressed-tensors runs experts of {bits}-bit {kind} weights by {strategy}")


def _wna16(weights: dict[str, Any], layer: MoeLayer) -> Scheme:
    bits, size = weights.get("num_bits"), weights.get("group_size")
    if bits not in (4, 8):
        raise Unknown(f"how experts of {bits}-bit integer weights run")
    group = -1 if size is None else int(size)
    ordered = weights.get("actorder") == "group"
    return integer_scheme(bits, group, bool(weights.get("symmetric", True)), ordered=ordered, bias=False)


def integer_scheme(bits: int, group: int, symmetric: bool, *, ordered: bool, bias: bool, awq: bool = False) -> Scheme:
    """4- or 8-bit integer experts; which backends cannot read the checkpoint is oracle/int_wna16.py:146."""
    compressed = not bias  # the AWQ and GPTQ integrations may carry an expert bias
    base = "kInt8Static" if bits == 8 else "kInt4Static32" if group == 32 and compressed else "kInt4Static"
    weight = base if symmetric or awq or not compressed else f"{base}Asym"

    def skip(backend: str, moe: MoeLayer) -> str | None:
        if backend == "FLASHINFER_TRTLLM" and (bias or not symmetric):
            return "zero points and bias are not supported"
        if backend == "RDNA3" and bias:
            return "only compressed-tensors checkpoints are supported"
        if backend == "RDNA3" and not symmetric:
            return "asymmetric checkpoints are not supported"
        if backend == "TRITON" and bias:
            return "expert bias is not supported"
        if backend in ("TRITON", "RDNA3") and ordered:
            return "group activation ordering is not supported"
        if backend in ("MARLIN", "BATCHED_MARLIN") and not marlin_fits(moe, group):
            return "Marlin not supported for this layer"
        return None

    return Scheme("wna16", weight, None, skip=skip)


def _moe_wna16(bits: int, group: int, symmetric: bool) -> Scheme:
    """quantization/moe_wna16.py:219: where AWQ and GPTQ experts go that Marlin cannot take."""
    if bits not in (4, 8):
        raise Unknown(f"how experts of {bits}-bit integer weights run")

    def skip(backend: str, moe: MoeLayer) -> str | None:
        if backend == "FLASHINFER_TRTLLM" and not symmetric:
            return "zero points and bias are not supported"
        if backend == "RDNA3":
            return "only compressed-tensors checkpoints are supported"
        if backend in ("MARLIN", "BATCHED_MARLIN", "EMULATION"):
            return "the MoeWNA16 checkpoint layout is not supported"
        return None

    weight = "kInt8Static" if bits == 8 else "kInt4Static32" if group == 32 else "kInt4Static"
    return Scheme("wna16", weight, None, skip=skip, method="MoeWNA16Method", group=group)


def groups_fit(moe: MoeLayer, group: int) -> bool:
    """Whether halving the group makes it divide the shard before it falls below 32 (moe_wna16.py:283)."""
    while moe.per_rank % group or moe.hidden % group:
        group //= 2
        if group < 32:
            return False
    return True


def marlin_fits(moe: MoeLayer, group: int) -> bool:
    """utils/marlin_utils.py:356, tiles padded."""
    whole = moe.hidden % 128 == 0 and (group <= 0 or moe.per_rank % group == 0)
    return whole and group in (-1, 32, 64, 128)


def _awq_or_gptq(quant: dict[str, Any], layer: MoeLayer) -> Scheme:
    """quantization/auto_awq.py:337, auto_gptq.py:238. Layers that Marlin cannot take go another way."""
    awq = quant.get("quant_method") == "awq"
    bits = quant.get("bits", quant.get("w_bit", 4))
    group = quant.get("group_size", quant.get("q_group_size", -1))
    if not isinstance(bits, int) or not isinstance(group, int):
        raise Unknown("bits and group_size of the quantised checkpoint")
    if quant.get("dynamic"):
        raise Unknown("which of the checkpoint's dynamic GPTQ rules the experts follow")
    symmetric = not quant.get("zero_point", True) if awq else bool(quant.get("sym", True))
    if not marlin_fits(layer, group):
        return _moe_wna16(bits, group, symmetric)
    return integer_scheme(bits, group, symmetric, ordered=False, bias=True, awq=awq)
