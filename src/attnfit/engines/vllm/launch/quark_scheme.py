"""AMD Quark checkpoints: the scheme of linear layers and experts, as far as it is FP8.

Sources (0.33.0): quantization/quark/quark.py, quark_moe.py, schemes/*.py.
"""

from __future__ import annotations

from typing import Any

from attnfit.core import Capability
from attnfit.engines.vllm.launch.moe_select import Scheme
from attnfit.engines.vllm.launch.projections import Projection
from attnfit.engines.vllm.launch.state import Refusal

_WHERE = "vllm/model_executor/layers/quantization/quark/quark.py"
_LEAST_FP8 = 89


def fp8_keys(quant: dict[str, Any]) -> tuple[str, str] | None:
    """(weights, activations) of the checkpoint's one scheme in FP8; None where it is another, or several."""
    if quant.get("layer_quant_config") or quant.get("layer_type_quant_config"):
        return None
    whole = quant.get("global_quant_config")
    weights, inputs = (whole.get("weight"), whole.get("input_tensors")) if isinstance(whole, dict) else (None, None)
    if not (isinstance(weights, dict) and isinstance(inputs, dict)):
        return None
    if weights.get("dtype") != "fp8_e4m3" or inputs.get("dtype") != "fp8_e4m3" or weights.get("is_dynamic"):
        return None
    by = {"per_tensor": "kFp8StaticTensorSym", "per_channel": "kFp8StaticChannelSym"}.get(str(weights.get("qscheme")))
    if by is None:
        return None
    if inputs.get("is_dynamic"):
        token = inputs.get("qscheme") == "per_channel"
        return by, "kFp8DynamicTokenSym" if token else "kFp8DynamicTensorSym"
    return (by, "kFp8StaticTensorSym") if inputs.get("qscheme") == "per_tensor" else None


def _static_by_channel(weights: Any, inputs: Any) -> bool:
    """FP8 on both sides, with static scales of the activations that are not one for the whole tensor."""
    if not (isinstance(weights, dict) and isinstance(inputs, dict)):
        return False
    kinds = weights.get("dtype"), inputs.get("dtype"), weights.get("is_dynamic"), inputs.get("is_dynamic")
    fits = weights.get("qscheme") in ("per_tensor", "per_channel")
    return kinds == ("fp8_e4m3", "fp8_e4m3", False, False) and fits and inputs.get("qscheme") == "per_channel"


def check_quark(quant: dict[str, Any], capability: Capability, p: Projection) -> None:
    """Raise Refusal where a linear layer's scheme wants a newer GPU."""
    whole = quant.get("global_quant_config")
    one = isinstance(whole, dict) and not (quant.get("layer_quant_config") or quant.get("layer_type_quant_config"))
    if one and isinstance(whole, dict) and _static_by_channel(whole.get("weight"), whole.get("input_tensors")):
        raise Refusal(
            "model_init",
            f"NotImplementedError: No quark compatible scheme was found. Weight config: {whole['weight']}, Input "
            f"config: {whole['input_tensors']}",
            _WHERE,
        )
    have = capability.major * 10 + capability.minor
    if fp8_keys(quant) is not None and have < _LEAST_FP8:
        raise Refusal(
            "model_init",
            "RuntimeError: Quantization scheme is not supported for the current GPU. Min capability: "
            f"{_LEAST_FP8}. Current capability: {have}.",
            _WHERE,
        )


def quark_experts(weights: str, inputs: str, stage: str) -> Scheme:
    """The scheme of experts in FP8 (quark_moe.py, QuarkW8A8Fp8MoEMethod). Raises Refusal."""
    by = "per_channel" if "Channel" in weights else "per_tensor"
    given = "per_channel" if "Token" in inputs else "per_tensor"
    if by != given:
        raise Refusal(
            stage,
            "ValueError: For FP8 Fused MoE layers, only per-tensor, per-channel and per-block scales for weights and "
            f"activations are supported. Found {by}, {given}",
            "vllm/model_executor/layers/quantization/quark/quark_moe.py",
        )
    return Scheme("fp8", weights, inputs)
