"""AutoRound (Intel's INC): which kernels a layer's integer weights go to.

Sources (0.33.0): quantization/inc/config_parser.py, inc/schemes/inc_wna16_{scheme,linear,moe}.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from attnfit.engines.vllm.launch.linear_packed import plain_awq
from attnfit.engines.vllm.launch.projections import Projection
from attnfit.engines.vllm.launch.quant_config import unsupported_awq
from attnfit.engines.vllm.launch.skipped import names_of
from attnfit.engines.vllm.launch.state import Refusal, Unknown

STAGE = "model_init"
_FOLDER = "vllm/model_executor/layers/quantization/inc/schemes"
_HUMMING = (2, 3, 5, 6, 7)  # bits that only Humming's kernels take


class IncLayer(NamedTuple):
    """What the checkpoint says of one layer."""

    bits: int
    group: int
    symmetric: bool
    awq: bool  # packed as AWQ does, else as GPTQ does


def inc_layer(quant: dict[str, Any], names: Sequence[str], what: str) -> IncLayer | None:
    """The layer's own settings; None where it stays unquantised. Raises Unknown for what is not integers."""
    blocks = quant.get("block_name_to_quantize", quant.get("to_quant_block_names"))
    blocks = blocks.split(",") if isinstance(blocks, str) else blocks
    if isinstance(blocks, list) and not any(name.startswith(str(block)) for block in blocks for name in names):
        return None
    own: dict[str, Any] = {}
    extra = quant.get("extra_config")
    for key, value in extra.items() if isinstance(extra, dict) else ():
        if any(sign in key for sign in "*+?^$()[]{}|\\"):
            raise Unknown(f"whether the expression {key!r} in extra_config names {what}")
        if isinstance(value, dict) and any(name == key or name.endswith(f".{key}") for name in names):
            own = value
    bits, group = own.get("bits", quant.get("bits")), own.get("group_size", quant.get("group_size"))
    if isinstance(bits, int) and bits >= 16:
        return None
    form, backend = str(quant.get("packing_format") or "auto_round:auto_gptq"), str(quant.get("backend") or "auto")
    if quant.get("data_type", "int") != "int" or not isinstance(bits, int) or not isinstance(group, int):
        raise Unknown(f"how auto-round's {quant.get('data_type')} weights run")
    if backend not in ("auto", "marlin", "gptq:marlin", "awq:marlin"):
        raise Unknown(f"how auto-round's backend {backend} runs {what}")
    gptq = "gptq" in form or "gptq" in backend
    return IncLayer(bits, group, bool(own.get("sym", quant.get("sym", True))), awq=not gptq)


def inc_linear(quant: dict[str, Any], p: Projection) -> None:
    """Raise Refusal where no kernel takes a linear layer."""
    layer = inc_layer(quant, names_of(p), p.name)
    if layer is None or layer.bits in _HUMMING:
        return
    if not layer.awq:
        if (layer.bits, layer.symmetric) not in ((4, True), (8, True)) or layer.group not in (-1, 32, 64, 128):
            raise Refusal(
                STAGE,
                f"NotImplementedError: INC quantization with bits={layer.bits}, sym={layer.symmetric} is not "
                "supported. Only 4-bit and 8-bit symmetric quantization is supported with Marlin kernels.",
                f"{_FOLDER}/inc_wna16_linear.py",
            )
        return
    if layer.bits != 4:
        raise Refusal(STAGE, f"ValueError: {unsupported_awq(layer.bits, [4])}", f"{_FOLDER}/inc_wna16_linear.py")
    if layer.symmetric or layer.group not in (-1, 32, 64, 128):  # Marlin reads AWQ's weights with zero points only
        plain_awq(p, layer.group)
