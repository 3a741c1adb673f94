"""Which of SGLang's own Triton kernels a launch will start for attention, and with which shapes.

What of them needs the release's code (tiles, strides, autotune tables) is asked in the child: `triton_kernels/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnfit.engines import Circumstances, KernelAsk
from attnfit.engines.sglang.answers import Answer

ATTENTION, LINEAR = "triton", "triton linear attention"
SSM_DTYPES = ("float32", "bfloat16", "float16")
CUTEDSL = "SGLANG_USE_CUTEDSL_GDN_DECODE"


class _Unknown(Exception):
    """What is missing before the kernels can be asked about."""


_HEADS = ("linear_num_key_heads", "linear_num_value_heads")
_SIZES = ("linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim")


def asks(circumstances: Circumstances, answer: Answer) -> list[KernelAsk]:
    """For the attention and the linear attention layers of a launch that passes, where they run on Triton."""
    if answer.get("ok") is not True:
        return []
    config = circumstances.model.config
    nested = config.get("text_config")
    text: Mapping[str, Any] = nested if isinstance(nested, dict) else config
    resolved = answer.get("resolved") or {}
    ranks = int(resolved.get("tp_size") or 1)
    if resolved.get("enable_dp_attention"):
        ranks //= int(resolved.get("dp_size") or 1)
    dtype = _dtype(resolved, text, config)
    found: list[KernelAsk] = []
    linear: Mapping[str, Any] = {}
    try:
        linear = _linear_steps(answer, text, circumstances.variables)
    except _Unknown as missing:
        found.append(KernelAsk(LINEAR, {}, unknown=str(missing)))
    if linear.get("decode") == "not known":
        found.append(KernelAsk(LINEAR, {}, unknown=f"what its decode step runs on with {CUTEDSL} set"))
    for backend, which, build in ((ATTENTION, answer, _attention), (LINEAR, linear, _linear)):
        steps = [step for step in ("prefill", "decode") if which.get(step) == "triton"]
        if not steps:
            continue
        if dtype is None:
            found.append(KernelAsk(backend, {}, unknown="the dtype of the model"))
            continue
        try:
            about, said = build(text, ranks, dtype, resolved, circumstances.variables)
        except _Unknown as missing:
            found.append(KernelAsk(backend, {}, unknown=str(missing)))
            continue
        inputs = f"{said}, {' and '.join(steps)} on Triton"
        found.append(KernelAsk(backend, {**about, "dtype": dtype, "steps": steps}, (inputs,)))
    return found


def _linear_steps(answer: Answer, text: Mapping[str, Any], variables: Mapping[str, str]) -> Mapping[str, Any]:
    """What each step of the linear attention layers runs on; nothing of a model without any."""
    told = answer.get("linear_attn")
    if told:
        return told
    # until 0.5.9 nothing chooses: the backend of a gated delta rule calls the Triton kernels itself
    # (srt/layers/attention/hybrid_linear_attn_backend.py:1040); a variable asks for CuTe DSL in a decode step, which
    # is taken if its package is there (:845)
    kind = answer.get("linear_attn_backend_class")
    if kind == "GDNAttnBackend":
        return {"prefill": "triton", "decode": "not known" if _cutedsl(variables) else "triton"}
    if kind:
        raise _Unknown(f"the kernels of {kind} are not asked about")
    if any(text.get(name) for name in _HEADS):
        raise _Unknown("what its linear attention layers run on")
    return {}


def _cutedsl(variables: Mapping[str, str]) -> bool:
    return variables.get(CUTEDSL, "").lower() in ("true", "1", "yes", "y")  # srt/environ.py:122


Built = tuple[dict[str, Any], str]


def _number(text: Mapping[str, Any], key: str) -> int:
    value = text.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise _Unknown(f"{key} of config.json")
    return value


def _shared(count: int, ranks: int, what: str) -> int:
    if count % ranks:
        raise _Unknown(f"{count} {what} do not divide by {ranks} ranks")
    return count // ranks


def _attention(
    text: Mapping[str, Any], ranks: int, dtype: str, resolved: Mapping[str, Any], variables: Mapping[str, str]
) -> Built:
    if any(text.get(key) for key in ("sliding_window_pattern", "swa_num_attention_heads", "layer_types")):
        raise _Unknown("layers of several kinds are not asked about")
    heads = _shared(_number(text, "num_attention_heads"), ranks, "heads")
    cache = str(resolved.get("kv_cache_dtype") or "auto")
    if cache not in ("auto", "bfloat16", "fp8_e4m3", "fp8_e5m2"):
        raise _Unknown(f"a KV cache of {cache} is not asked about")
    if text.get("kv_lora_rank"):
        rank, rope = _number(text, "kv_lora_rank"), _number(text, "qk_rope_head_dim")
        sizes = {"num_kv_heads": 1, "head_size": rank + rope, "v_head_size": rank, "latent": True}
        said = f"{heads} query heads, latent rows of {rank} + {rope}"
    else:
        whole = _number(text, "num_key_value_heads" if "num_key_value_heads" in text else "num_attention_heads")
        kv_heads = max(1, whole // ranks)
        size = text.get("head_dim") or _number(text, "hidden_size") // _number(text, "num_attention_heads")
        sizes = {"num_kv_heads": kv_heads, "head_size": size, "v_head_size": size, "latent": False}
        said = f"{heads} query heads, {kv_heads} KV heads of {size}"
    about = {"kernel": "attention", "num_heads": heads, **sizes, "kv_cache_dtype": cache}
    about["kv_splits"] = resolved.get("triton_attention_num_kv_splits")
    return {**about, "page_size": resolved.get("page_size") or 1}, f"{said}, {dtype}, KV cache {cache}"


def _linear(
    text: Mapping[str, Any], ranks: int, dtype: str, resolved: Mapping[str, Any], variables: Mapping[str, str]
) -> Built:
    sizes = {name: _number(text, name) for name in _SIZES}
    heads = {name: _shared(_number(text, name), ranks, "linear attention heads") for name in _HEADS}
    # configs/mamba_utils.py:52 (0.5.9 and 0.5.23): the flag's variable, the config, float32
    state = resolved.get("mamba_ssm_dtype") or variables.get("SGLANG_MAMBA_SSM_DTYPE")
    state = state or text.get("mamba_ssm_dtype") or "float32"
    if state not in SSM_DTYPES:
        raise _Unknown(f"recurrent states of {state} are not asked about")
    keys, values = heads.values()
    said = (
        f"linear attention with {keys} key heads of {sizes['linear_key_head_dim']} and {values} value heads of "
        f"{sizes['linear_value_head_dim']} a rank, {dtype}, states in {state}"
    )
    return {"kernel": "gdn", "state_dtype": state, **sizes, **heads}, said


def _dtype(resolved: Mapping[str, Any], text: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """Of the model as it is served. "auto": what config.json says; float32 is served in float16, else as it is."""
    named = resolved.get("dtype")
    if named in ("auto", None):
        of_config = (source.get(key) for source in (text, config) for key in ("dtype", "torch_dtype"))
        named = next((value for value in of_config if value), None)
    named = {"half": "float16", "float": "float32"}.get(str(named), str(named)).removeprefix("torch.")
    return named if named in ("float16", "bfloat16") else None
