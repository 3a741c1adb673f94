"""compressed-tensors: which of the checkpoint's groups a layer belongs to, and which scheme its linear layers run.

Sources (0.33.0): quantization/compressed_tensors/compressed_tensors.py `get_scheme_dict`, `_get_scheme_from_parts`,
utils.py `find_matched_target`, schemes/*.py; the arguments' defaults are compressed_tensors' own QuantizationArgs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from attnfit.engines.vllm.launch.projections import Projection
from attnfit.engines.vllm.launch.skipped import matches
from attnfit.engines.vllm.launch.state import Refusal, Unknown

STAGE = "model_init"
_WHERE = "vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py"
#: formats that say themselves that activations are quantised
_ACTIVATION_FORMATS = ("naive-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized")


class Args(NamedTuple):
    """QuantizationArgs: one side of a scheme, with the defaults filled in."""

    num_bits: int
    type: str
    symmetric: bool
    group_size: int | None
    strategy: str
    block_structure: list[int] | None
    dynamic: bool | str
    actorder: str | None
    scale_dtype: str | None
    zp_dtype: str
    observer: str | None
    observer_kwargs: dict[str, Any]

    def shown(self, between: str) -> str:
        """As pydantic prints it: fields between commas in a repr, between spaces in a message."""
        plain = ("scale_dtype", "zp_dtype")
        return between.join(f"{k}={v if k in plain else repr(v)}" for k, v in self._asdict().items())

    def __str__(self) -> str:
        return self.shown(" ")

    def __repr__(self) -> str:
        return f"QuantizationArgs({self.shown(', ')})"


def args(given: Any) -> Args | None:
    """One side of a group as the library reads it; None where there is none."""
    if not isinstance(given, dict):
        return None
    size, dynamic = given.get("group_size"), given.get("dynamic", False)
    strategy = given.get("strategy")
    if strategy is None:
        strategy = "tensor" if size is None else "group" if size > 0 else "channel"
    kind, bits = str(given.get("type", "int")).lower(), int(given.get("num_bits", 8))
    observer = given.get("observer")
    if dynamic:
        observer = (observer or "minmax") if dynamic == "local" else None
    stored = "torch.float8_e4m3fn" if kind == "float" else "torch.int8" if bits <= 8 else "torch.int16"
    order = given.get("actorder")
    return Args(
        num_bits=bits,
        type=kind,
        symmetric=bool(given.get("symmetric", True)),
        group_size=size,
        strategy=str(strategy).lower(),
        block_structure=given.get("block_structure"),
        dynamic=dynamic,
        actorder=("group" if order else None) if isinstance(order, bool) else order,
        scale_dtype=given.get("scale_dtype"),
        zp_dtype=str(given.get("zp_dtype") or stored),
        observer=observer if dynamic else observer or "memoryless_minmax",
        observer_kwargs=given.get("observer_kwargs") or {},
    )


class Group(NamedTuple):
    """What a layer's group says: weights, activations, the format of the tensors."""

    weights: Args
    inputs: Args | None
    outputs: Args | None
    form: str | None


def group_of(quant: dict[str, Any], names: Sequence[str], parts: Iterable[Sequence[str]] = ()) -> Group | None:
    """The group that a linear layer or the experts belong to; None: they stay unquantised.

    names   what the layer may be called; parts: the same for each of the matrices that were merged into it
    """
    groups = quant.get("config_groups")
    listed = [group for group in (groups or {}).values() if isinstance(group, dict)] if isinstance(groups, dict) else []
    targets = [(str(target), group) for group in listed for target in group.get("targets") or ()]
    found = next((group for target, group in targets if any(matches(target, name) for name in names)), None)
    whole = [next((g for t, g in targets if any(matches(t, n) for n in part)), None) for part in parts]
    if found is None and whole and all(group is not None for group in whole):
        found = whole[0]
    if found is None:
        found = next((group for target, group in targets if target == "Linear"), None)
    if found is None or (weights := args(found.get("weights"))) is None:
        return None
    form = found.get("format") or quant.get("format")
    return Group(weights, args(found.get("input_activations")), args(found.get("output_activations")), form)


def linear_scheme(group: Group, capability: tuple[int, int], where: str) -> str:
    """The name of the scheme that runs a linear layer; `where` is the layer's name. Raises Refusal."""
    w, a, form = group.weights, group.inputs, group.form
    if nvfp4(w):
        if a is not None and not nvfp4(a):
            text = "ValueError: For NVFP4 weights, input quantization must also be NVFP4 format, None for NVFP4A16"
            raise Refusal(STAGE, text, _WHERE)
        return "nvfp4"
    if mxfp4(w):
        return "mxfp4_fp8" if fp8_of_mxfp4(w, a) else "mxfp4"
    if mxfp8(w):
        return "mxfp8"
    if capability == (9, 0) and int4_fp8(w, a):
        return "int4_fp8"
    channels = w.strategy in ("channel", "group")
    if a is not None and w.type == a.type == "int" and channels and not w.dynamic:
        if group.outputs is not None and a.strategy == "tensor" and not a.dynamic:
            raise Unknown("how layers run whose outputs are quantised as well")
        dynamic = a.dynamic and a.symmetric and a.strategy in ("token", "group")
        if form == "pack-quantized" and dynamic and a.num_bits in (4, 8):
            return "int_packed"
    if channels and a is None and not w.dynamic and form == "pack-quantized":
        return "wna16"
    if form in _ACTIVATION_FORMATS:
        if fp8(w, a) or _weight_only_fp8(w):
            return "fp8"
        if a is None:
            raise Refusal(STAGE, "AttributeError: 'NoneType' object has no attribute 'num_bits'", _WHERE)
        if int8(w, a, "tensor") or int8(w, a, "token"):
            return "int8"
        if dynamic_int4(w, a):
            return "int4_int8"
    raise Refusal(
        STAGE,
        f"NotImplementedError: No compressed-tensors compatible scheme was found for layer_name={where!r}, "
        f"weight_quant={w!r}, input_quant={a!r}, output_quant={group.outputs!r}, format={form!r}",
        f"{_WHERE}:946",
    )


