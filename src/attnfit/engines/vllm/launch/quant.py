"""The quantisation method: from the checkpoint, from `--quantization`, and whether this GPU and dtype allow it.

vllm/config/model.py `_verify_quantization`, vllm/config/vllm.py `_get_quantization_config`, and each method's own
`override_quantization_method` / `from_config`.
"""

from __future__ import annotations

import copy
from typing import Any

from attnfit.core import Capability
from attnfit.engines.vllm.launch.messages import plain, value_error
from attnfit.engines.vllm.launch.quant_config import check_config
from attnfit.engines.vllm.launch.quant_marlin import marlin_override
from attnfit.engines.vllm.launch.state import Unknown
from attnfit.hf.config import HfConfig

_MODEL, _VLLM = "vllm/config/model.py", "vllm/config/vllm.py"
#: --quantization words that quantise while loading (vllm/config/quantization.py)
ONLINE = (
    "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "mxfp8", "mxfp4", "int8_per_channel_weight_only",
    "nvfp4_per_token",
)  # fmt: skip


def checkpoint_config(facts: dict[str, Any], node: HfConfig) -> dict[str, Any] | None:
    """The checkpoint's quantisation settings with a `quant_method`, or None. Raises Refusal, Unknown."""
    found = _normalized(facts, node.get("quantization_config"), node)
    if found is None:
        inner = node.attrs.get("text_config")
        if isinstance(inner, HfConfig):
            found = _normalized(facts, inner.get("quantization_config"), inner)
    return found


def _normalized(facts: dict[str, Any], value: Any, node: HfConfig) -> dict[str, Any] | None:
    if value is None:
        value = node.get("compression_config")
        if value is None:
            return None
    if not isinstance(value, dict):
        raise Unknown("quantization_config in config.json is not an object")
    quant = copy.deepcopy(value)
    producer, inner = quant.get("producer", {}), quant.get("quantization", {})
    name = producer.get("name") if isinstance(producer, dict) else None
    legacy = isinstance(inner, dict) and "modelopt_quant_config" in inner and _knows(facts, "modelopt_legacy")
    if (name == "modelopt" or legacy) and isinstance(inner, dict) and value is not node.get("compression_config"):
        algo = inner.get("quant_algo")
        if algo is not None:
            method = facts["modelopt_producer_algos"].get(str(algo).upper())
            if method is None:
                raise value_error("ModelConfig", f"Unknown ModelOpt quant algo: {algo}")
            quant["quant_method"] = method
    method = quant.get("quant_method", "")
    if not isinstance(method, str):
        raise Unknown("quantization_config.quant_method in config.json is not a word")
    quant["quant_method"] = method.lower().replace("compressed_tensors", "compressed-tensors")
    return quant


def _knows(facts: dict[str, Any], check: str) -> bool:
    return check in facts.get("quant_checks", ())


def rewrite_for_architecture(facts: dict[str, Any], hook: str, model_type: str, quant: dict[str, Any] | None) -> None:
    """Method names some architectures rewrite before the method is resolved (vllm/model_executor/models/config.py).

    A release that does not know the new name does not rewrite to it: gpt-oss is plain mxfp4 up to 0.19.
    """
    if quant is None:
        return
    method = quant["quant_method"]
    if hook == "DeepseekV4ForCausalLMConfig" and method == "fp8" and model_type in ("deepseek_v4", "deepseek_v41"):
        quant["quant_method"] = "deepseek_v4_fp8"
    elif hook == "GptOssForCausalLMConfig" and method == "mxfp4" and "gpt_oss_mxfp4" in facts["quantization"]:
        quant["quant_method"] = "gpt_oss_mxfp4"
    elif hook == "KimiK3ForConditionalGenerationConfig" and quant.get("format") == "mxfp4-pack-quantized":
        quant["quant_method"] = "mxfp4" if method == "compressed-tensors" else method


def resolve_method(
    facts: dict[str, Any],
    quant: dict[str, Any] | None,
    asked: str | None,
    model_type: str,
    allow_deprecated: bool,
    capability: Capability,
    model: str = "ModelConfig",
) -> str | None:
    """The method's name. Raises Refusal where checkpoint and flag disagree, or nobody knows it."""
    known: list[str] = facts["quantization"]
    method = asked.lower() if isinstance(asked, str) else None
    if quant is not None:
        found: str | None = quant["quant_method"]
        override = _override(facts, quant, method, model_type, capability)
        if override is not None:
            found = method = override
        found = found or None
        if method is None:
            method = found
        elif method != found:
            raise value_error(
                model,
                f"Quantization method specified in the model config ({found}) does not match the quantization "
                f"method specified in the `quantization` argument ({method}).",
                _MODEL,
            )
    if method is not None and method not in known:
        raise value_error(model, f"Unknown quantization method: {method}. Must be one of {known}.", _MODEL)
    if method in facts["deprecated_quantization"] and not allow_deprecated:
        text = (
            "The quantization method %s is deprecated and will be removed in future versions of vLLM. To bypass, "
            "set `--allow-deprecated-quantization`."
        )
        raise value_error(model, str((text, method)), _MODEL)
    return method


