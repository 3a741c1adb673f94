"""Experts with packed integer weights: which backends of the WNA16 oracle can read which checkpoint.

Sources (0.33.0): vllm/model_executor/layers/fused_moe/oracle/int_wna16.py,
quantization/{auto_awq,auto_gptq,moe_wna16}.py, quantization/utils/marlin_utils.py.
"""

from __future__ import annotations

from typing import Any

from attnfit.engines.vllm.launch.inc_scheme import IncLayer
from attnfit.engines.vllm.launch.moe import MoeLayer
from attnfit.engines.vllm.launch.moe_select import Scheme
from attnfit.engines.vllm.launch.state import Refusal, Unknown

STAGE = "model_init"
_FOLDER = "vllm/model_executor/layers/quantization"
_CT = f"{_FOLDER}/compressed_tensors/compressed_tensors_moe"


def integer_scheme(bits: int, group: int, symmetric: bool, *, ordered: bool, bias: bool, awq: bool = False) -> Scheme:
    """4- or 8-bit integer experts; which backends cannot read the checkpoint is oracle/int_wna16.py:146."""
    compressed = not bias  # the AWQ and GPTQ integrations may carry an expert bias
    base = "kInt8Static" if bits == 8 else "kInt4Static32" if group == 32 and compressed else "kInt4Static"
    weight = base if symmetric or awq or not compressed else f"{base}Asym"

    def skip(backend: str, moe: MoeLayer) -> str | None:
        if backend == "FLASHINFER_TRTLLM" and (bias or not symmetric):
            return "zero points and bias are not supported"
        if backend == "RDNA3" and bias:
            return "only compressed-tensors checkpoints are supported"
        if backend == "RDNA3" and not symmetric:
            return "asymmetric checkpoints are not supported"
        if backend == "TRITON" and bias:
            return "expert bias is not supported"
        if backend in ("TRITON", "RDNA3") and ordered:
            return "group activation ordering is not supported"
        if backend in ("MARLIN", "BATCHED_MARLIN") and not marlin_fits(moe, group):
            return "Marlin not supported for this layer"
        return None

    def then(backend: str, moe: MoeLayer) -> None:
        if awq and group < 0:
            _negative(moe, [-moe.hidden, 2 * moe.per_rank], f"{_FOLDER}/auto_awq.py:583")
        if not bias and group < 0 and backend not in ("MARLIN", "BATCHED_MARLIN"):
            raise Refusal(STAGE, "AssertionError: ", f"{_CT}/compressed_tensors_moe_wna16.py:127")

    return Scheme("wna16", weight, None, skip=skip, then=then)


def _negative(moe: MoeLayer, shape: list[int], where: str) -> None:
    """One scale for all inputs is written -1, and these classes divide by it."""
    experts = moe.num_experts // moe.parallel.ep_size
    negative = min(shape)
    text = f"Trying to create tensor with negative dimension {negative}: {[experts, *shape]}"
    raise Refusal(STAGE, f"RuntimeError: {text}", where)


def moe_wna16(bits: int, group: int, symmetric: bool) -> Scheme:
    """quantization/moe_wna16.py:219: where AWQ and GPTQ experts go that Marlin cannot take."""
    if bits not in (4, 8):
        text = "ValueError: MoeWNA16Method only supports int4 and int8 now."
        raise Refusal(STAGE, text, f"{_FOLDER}/moe_wna16.py:239")

    def skip(backend: str, moe: MoeLayer) -> str | None:
        if backend == "FLASHINFER_TRTLLM" and not symmetric:
            return "zero points and bias are not supported"
        if backend == "RDNA3":
            return "only compressed-tensors checkpoints are supported"
        if backend in ("MARLIN", "BATCHED_MARLIN", "EMULATION"):
            return "the MoeWNA16 checkpoint layout is not supported"
        return None

    weight = "kInt8Static" if bits == 8 else "kInt4Static32" if group == 32 else "kInt4Static"

    def then(backend: str, moe: MoeLayer) -> None:
        if group < 0:
            _negative(moe, [2 * moe.per_rank, -moe.hidden], f"{_FOLDER}/moe_wna16.py:330")

    return Scheme("wna16", weight, None, skip=skip, method="MoeWNA16Method", group=group, then=then)


def groups_fit(moe: MoeLayer, group: int) -> bool:
    """Whether halving the group makes it divide the shard before it falls below 32 (moe_wna16.py:283)."""
    while moe.per_rank % group or moe.hidden % group:
        group //= 2
        if group < 32:
            return False
    return True


def marlin_fits(moe: MoeLayer, group: int) -> bool:
    """utils/marlin_utils.py:356, tiles padded."""
    whole = moe.hidden % 128 == 0 and (group <= 0 or moe.per_rank % group == 0)
    return whole and group in (-1, 32, 64, 128)


def packed(quant: dict[str, Any]) -> tuple[int, int, bool]:
    """(bits, group, symmetric) of an AWQ or GPTQ checkpoint."""
    awq = quant.get("quant_method") != "gptq"
    bits = quant.get("bits", quant.get("w_bit", 4))
    group = quant.get("group_size", quant.get("q_group_size", -1))
    if not isinstance(bits, int) or not isinstance(group, int):
        raise Unknown("bits and group_size of the quantised checkpoint")
    return bits, group, not quant.get("zero_point", True) if awq else bool(quant.get("sym", True))


def awq_or_gptq(quant: dict[str, Any], layer: MoeLayer) -> Scheme:
    """quantization/auto_awq.py:337, auto_gptq.py:238. Layers that Marlin cannot take go another way."""
    bits, group, symmetric = packed(quant)
    if quant.get("dynamic"):
        raise Unknown("which of the checkpoint's dynamic GPTQ rules the experts follow")
    if not marlin_fits(layer, group):
        return moe_wna16(bits, group, symmetric)
    awq = quant.get("quant_method") != "gptq"
    return integer_scheme(bits, group, symmetric, ordered=False, bias=True, awq=awq)


def inc_experts(own: IncLayer, layer: MoeLayer) -> Scheme:
    """inc/schemes/inc_wna16_moe.py: Marlin's classes without padding, else MoeWNA16Method."""
    if own.bits not in (4, 8):
        raise Unknown(f"whether Humming's kernels take experts of {own.bits}-bit integer weights")
    whole = layer.hidden % 128 == 0 and layer.per_rank % max(64, own.group) == 0 and own.group in (-1, 32, 64, 128)
    if not (whole and (own.awq or own.symmetric)):
        return moe_wna16(own.bits, own.group, own.symmetric)
    return integer_scheme(own.bits, own.group, own.symmetric, ordered=False, bias=True, awq=own.awq)
