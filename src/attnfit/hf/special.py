"""What a few config classes do that no rule of the table's vocabulary says: one small named function each.

Every function takes the built config and the raw keys of config.json. Sources are transformers 5.20.2's
`models/*/configuration_*.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnfit.hf.config import HfConfig, LayerTypes
from attnfit.hf.errors import Refused, Unknown

#: nemotron_h: the letters of hybrid_override_pattern
_NEMOTRON_LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}

#: the layer types transformers 5 accepts (configuration_utils.py:60)
ALLOWED_LAYER_TYPES = (
    "full_attention", "sliding_attention", "chunked_attention", "window_attention", "indexed_attention",
    "compressed_sparse_attention", "heavily_compressed_attention", "minimax_m3_sparse", "conv", "moe", "hybrid",
    "hybrid_sliding", "reference_sliding_attention", "linear_attention",
)  # fmt: skip


def _nemotron_h(node: HfConfig, raw: dict[str, Any]) -> None:
    """hybrid_override_pattern spells the layers; num_hidden_layers is their number, whatever config.json says."""
    for key, target in (
        ("hybrid_override_pattern", "layers_block_type"),
        ("mtp_hybrid_override_pattern", "mtp_layers_block_type"),
    ):
        pattern = raw.get(key)
        if key in raw and pattern is None:
            node.opaque[target] = f"{key} is null in config.json"
        if isinstance(pattern, str) and raw.get(target) is None:
            if set(pattern) <= set(_NEMOTRON_LETTERS):
                node.set(target, [_NEMOTRON_LETTERS[c] for c in pattern])
            else:
                node.opaque[target] = f"{key} has letters that are not known here"
    layers = node.attrs.get("layers_block_type")
    if isinstance(layers, list):
        node.set("num_hidden_layers", len(layers))


def _deepseek_v4(node: HfConfig, raw: dict[str, Any]) -> None:
    """compress_ratios (one per layer) becomes layer_types."""
    if node.attrs.get("head_dim") == 0:
        raise Unknown("head_dim in config.json is 0")
    ratios = raw.get("compress_ratios")
    rates = node.attrs.get("compress_rates")
    n = node.attrs.get("num_hidden_layers")
    if not isinstance(ratios, list) or raw.get("layer_types") is not None or not isinstance(rates, dict):
        return
    by_rate = {rate: kind for kind, rate in rates.items()}
    if isinstance(n, int) and len(ratios) >= n:
        node.set("layer_types", [by_rate.get(r, "sliding_attention") for r in ratios[:n]])


def _mamba_dims(node: HfConfig, raw: dict[str, Any]) -> None:
    """granitemoehybrid, bamba: the Mamba heads must fill the expanded hidden size."""
    heads, expand, hidden = (node.attrs.get(k) for k in ("mamba_n_heads", "mamba_expand", "hidden_size"))
    if not (isinstance(heads, int) and isinstance(expand, int) and isinstance(hidden, int)):
        return
    if heads and (expand * hidden) % heads:
        _refuse("validate_architecture", "mamba_n_heads must divide mamba_expand * hidden_size")


def _falcon_h1(node: HfConfig, raw: dict[str, Any]) -> None:
    heads, expand, hidden, ssm = (
        node.attrs.get(k) for k in ("mamba_n_heads", "mamba_expand", "hidden_size", "mamba_d_ssm")
    )
    if not isinstance(heads, int) or not heads:
        return
    inner = ssm if isinstance(ssm, int) else None
    if inner is None and isinstance(expand, int) and isinstance(hidden, int):
        inner = expand * hidden
    if inner is not None and inner % heads:
        _refuse("validate_architecture", "mamba_n_heads must divide mamba_expand * hidden_size")


def _gemma4(node: HfConfig, raw: dict[str, Any]) -> None:
    """Full-attention layers have a head size (and KV heads) of their own."""
    node.attrs.setdefault("global_head_dim", 512)
    node.attrs.setdefault("num_global_key_value_heads", None)


def _qwen2_moe(node: HfConfig, raw: dict[str, Any]) -> None:
    """Without use_sliding_window the window is 0, which engines read as none."""
    if not node.attrs.get("use_sliding_window"):
        node.set("sliding_window", 0)


def _hrm_text(node: HfConfig, raw: dict[str, Any]) -> None:
    node.opaque["num_hidden_layers"] = "the class computes it from its stacks and cycles"


def _llama(node: HfConfig, raw: dict[str, Any]) -> None:
    hidden, heads = node.attrs.get("hidden_size"), node.attrs.get("num_attention_heads")
    if isinstance(hidden, int) and isinstance(heads, int) and heads and hidden % heads:
        _refuse(
            "validate_architecture",
            f"The hidden size ({hidden}) is not a multiple of the number of attention heads ({heads}).",
        )


def _refuse(validator: str, text: str) -> None:
    raise Refused(
        "StrictDataclassClassValidationError",
        f"Class validation error for validator '{validator}':\n    ValueError: {text}",
        "transformers (config class)",
    )


_FIXES: dict[str, Callable[[HfConfig, dict[str, Any]], None]] = {
    "NemotronHConfig": _nemotron_h,
    "DeepseekV4Config": _deepseek_v4,
    "GraniteMoeHybridConfig": _mamba_dims,
    "BambaConfig": _mamba_dims,
    "FalconH1Config": _falcon_h1,
    "LlamaConfig": _llama,
    "Gemma4TextConfig": _gemma4,
    "Gemma4UnifiedTextConfig": _gemma4,
    "Qwen2MoeConfig": _qwen2_moe,
    "HrmTextConfig": _hrm_text,
}

_SINCE_STRICT = ("LlamaConfig",)  # what these functions do, the class does since it is strict


def finish(node: HfConfig, raw: dict[str, Any], strict: bool, types: LayerTypes) -> None:
    """Apply the class' own function, then the checks every transformers 5 config runs when it is built."""
    fix = _FIXES.get(node.cls)
    if fix is not None and (strict or node.cls not in _SINCE_STRICT):
        try:
            fix(node, raw)
        except Refused as refused:
            if strict:
                raise
            raise Refused("ValueError", refused.text.split("ValueError: ", 1)[1], refused.where) from None
    if strict and node.cls not in ("NemotronHConfig", "NeoMMEConfig"):
        _check_layer_types(node, types)
    elif node.cls in types.checks:
        _check_as_before(node, types)


