"""The dtype the engine computes in: vllm/config/model.py, `_get_and_verify_dtype`."""

from __future__ import annotations

from typing import Any

from attnfit.core import Capability
from attnfit.engines.vllm.launch.messages import value_error
from attnfit.engines.vllm.launch.state import Refusal, Unknown
from attnfit.hf.config import HfConfig

_NAMES = {
    "half": "float16", "float16": "float16", "float": "float32", "float32": "float32", "bfloat16": "bfloat16",
}  # fmt: skip
_REASON = "Numerical instability. Please use bfloat16 or float32 instead."


def supported_dtypes(capability: Capability) -> list[str]:
    """What the platform computes in, preferred first (vllm/platforms/cuda.py)."""
    if capability >= (8, 0):
        return ["bfloat16", "float16", "float32"]
    if capability >= (6, 0):
        return ["float16", "float32"]
    return ["float32"]


def config_dtype(node: HfConfig) -> str | None:
    """The dtype config.json names, or None where only the weights would tell (then the engine reads them)."""
    found = node.get("dtype")
    if found is None:
        found = node.text().get("dtype")
    for sub in ("vision_config", "encoder_config"):
        part = node.attrs.get(sub)
        if found is None and isinstance(part, HfConfig):
            found = part.get("dtype")
        elif found is None and isinstance(part, dict):
            found = part.get("dtype", part.get("torch_dtype"))
    if found is None:
        return None
    name = str(found).removeprefix("torch.")
    if name not in ("float16", "bfloat16", "float32", "float64"):
        raise Unknown(f"dtype {found!r} in config.json is not one the engine names")
    return name


def resolve_dtype(
    facts: dict[str, Any],
    node: HfConfig,
    asked: str,
    capability: Capability,
    pooling: bool,
    has_weights: bool,
    of_weights: str | None = None,
) -> str:
    """`--dtype` resolved against the model and the GPU. Raises Refusal.

    Without a dtype in config.json the engine looks into the weights; with none at hand it takes float32 (and then the
    preferred dtype). `has_weights`: there are weights; `of_weights`: what the engine reads off them, None: not known.
    """
    refused: list[str] = facts["float16_refused"]
    model_type = node.get("model_type")
    asked = asked.lower()
    if asked != "auto":
        if asked not in _NAMES:
            raise value_error("ModelConfig", f"Unknown dtype: {asked!r}", "vllm/config/model.py")
        dtype = _NAMES[asked]
    else:
        named = config_dtype(node) or of_weights
        if named is None and has_weights:
            raise Unknown("dtype: config.json does not name one (the engine reads it from the weights)")
        able = [d for d in supported_dtypes(capability) if not (model_type in refused and d == "float16")]
        preferred = "float16" if pooling and "float16" in able else able[0]
        dtype = preferred if named in (None, "float32") else str(named)
        if dtype not in able:
            dtype = preferred
    if model_type in refused and dtype == "float16":
        raise value_error(
            "ModelConfig",
            f"The model type {model_type!r} does not support float16. Reason: {_REASON}",
            "vllm/config/model.py",
        )
    return dtype


def device_refuses(dtype: str, capability: Capability) -> Refusal | None:
    """What a worker says once it has its GPU, before it builds the model (vllm/v1/worker/gpu_worker.py:498)."""
    if dtype != "bfloat16" or capability >= (8, 0):
        return None
    return Refusal(
        "init_device",
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your {device} GPU has "
        f"compute capability {capability}. You can use float16 instead by explicitly setting the `dtype` flag in CLI, "
        "for example: --dtype=half.",
        "vllm/platforms/cuda.py:650",
    )