def _override(
    facts: dict[str, Any], quant: dict[str, Any], asked: str | None, model_type: str, capability: Capability
) -> str | None:
    """The first method that claims the checkpoint, in the engine's order. Only methods the release has claim one."""
    method = quant["quant_method"]
    known: list[str] = facts["quantization"]
    if asked == "humming" and "humming" in known:
        if model_type == "gpt_oss" and method == "mxfp4":
            raise value_error(
                "ModelConfig",
                "For gpt-oss model, use '--moe-backend humming' instead of '--quantization humming'.",
                "vllm/model_executor/layers/quantization/humming.py",
            )
        return "humming"
    if method == "gptq" and "auto_gptq" in known and asked in (None, "gptq", "gptq_marlin", "auto_gptq", "marlin"):
        return "auto_gptq"
    if method == "awq" and "auto_awq" in known and asked in (None, "awq", "awq_marlin", "auto_awq", "marlin"):
        return "auto_awq"
    if f"auto_{method}" not in known and (marlin := marlin_override(facts, quant, asked, capability)):
        return marlin
    if method == "auto-round" and "auto-round" not in known:
        return "inc"
    if asked == "moe_wna16" and method in ("gptq", "awq"):
        if quant.get("bits") in (4, 8) and not quant.get("desc_act", False):
            return "moe_wna16"
        return None
    algo = modelopt_algo(quant) if method == "modelopt" or _knows(facts, "modelopt_any") else None
    if algo is not None:
        if algo == "FP8":
            return "modelopt"
        if "FP4" in algo:
            return "modelopt_fp4"
        if "MXFP8" in algo and "modelopt_mxfp8" in known:
            return "modelopt_mxfp8"
        if algo == "MIXED_PRECISION" and "modelopt_mixed" in known:
            return "modelopt_mixed"
    if method in ("mxfp4", "gpt_oss_mxfp4") and model_type == "gpt_oss" and "gpt_oss_mxfp4" in known:
        return "gpt_oss_mxfp4"
    v4 = model_type in ("deepseek_v4", "deepseek_v4_text", "deepseek_v41", "deepseek_v41_text")
    if method in ("fp8", "deepseek_v4_fp8") and (v4 or asked == "deepseek_v4_fp8"):
        return "deepseek_v4_fp8"
    if asked == "gguf" and facts.get("gguf_overrides"):
        return "gguf"
    return None


def modelopt_algo(quant: dict[str, Any]) -> str | None:
    """The upper-cased quant_algo of a ModelOpt checkpoint, else None."""
    if not str(quant.get("quant_method", "")).startswith("modelopt"):
        return None
    if "quantization" in quant:
        inner = quant["quantization"]
        return str(inner.get("quant_algo", "")).upper() if isinstance(inner, dict) else None
    return str(quant.get("quant_algo", "")).upper()


def check_method(
    facts: dict[str, Any],
    method: str | None,
    quant: dict[str, Any] | None,
    hf_quant: dict[str, Any] | None,
    dtype: str,
    capability: Capability,
    online_args: bool,
) -> None:
    """Minimum capability and activation dtypes, as the engine checks them. Raises Refusal."""
    if method is None:
        return
    entry: dict[str, Any] = facts["quant_classes"].get(method) or {}
    if method == "deepseek_v4_fp8":
        entry = facts["quant_classes"]["fp8"]
    online: dict[str, Any] = facts["quant_classes"].get("online") or {}  # none before 0.20
    if quant is not None and not (method == "modelopt_mixed" and "quantized_layers" not in quant):
        _check_config(facts, method, quant, capability)
    elif hf_quant is not None:
        _check_config(facts, method, hf_quant, capability)
    elif online and (method in ONLINE or method == "online"):
        if method == "online" and not online_args:
            raise Unknown("--quantization online without --quantization-config")
        entry = online
    elif entry.get("files"):
        raise value_error("VllmConfig", f"Cannot find the config file for {method}", _VLLM)
    elif method == "fp8":
        entry = online or entry
    elif method in _NEEDS_ARGUMENTS:
        raise plain("TypeError", _NEEDS_ARGUMENTS[method], "vllm/model_executor/model_loader/weight_utils.py")
    if "min_capability" not in entry:
        raise Unknown(f"what quantisation method {method} needs of the GPU")
    have = capability.major * 10 + capability.minor
    if have < entry["min_capability"]:
        raise value_error(
            "VllmConfig",
            f"The quantization method {method} is not supported for the current GPU. Minimum capability: "
            f"{entry['min_capability']}. Current capability: {have}.",
            f"{_VLLM}:931",
        )
    if dtype not in entry["dtypes"]:
        shown = ", ".join(f"torch.{d}" for d in entry["dtypes"])
        raise value_error(
            "VllmConfig",
            f"torch.{dtype} is not supported for quantization method {method}. Supported dtypes: [{shown}]",
            f"{_VLLM}:939",
        )


_NEEDS_ARGUMENTS = {
    "compressed-tensors": "CompressedTensorsConfig.__init__() missing 3 required positional arguments: "
    "'target_scheme_map', 'ignore', and 'quant_format'",
}


def _check_config(facts: dict[str, Any], method: str, quant: dict[str, Any] | None, capability: Capability) -> None:
    entry = facts["quant_classes"]["fp8" if method == "deepseek_v4_fp8" else method]
    if quant is not None:
        check_config(facts, entry, quant, capability)
