"""What ModelOpt's config classes demand of a checkpoint (quantization/modelopt.py, 0.12.0 to 0.33.0 read)."""

from __future__ import annotations

from attnfit.engines.vllm.launch.quant_read import Quant, Read


def _modelopt(read: Read) -> Quant:
    """ModelOptQuantConfigBase.from_config: the settings, where they say an algorithm that the release knows."""
    quant = read.quant
    inner = quant.get("quantization", quant)
    if not isinstance(inner, dict):
        raise read.refuse("Expected 'quantization' to be a dictionary in config")
    algorithm = str(inner.get("quant_algo") or "").upper()
    if not algorithm:
        raise read.refuse("Missing 'quant_algo' in quantization config")
    excluded = inner.get("exclude_modules" if inner is not quant else "ignore", [])
    if not isinstance(excluded, list):
        raise read.refuse(f"exclude_modules must be a list, got {type(excluded)}")
    known = read.facts["modelopt_algos"]
    if algorithm not in known:
        raise read.refuse(
            f"ModelOpt currently only supports: {known} quantizations in vLLM. Please check the "
            "`hf_quant_config.json` file for your model's quant configuration."
        )
    return {**inner, "quant_algo": algorithm}


def modelopt_fp8(read: Read) -> None:
    algorithm = _modelopt(read)["quant_algo"]
    taken = [name for name in ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO") if name in read.facts["modelopt_algos"]]
    if "modelopt_fp8_algos" in read.checks and algorithm not in taken:
        raise read.refuse(f"Unsupported ModelOpt FP8 quant_algo for vLLM: {algorithm}. Supported: {' / '.join(taken)}.")


def modelopt_fp4(read: Read) -> None:
    said = _modelopt(read)
    if "NVFP4" in said["quant_algo"]:
        _fields(read, "NVFP4", "group_size", "kv_cache_quant_algo", "exclude_modules")
    taken = [name for name in ("NVFP4", "W4A16_NVFP4") if name in read.facts["modelopt_algos"]]
    if "modelopt_fp4_algos" in read.checks and said["quant_algo"] not in taken:
        text = f"Unsupported ModelOpt NVFP4 quant_algo: {said['quant_algo']}. Supported: {' / '.join(taken)}."
        raise read.refuse(text)


def modelopt_mxfp8(read: Read) -> None:
    quant = read.quant
    if "mxfp8" in read.facts["quant_classes"] and "quantization" not in quant and not quant.get("quant_algo"):
        return  # since 0.24 a checkpoint of method mxfp8 need not say more
    if "MXFP8" in _modelopt(read)["quant_algo"]:
        _fields(read, "MXFP8", "kv_cache_quant_algo", "exclude_modules")
    else:
        text = "MXFP8 quantization requires a serialized checkpoint. Dynamic quantization is not supported."
        raise read.refuse(text)


def modelopt_mixed(read: Read) -> None:
    if not _modelopt(read).get("quantized_layers"):
        raise read.refuse(
            "MIXED_PRECISION quant_algo requires a non-empty 'quantized_layers' mapping in the quantization config."
        )


def _fields(read: Read, name: str, *fields: str) -> None:
    inner = read.quant.get("quantization")
    missing = [field for field in fields if isinstance(inner, dict) and field not in inner]
    if missing:
        text = f"{name} quantization requires the following fields in hf_quant_config.json: {missing}"
        raise read.refuse(text)
