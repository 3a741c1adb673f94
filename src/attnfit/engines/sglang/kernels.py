"""Which of SGLang's own Triton kernels a launch will start for linear attention, and with which shapes.

What of them needs the release's code (tiles, strides, autotune tables) is asked in the child: `triton_kernels/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnfit.engines import Circumstances, KernelAsk
from attnfit.engines.sglang.answers import Answer

BACKEND = "triton linear attention"
SSM_DTYPES = ("float32", "bfloat16", "float16")
_HEADS = ("linear_num_key_heads", "linear_num_value_heads")
_SIZES = ("linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim")


def asks(circumstances: Circumstances, answer: Answer) -> list[KernelAsk]:
    """One for the linear attention layers of a launch that passes and runs them on Triton; else none."""
    linear = answer.get("linear_attn") or {}
    steps = [step for step in ("prefill", "decode") if linear.get(step) == "triton"]
    config = circumstances.model.config
    nested = config.get("text_config")
    text: Mapping[str, Any] = nested if isinstance(nested, dict) else config
    if answer.get("ok") is not True or not steps or text.get(_HEADS[0]) is None:
        return []
    resolved = answer.get("resolved") or {}
    sizes: dict[str, int] = {}
    for name in (*_HEADS, *_SIZES):
        value = text.get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            return [KernelAsk(BACKEND, {}, unknown=f"{name} of config.json")]
        sizes[name] = value
    ranks = int(resolved.get("tp_size") or 1)
    if resolved.get("enable_dp_attention"):
        ranks //= int(resolved.get("dp_size") or 1)
    if any(sizes[name] % ranks for name in _HEADS):
        return [KernelAsk(BACKEND, {}, unknown=f"linear attention heads that do not divide by {ranks} ranks")]
    # configs/mamba_utils.py:52 (0.5.9 and 0.5.23): the flag's variable, the config, float32
    said = circumstances.variables.get("SGLANG_MAMBA_SSM_DTYPE")
    state = resolved.get("mamba_ssm_dtype") or said or text.get("mamba_ssm_dtype") or "float32"
    dtype = _dtype(resolved, text, config)
    if state not in SSM_DTYPES or dtype is None:
        return [KernelAsk(BACKEND, {}, unknown=f"the dtype of the states ({state}) or of the model ({dtype})")]
    heads = {name: sizes[name] // ranks for name in _HEADS}
    about = {"kernel": "gdn", "steps": steps, "dtype": dtype, "state_dtype": state, **sizes, **heads}
    keys, values = heads.values()
    inputs = (
        f"linear attention with {keys} key heads of {sizes['linear_key_head_dim']} and {values} value heads of "
        f"{sizes['linear_value_head_dim']} a rank, {dtype}, states in {state}, {' and '.join(steps)} on Triton"
    )
    return [KernelAsk(BACKEND, about, (inputs,))]


def _dtype(resolved: Mapping[str, Any], text: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """Of the model as it is served. "auto": what config.json says; float32 is served in float16, else as it is."""
    named = resolved.get("dtype")
    if named in ("auto", None):
        of_config = (source.get(key) for source in (text, config) for key in ("dtype", "torch_dtype"))
        named = next((value for value in of_config if value), None)
    named = {"half": "float16", "float": "float32"}.get(str(named), str(named)).removeprefix("torch.")
    return named if named in ("float16", "bfloat16") else None
