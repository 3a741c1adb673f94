"""Bytes of one state-space state (Mamba, GDN, KDA, short convolution), by architecture.

The formulas are vllm/model_executor/layers/mamba/mamba_utils.py (0.33.0: 51-330); which config keys feed them is data.
"""

from __future__ import annotations

from math import prod
from typing import Any

from attnfit.engines.vllm.launch import kernel_facts
from attnfit.engines.vllm.launch.model_asserts import check_kda_dtype
from attnfit.engines.vllm.launch.pages import DTYPE_BYTES
from attnfit.engines.vllm.launch.state import EngineConfig, Unknown


def state_bytes(cfg: EngineConfig) -> int:
    """Bytes of all states of one state-space layer on one rank. Raises Unknown for an architecture without a rule."""
    table: dict[str, dict[str, Any]] = kernel_facts.load("mamba_state")["architectures"]
    rule = table.get(cfg.architecture)
    if rule is None:
        raise Unknown(f"the size of {cfg.architecture}'s recurrent state")
    if cfg.flags.get("use_replayssm"):
        raise Unknown("the size of the recurrent state with --use-replayssm")
    source = cfg.text if rule["scope"] == "text" else cfg.config
    if rule["kind"] == "kda" and "ssm_dtype" not in rule:
        check_kda_dtype(cfg, "update_block_size")
    dims = _Dims(source.get(rule["section"], {}) if "section" in rule else source)
    shapes = _SHAPES[rule["kind"]](dims, rule, cfg.tp, num_speculative_tokens(cfg))
    dtypes = _dtypes(cfg, rule)
    return sum(prod(shape) * size for shape, size in zip(shapes, dtypes, strict=False))


def num_speculative_tokens(cfg: EngineConfig) -> int:
    return int((cfg.speculative or {}).get("num_speculative_tokens") or 0)


class _Dims:
    def __init__(self, source: dict[str, Any]) -> None:
        self.source = source

    def __call__(self, key: str) -> int:
        value = self.source.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise Unknown(f"{key} of the config")
        return value

    def product(self, keys: list[str]) -> int:
        return prod(self(key) for key in keys)


def _per_rank(value: int, tp: int) -> int:
    if value % tp:
        raise Unknown(f"{value} does not divide by the tensor-parallel size {tp}")
    return value // tp


Shape = tuple[int, ...]


def _gdn(dims: _Dims, rule: dict[str, Any], tp: int, spec: int) -> list[Shape]:
    k, v = dims(rule["k_dim"]), dims(rule["v_dim"])
    conv = k * dims(rule["k_heads"]) * 2 + v * dims(rule["v_heads"])
    return [
        (dims(rule["conv"]) - 1 + spec, _per_rank(conv, tp)),
        (_per_rank(dims(rule["v_heads"]), tp), v, k),
    ]


def _mamba2(dims: _Dims, rule: dict[str, Any], tp: int, spec: int) -> list[Shape]:
    override = dims.source.get(rule.get("intermediate_override", ""))
    inner = override if isinstance(override, int) else dims.product(rule["intermediate"])
    groups = dims(rule["groups"])
    groups += 0 if groups % tp == 0 else tp - groups  # extra groups so that each head shard has its own
    state = dims(rule["state"])
    return [
        (_per_rank(inner + 2 * groups * state, tp), dims(rule["conv"]) - 1 + spec),
        (_per_rank(dims(rule["heads"]), tp), dims(rule["head_dim"]), state),
    ]


def _mamba1(dims: _Dims, rule: dict[str, Any], tp: int, spec: int) -> list[Shape]:
    inner = _per_rank(dims.product(rule["intermediate"]), tp)
    return [(inner, dims(rule["conv"]) - 1), (inner, dims(rule["state"]))]


def _kda(dims: _Dims, rule: dict[str, Any], tp: int, spec: int) -> list[Shape]:
    heads, head_dim = dims(rule["heads"]), dims(rule["head_dim"])
    conv = dims(rule["conv"]) - 1 + spec
    return [(_per_rank(3 * heads * head_dim, tp), conv), (_per_rank(heads, tp), head_dim, head_dim)]


def _short_conv(dims: _Dims, rule: dict[str, Any], tp: int, spec: int) -> list[Shape]:
    return [(_per_rank(dims.product(rule["intermediate"]), tp), dims(rule["conv"]) - 1)]


_SHAPES = {"gdn": _gdn, "mamba2": _mamba2, "mamba1": _mamba1, "kda": _kda, "short_conv": _short_conv}


def _dtypes(cfg: EngineConfig, rule: dict[str, Any]) -> list[int]:
    """Bytes per element: convolution state, recurrent state."""
    conv = DTYPE_BYTES[cfg.dtype if cfg.mamba_cache_dtype == "auto" else cfg.mamba_cache_dtype]
    ssm = rule.get("ssm_dtype", cfg.mamba_ssm_cache_dtype)
    if ssm != "auto":
        return [conv, DTYPE_BYTES[ssm]]
    # KDA keeps its recurrent state in float32 unless told otherwise (mamba_utils.py:127)
    return [conv, DTYPE_BYTES["float32"] if rule["kind"] == "kda" else conv]