def nvfp4(a: Args | None) -> bool:
    kind = a and (a.strategy, a.type, a.num_bits, a.group_size, a.symmetric)
    return kind == ("tensor_group", "float", 4, 16, True)


def mxfp4(w: Args) -> bool:
    return (w.strategy, w.type, w.num_bits, w.group_size, w.symmetric) == ("group", "float", 4, 32, True)


def fp8_of_mxfp4(w: Args, a: Args | None) -> bool:
    """MXFP4 weights with activations in FP8."""
    if a is None or not mxfp4(w):
        return False
    kind = (a.type, a.num_bits, a.symmetric) == ("float", 8, True)
    return kind and bool(a.dynamic) and not w.dynamic and a.strategy in ("token", "group")


def mxfp8(w: Args) -> bool:
    kind = (w.strategy, w.type, w.num_bits, w.group_size, w.symmetric) == ("group", "float", 8, 32, True)
    return kind and str(w.scale_dtype) in ("torch.uint8", "uint8")


def int4_fp8(w: Args, a: Args | None) -> bool:
    """4-bit integers by group, activations in FP8 by token."""
    if a is None:
        return False
    kinds = (w.type, a.type, w.num_bits, a.num_bits, w.strategy, a.strategy)
    whole = w.symmetric and a.symmetric and not w.dynamic and bool(a.dynamic)
    return kinds == ("int", "float", 4, 8, "group", "token") and whole


def fp8(w: Args, a: Args | None) -> bool:
    if a is None or a.type != "float" or not _weight_only_fp8(w):
        return False
    return bool(a.dynamic) or (a.symmetric and a.strategy == "tensor")


def _weight_only_fp8(w: Args) -> bool:
    return w.type == "float" and w.symmetric and not w.dynamic and w.strategy in ("tensor", "channel", "block")


def int8(w: Args, a: Args, by: str) -> bool:
    """8-bit weights by tensor or channel, activations `by` "tensor" (static) or "token" (dynamic)."""
    whole = w.num_bits == a.num_bits == 8 and w.strategy in ("tensor", "channel") and w.symmetric and not w.dynamic
    return whole and a.strategy == by and bool(a.dynamic) is (by == "token")


def dynamic_int4(w: Args, a: Args) -> bool:
    """4-bit integers, activations in 8-bit integers by token."""
    kinds = (w.type, a.type, w.num_bits, a.num_bits, a.strategy) == ("int", "int", 4, 8, "token")
    return kinds and w.strategy in ("group", "channel") and w.symmetric and not w.dynamic and bool(a.dynamic)


def check_linear(group: Group, scheme: str, p: Projection) -> None:
    """Raise Refusal where a shard's inputs are not whole groups of the scheme. Block scales: linear.check_blocks."""
    size = group.weights.group_size
    if size is None or size <= 0 or p.inputs % size == 0:
        return
    if scheme in ("wna16", "int4_fp8"):
        layer = f" for layer '{p.path}'" if scheme == "wna16" else ""
        raise Refusal(
            STAGE,
            f"ValueError: Weight input_size_per_partition={p.inputs}{layer} is not divisible by group_size={size}. "
            "This happens when tensor_parallel_size splits the layer input into shards that are not a whole number of "
            "quant groups. Consider reducing tensor_parallel_size.",
            "vllm/distributed/utils.py:147",
        )
    if scheme == "int_packed":
        where = "vllm/model_executor/layers/quantization/compressed_tensors/schemes/compressed_tensors_wNa8.py"
        raise Refusal(STAGE, "AssertionError: ", f"{where}:180")


def check_kv_scheme(quant: dict[str, Any]) -> None:
    """Raise Refusal where attention layers do not take the checkpoint's scheme of the KV cache (line 1100)."""
    scheme = quant.get("kv_cache_scheme")
    if not isinstance(scheme, dict):
        return
    bits, kind, strategy = scheme.get("num_bits"), scheme.get("type"), scheme.get("strategy")
    if kind != "float" or bits != 8:
        text = (
            "Currently supported kv cache quantization is num_bits=8, type=float, however received "
            f"num_bits={bits}, type={kind}"
        )
    elif strategy not in ("tensor", "attn_head"):
        if strategy not in ("channel", "group", "block", "token", "tensor_group"):
            raise Unknown(f"whether a KV cache scheme by {strategy} exists")
        supported = "(<QuantizationStrategy.TENSOR: 'tensor'>, <QuantizationStrategy.ATTN_HEAD: 'attn_head'>)"
        found = f"QuantizationStrategy.{strategy.upper()}"
        text = (
            f"Invalid strategy for compressed-tensors KV cache. Expected strategies: {supported}, found strategy: "
            f"{found}"
        )
    elif not scheme.get("symmetric"):
        text = (
            "Only support symmetric scaling factor for compressed-tensors KV cache. However found symmetric: "
            f"{scheme.get('symmetric')}"
        )
    else:
        return
    raise Refusal(STAGE, f"NotImplementedError: {text}", _WHERE)
