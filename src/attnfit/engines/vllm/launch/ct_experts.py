"""compressed-tensors: the scheme of a model's experts.

Source (0.33.0): quantization/compressed_tensors/compressed_tensors_moe/*.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnfit.engines.vllm.launch import ct_scheme
from attnfit.engines.vllm.launch.ct_scheme import Args, Group
from attnfit.engines.vllm.launch.expert_blocks import check_groups
from attnfit.engines.vllm.launch.integer_scheme import integer_scheme
from attnfit.engines.vllm.launch.moe import MoeLayer
from attnfit.engines.vllm.launch.moe_select import DIRECT, Scheme
from attnfit.engines.vllm.launch.skipped import matches
from attnfit.engines.vllm.launch.state import Refusal, Unknown

STAGE = "model_init"
_FOLDER = "vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors_moe"
_CHOICE = f"{_FOLDER}/compressed_tensors_moe.py"
_WEIGHTS = {"channel": "kFp8StaticChannelSym", "tensor": "kFp8StaticTensorSym"}


def compressed_tensors_experts(quant: dict[str, Any], experts: Sequence[str]) -> Scheme | None:
    """The scheme of the experts called `experts`; None: they stay unquantised. Raises Refusal, Unknown."""
    groups = []
    for part in ("gate_proj", "up_proj", "down_proj"):
        names = [f"{name}.0.{part}" for name in experts]
        skipped = any(matches(str(each), name) for each in quant.get("ignore") or () for name in names)
        groups.append(None if skipped else ct_scheme.group_of(quant, names))
    if any(group != groups[0] for group in groups):
        text = "ValueError: All MoE projections need to have same quantization scheme but found multiple"
        raise Refusal(STAGE, text, _CHOICE)
    return None if groups[0] is None else _scheme(groups[0])


def _scheme(group: Group) -> Scheme:
    w, a = group.weights, group.inputs
    if ct_scheme.fp8_of_mxfp4(w, a):
        raise Unknown("how compressed-tensors runs experts of MXFP4 weights with FP8 activations")
    if ct_scheme.mxfp4(w):
        return Scheme(DIRECT, method="CompressedTensorsW4A4Mxfp4MoEMethod")
    if ct_scheme.mxfp8(w):
        return Scheme("mxfp8", "kMxfp8Static", "kMxfp8Dynamic")
    if a is None and w.strategy in ("channel", "group") and not w.dynamic:
        return _packed(w, group.form)
    if ct_scheme.nvfp4(w):
        if a is not None and not ct_scheme.nvfp4(a):
            text = f"For NVFP4 weights, input quantization must also be NVFP4 format or None for NVFP4A16, found {a}"
            raise Refusal(STAGE, f"ValueError: {text}", _CHOICE)
        return Scheme("nvfp4", "kNvfp4Static", "kNvfp4Dynamic" if a else None)
    if a is None:
        raise Refusal(STAGE, "AttributeError: 'NoneType' object has no attribute 'num_bits'", f"{_CHOICE}:173")
    if ct_scheme.fp8(w, a):
        return _fp8(w, a)
    if ct_scheme.int8(w, a, "token"):
        return _int8(w, a)
    if ct_scheme.int4_fp8(w, a):
        return _int4_fp8(w)
    if ct_scheme.dynamic_int4(w, a):
        return _int4_int8(w)
    raise Refusal(STAGE, f"RuntimeError: Unsupported FusedMoe scheme: {w}, {a}", _CHOICE)


def _packed(w: Args, form: str | None) -> Scheme:
    """Weights alone: 2 to 8 bits in packed integers."""
    bits = [2, 3, 4, 5, 6, 7, 8]
    if w.num_bits not in bits or form != "pack-quantized":
        raise Refusal(
            STAGE,
            "ValueError: For Fused MoE layers, only format: pack-quantized and bits: "
            f"{bits} is supported but got format: pack-quantized and bits: {w.num_bits}",
            f"{_CHOICE}:97",
        )
    if w.num_bits not in (4, 8):
        raise Unknown(f"how experts of {w.num_bits}-bit integer weights run")
    size = -1 if w.group_size is None else w.group_size
    scheme = integer_scheme(w.num_bits, size, w.symmetric, ordered=w.actorder == "group", bias=False)
    chosen = scheme.then

    def then(backend: str, moe: MoeLayer) -> None:
        if chosen is not None:
            chosen(backend, moe)
        check_groups(w._asdict(), moe, STAGE)

    scheme.then = then
    return scheme


def _fp8(w: Args, a: Args) -> Scheme:
    if w.strategy == "block":
        return Scheme("fp8", "kFp8Static128BlockSym", "kFp8Dynamic128Sym", cutlass=True, block=w.block_structure)
    if (w.strategy, a.strategy) not in (("tensor", "tensor"), ("channel", "token")):
        raise Refusal(STAGE, "AssertionError: ", f"{_FOLDER}/compressed_tensors_moe_w8a8_fp8.py")
    tensor = "kFp8Dynamic128Sym" if a.dynamic else "kFp8StaticTensorSym"
    return Scheme(
        "fp8", _WEIGHTS[w.strategy], tensor if a.strategy == "tensor" else "kFp8DynamicTokenSym", cutlass=True
    )


def _int8(w: Args, a: Args) -> Scheme:
    if w.strategy != "channel":
        text = f"For INT8 Fused MoE layers, we require channelwise, dynamic per token quantization. Found {w}, {a}"
        raise Refusal(STAGE, f"ValueError: {text}", f"{_FOLDER}/compressed_tensors_moe_w8a8_int8.py")
    return Scheme("int8", "kInt8StaticChannelSym", "kInt8DynamicTokenSym")


def _int4_fp8(w: Args) -> Scheme:
    where = f"{_FOLDER}/compressed_tensors_moe_w4a8_fp8.py"
    if w.group_size != 128:
        raise Refusal(STAGE, "AssertionError: Only group size 128 supported for W4A8 MoE", where)

    def then(backend: str, moe: MoeLayer) -> None:
        for name, size in (("hidden_size", moe.hidden), ("intermediate_size_per_partition", moe.per_rank)):
            if size % 256:
                raise Refusal(STAGE, f"AssertionError: {name}={size} must be divisible by 256", f"{where}:71")

    return Scheme("w4a8", "kInt4Static", "kFp8DynamicTokenSym", then=then)


def _int4_int8(w: Args) -> Scheme:
    """On Arm processors only (oracle/w4a8_int8.py)."""

    def then(backend: str, moe: MoeLayer) -> None:
        size = w.group_size
        if size is not None and size != -1 and (moe.hidden % size or moe.per_rank % size):
            text = (
                f"Group size ({size}) must evenly divide both hidden size ({moe.hidden}) and intermediate size per "
                f"partition ({moe.per_rank})."
            )
            raise Refusal(STAGE, f"ValueError: {text}", f"{_FOLDER}/compressed_tensors_moe_w4a8_int8.py")
        text = "W4A8 Int8 MoE is only supported on CPU platforms"
        raise Refusal(
            STAGE,
            f"NotImplementedError: {text}",
            "vllm/model_executor/layers/fused_moe/oracle/w4a8_int8.py",
        )

    return Scheme(DIRECT, then=then)
