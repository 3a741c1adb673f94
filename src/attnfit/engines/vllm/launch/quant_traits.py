"""A checkpoint's quantisation in words: method, scheme, what stays unquantised, KV scheme, format of the scales."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnfit.core import Model
from attnfit.engines.traits import Trait
from attnfit.engines.vllm.launch.skipped import excluded_modules
from attnfit.engines.vllm.launch.state import EngineConfig

#: settings that name the scheme, in the order they are shown
_SCHEME = (
    "quant_algo", "format", "fmt", "bits", "w_bit", "load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type",
    "weight_block_size", "group_size", "q_group_size", "activation_scheme", "sym", "zero_point", "desc_act", "version",
)  # fmt: skip


def quant_traits(cfg: EngineConfig, model: Model) -> Iterator[Trait]:
    """The method the release resolves, and what the checkpoint says of it."""
    quant = cfg.quant_config
    if cfg.quantization is None or quant is None:
        yield Trait("quantization", cfg.quantization, "no quantization_config" if quant is None else _where(model))
        return
    where = _where(model)
    inner = quant.get("quantization")
    said = {**quant, **inner} if isinstance(inner, dict) else quant
    yield Trait("quantization", cfg.quantization, where)
    scheme = [f"{key} {_short(said[key])}" for key in _SCHEME if said.get(key) not in (None, "", [])]
    scheme += _groups(said.get("config_groups")) + _mixed(said.get("quantized_layers"))
    if scheme:
        yield Trait("quantization_scheme", "; ".join(scheme), where)
    if ignored := excluded_modules(quant):
        yield Trait("unquantized_modules", ignored, where)
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        if said.get(key):
            yield Trait("kv_cache_scheme", _short(said[key]), f"{where}: {key}")
    if said.get("scale_fmt"):
        yield Trait("scale_format", _short(said["scale_fmt"]), f"{where}: scale_fmt")
    yield Trait("kv_cache_dtype", cfg.kv_cache_dtype, "--kv-cache-dtype auto")


def _where(model: Model) -> str:
    config = model.config
    for part, name in ((config, ""), (config.get("text_config"), "text_config.")):
        if isinstance(part, dict):
            for key in ("quantization_config", "compression_config"):
                if part.get(key) is not None:
                    return name + key
    return "hf_quant_config.json" if model.hf_quant is not None else "--quantization"


def _short(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(n, int) for n in value):
        return "x".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items() if isinstance(v, str | int | float) and v is not None)[
            :80
        ]
    return str(value)[:80]


def _groups(groups: Any) -> list[str]:
    """compressed-tensors: one scheme for each group of layers."""
    out = []
    for name, group in groups.items() if isinstance(groups, dict) else ():
        parts = [f"{name}:"]
        for side in ("weights", "input_activations"):
            args = group.get(side) if isinstance(group, dict) else None
            if isinstance(args, dict):
                by = f" by {args['strategy']}" if args.get("strategy") else ""
                size = f" of {args['group_size']}" if args.get("group_size") else ""
                groups_of = " in groups" if size and not by else ""
                parts.append(f"{side} {args.get('num_bits')}-bit {args.get('type')}{by}{groups_of}{size}")
        out.append(" ".join(parts))
    return out


def _mixed(listed: Any) -> list[str]:
    """ModelOpt's mixed precision: how many layers have which algorithm."""
    counts: dict[str, int] = {}
    for info in listed.values() if isinstance(listed, dict) else ():
        algorithm = str(info.get("quant_algo")) if isinstance(info, dict) else "?"
        counts[algorithm] = counts.get(algorithm, 0) + 1
    return [f"{count} modules {algorithm}" for algorithm, count in counts.items()]
