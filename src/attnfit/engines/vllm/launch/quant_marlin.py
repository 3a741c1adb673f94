"""GPTQ and AWQ checkpoints in the releases that name the Marlin kernels as methods of their own (up to 0.23)."""

from __future__ import annotations

from typing import Any

from attnfit.core import Capability
from attnfit.engines.vllm.launch.state import Unknown

#: vllm/model_executor/layers/quantization/utils/marlin_utils.py, MARLIN_SUPPORTED_GROUP_SIZES
_GROUP_SIZES = (-1, 32, 64, 128)


def marlin_override(
    facts: dict[str, Any], quant: dict[str, Any], asked: str | None, capability: Capability
) -> str | None:
    """`gptq_marlin` or `awq_marlin` where the engine converts the checkpoint to it, else None.

    vllm/model_executor/layers/quantization/gptq_marlin.py and awq_marlin.py, `override_quantization_method`.
    Raises Unknown where the checkpoint's own format decides in a way that is not followed here.
    """
    method = quant["quant_method"]
    if method not in ("gptq", "awq"):
        return None
    name = f"{method}_marlin"
    if name not in facts["quantization"]:
        return None
    if quant.get("checkpoint_format") in ("marlin_24", "bitblas") or quant.get("is_bitblas_format"):
        raise Unknown(f"how this release reads a {method} checkpoint in the format {quant.get('checkpoint_format')}")
    if asked not in (None, "marlin", name):
        return None
    if _convertible(method, quant) and _major_minor(capability) >= facts["quant_classes"][name]["min_capability"]:
        return name
    if method == "gptq" and "gptq_bitblas" in facts["quantization"] and asked is None:
        raise Unknown("whether this release hands a GPTQ checkpoint that Marlin does not take to BitBLAS")
    return None


def _convertible(method: str, quant: dict[str, Any]) -> bool:
    """Bits, symmetry or zero points, and group size as Marlin takes them."""
    keys = ("bits", "group_size", "sym", "desc_act") if method == "gptq" else ("bits", "group_size", "zero_point")
    if any(quant.get(key) is None for key in keys) or quant["group_size"] not in _GROUP_SIZES:
        return False
    if method == "gptq":
        return quant["bits"] in (4, 8) and quant["sym"] is True
    return quant["bits"] == 4 and quant["zero_point"] is True


def _major_minor(capability: Capability) -> int:
    return capability.major * 10 + capability.minor