def _check_as_before(node: HfConfig, types: LayerTypes) -> None:
    """layer_type_validation, which some classes call before they are strict (configuration_utils.py, 4.57.1, 5.3.0)."""
    kinds, n = node.attrs.get("layer_types"), node.attrs.get("num_hidden_layers")
    if not isinstance(kinds, list):
        return
    if any(kind not in types.checked for kind in kinds):
        raise Refused("ValueError", f"The `layer_types` entries must be in {types.checked}")
    if types.checks[node.cls] and isinstance(n, int) and n != len(kinds):
        said = f"`num_hidden_layers` ({n}) must be equal to the number of layer types ({len(kinds)})"
        raise Refused("ValueError", said)


def _check_layer_types(node: HfConfig, types: LayerTypes) -> None:
    n = node.attrs.get("num_hidden_layers")
    if not isinstance(n, int) or node.cls == "DeepseekV4Config":
        return
    lists = [("layer_types", types.allowed or ALLOWED_LAYER_TYPES)]
    if types.allowed_mlp is not None:
        lists.append(("mlp_layer_types", types.allowed_mlp))
    for name, allowed in lists:
        kinds = node.attrs.get(node.amap.get(name, name))
        if not isinstance(kinds, list):
            return
        if any(k not in allowed for k in kinds):
            _refuse("validate_layer_type", f"The `{name}` entries must be in {allowed} but got {kinds}")
        if n != len(kinds):
            counted = f"`{name}`" if types.named else "layer types"
            said = f"`num_hidden_layers` ({n}) must be equal to the number of {counted} ({len(kinds)})"
            _refuse("validate_layer_type", said)
