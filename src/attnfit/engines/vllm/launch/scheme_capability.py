"""compressed-tensors: each scheme of linear layers has a least compute capability of its own, above the method's 7.0.

vllm/model_executor/layers/quantization/compressed_tensors/schemes/*.py, `get_min_capability` (0.12.0 to 0.33.0 read);
compressed_tensors.py, `get_scheme` and `_get_scheme_from_parts`. A scheme that is not recognised here is not checked.
"""

from __future__ import annotations

from typing import Any

from attnfit.core import Capability
from attnfit.engines.vllm.launch.state import EngineConfig, Refusal

_WHERE = "vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py"
_TURING = 16  # from 0.16.0 on, Marlin serves FP8 and NVFP4 weights from 7.5 on; before, from 8.0 on


def check_schemes(cfg: EngineConfig, capability: Capability) -> None:
    """Raise Refusal (stage model_init) where linear layers have a scheme that this GPU is too old for."""
    groups = (cfg.quant_config or {}).get("config_groups")
    if cfg.quantization != "compressed-tensors" or not isinstance(groups, dict):
        return
    have = capability.major * 10 + capability.minor
    early = int(cfg.release.split(".")[1]) < _TURING
    for group in groups.values():
        if not isinstance(group, dict) or "Linear" not in (group.get("targets") or ()):
            continue
        layout = group.get("format") or (cfg.quant_config or {}).get("format")
        least = _least(group.get("weights"), group.get("input_activations"), layout, early)
        if least is not None and have < least:
            raise Refusal(
                "model_init",
                "RuntimeError: ('Quantization scheme is not supported for ', 'the current GPU. Min capability: "
                f"{least}. ', 'Current capability: {have}.')",
                _WHERE,
            )


def _least(weights: Any, inputs: Any, layout: Any, early: bool) -> int | None:
    """The scheme's least capability as vLLM counts it (75: 7.5), or None where the scheme is not recognised."""
    if not isinstance(weights, dict) or not (inputs is None or isinstance(inputs, dict)):
        return None
    kind = (weights.get("type"), weights.get("num_bits"))
    if kind == ("float", 4) and inputs is None and weights.get("group_size") == 16:
        return 80 if early else 75
    if kind == ("float", 8) and layout == "float-quantized" and (inputs is None or inputs.get("num_bits") == 8):
        return 80 if early else 75
    if kind[0] == "int" and inputs is None and layout == "pack-quantized":
        return 75
    if kind == ("int", 8) and inputs is not None and layout == "int-quantized" and inputs.get("num_bits") == 8:
        return 75
    return None
