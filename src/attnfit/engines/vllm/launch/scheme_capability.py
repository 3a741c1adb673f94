"""compressed-tensors: each scheme of linear layers has a least compute capability of its own, above the method's 7.0.

vllm/model_executor/layers/quantization/compressed_tensors/schemes/*.py, `get_min_capability` (0.12.0 to 0.33.0 read);
compressed_tensors.py, `_check_scheme_supported`. A scheme that is not recognised here is not checked.
"""

from __future__ import annotations

from attnfit.core import Capability
from attnfit.engines.vllm.launch import ct_scheme
from attnfit.engines.vllm.launch.projections import projections
from attnfit.engines.vllm.launch.state import EngineConfig, Refusal

_WHERE = "vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py"
_TURING = 16  # from 0.16.0 on, Marlin serves FP8 and NVFP4 weights from 7.5 on; before, from 8.0 on
_ONE_SENTENCE = 29  # before, the exception carried three pieces of its sentence
#: scheme -> least capability as vLLM counts it (75: 7.5), and before 0.16.0
_LEAST = {
    "nvfp4": (75, 80),
    "fp8": (75, 80),
    "mxfp4": (80, 80),
    "mxfp8": (75, 80),
    "wna16": (75, 75),
    "int_packed": (75, 75),
    "int8": (75, 75),
    "int4_fp8": (90, 90),
}


def check_schemes(cfg: EngineConfig, capability: Capability) -> None:
    """Raise Refusal (stage model_init) where linear layers have a scheme that this GPU is too old for.

    For models whose layers are not understood one by one (`projections`): every group with the target "Linear".
    """
    groups = (cfg.quant_config or {}).get("config_groups")
    known = cfg.quantization != "compressed-tensors" or next(projections(cfg), None) is not None
    if known or not isinstance(groups, dict):
        return
    for group in groups.values():
        if isinstance(group, dict) and "Linear" in (group.get("targets") or ()):
            found = ct_scheme.group_of({**(cfg.quant_config or {}), "config_groups": {"": group}}, ())
            if found is not None:
                too_old(cfg, ct_scheme.linear_scheme(found, capability, "a linear layer"), capability)


def too_old(cfg: EngineConfig, scheme: str, capability: Capability) -> None:
    """Raise Refusal where the GPU's compute capability is below the scheme's."""
    minor, have = int(cfg.release.split(".")[1]), capability.major * 10 + capability.minor
    least = _LEAST.get(scheme, (0, 0))[minor < _TURING]
    if have >= least:
        return
    words = "Quantization scheme is not supported for ", "the current GPU. Min capability: "
    text = f"{words[0]}{words[1]}{least}. Current capability: {have}."
    if minor < _ONE_SENTENCE:
        text = f"('{words[0]}', '{words[1]}{least}. ', 'Current capability: {have}.')"
    raise Refusal("model_init", f"RuntimeError: {text}", _WHERE)
