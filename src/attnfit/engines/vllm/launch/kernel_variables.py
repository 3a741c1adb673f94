"""VLLM_... variables that put kernels in or out, read as vllm/envs.py does.

Source (0.33.0): vllm/utils/deep_gemm.py:113, vllm/model_executor/layers/fused_moe/oracle/fp8.py:484,
vllm/model_executor/layers/quantization/utils/flashinfer_mxint4_moe.py:24,
vllm/model_executor/kernels/linear/__init__.py:653.
"""

from __future__ import annotations

from collections.abc import Mapping

from attnfit.engines.vllm.launch.state import EngineConfig, Unknown

# They change kernels' own support in ways that are not read here
_UNREAD = ("VLLM_DISABLED_KERNELS", "VLLM_HUMMING_INPUT_QUANT_CONFIG", "VLLM_HUMMING_MOE_GEMM_TYPE")


def kernel_facts_of(cfg: EngineConfig, env: Mapping[str, bool]) -> dict[str, bool]:
    """The environment's facts, with those that the launch's variables decide."""
    facts = dict(env)
    if cfg.quantization is not None:
        for name in _UNREAD:
            if cfg.flags.env.get(name):
                raise Unknown(f"which kernels are left with {name} set")
    deep_gemm, in_experts = _switch(cfg, "VLLM_USE_DEEP_GEMM"), _switch(cfg, "VLLM_MOE_USE_DEEP_GEMM")
    if deep_gemm is False:
        facts["deep_gemm"] = False
    if deep_gemm is not None or in_experts is not None:
        # Set at all, even to what is the default, the FP8 oracle takes it as a demand
        facts["deep_gemm_experts"] = deep_gemm is not False and in_experts is not False
    if _switch(cfg, "VLLM_USE_FLASHINFER_MOE_INT4"):
        facts["flashinfer_moe_int4"] = facts.get("flashinfer", True)
    return facts


def _switch(cfg: EngineConfig, name: str) -> bool | None:
    value = cfg.flags.env.get(name)
    if value is None:
        return None
    try:
        return bool(int(value))
    except ValueError:
        raise Unknown(f"what {name}={value} means: the engine reads a number") from None
