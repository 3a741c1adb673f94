"""AWQ's and GPTQ's linear layers: which shards their kernels take (quantization/auto_awq.py, auto_gptq.py, 0.33.0)."""

from __future__ import annotations

from typing import Any

from attnfit.engines.vllm.launch.projections import Projection
from attnfit.engines.vllm.launch.state import Refusal, Unknown

STAGE = "model_init"
_WHERE = "vllm/model_executor/layers/quantization/auto_awq.py"


def awq_linear(quant: dict[str, Any], p: Projection) -> None:
    """auto_awq.py:262: Marlin takes what it can, the plain kernels (line 819) want whole groups."""
    size = quant.get("group_size", quant.get("q_group_size"))
    if not isinstance(size, int):
        raise Unknown("group_size of the quantised checkpoint")
    marlin = bool(quant.get("zero_point")) and size in (-1, 32, 64, 128)
    if marlin and (size == -1 or size >= p.full or p.inputs % size == 0):
        return
    plain_awq(p, size)


def plain_awq(p: Projection, size: int) -> None:
    """Raise Refusal where AWQ's plain kernels do not take a shard."""
    text = "size is not aligned with the quantized weight shape. This can be caused by too large tensor parallel size."
    if p.inputs % (p.full if size == -1 else size):
        raise Refusal(STAGE, f"ValueError: The input {text}", f"{_WHERE}:820")
    if p.outputs and sum(p.outputs) % 8:
        raise Refusal(STAGE, f"ValueError: The output {text}", f"{_WHERE}:828")


def gptq_linear(quant: dict[str, Any], p: Projection) -> None:
    """auto_gptq.py:303 takes any shard: the Humming kernel is there for what Marlin does not."""
    size = quant.get("group_size")
    if size not in (-1, 32, 64, 128):
        raise Unknown(f"what GPTQ's kernels say to groups of {size}")
