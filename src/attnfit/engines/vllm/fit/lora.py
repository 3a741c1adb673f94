"""The buffers for LoRA adapters, which the engine allocates with the model, before it measures what is left.

Every linear layer, every expert, the head and the embedding get `max_loras` pairs of matrices of the largest rank
(0.33.0: vllm/lora/layers/base_linear.py:108, column_parallel_linear.py:205, fused_moe.py:170, logits_processor.py:80,
vocab_parallel_embedding.py:25). Which layers are wrapped depends on the model class and on --lora-target-modules, so
this is the most they can take: only row-parallel inputs and column-parallel outputs are counted as divided.
"""

from __future__ import annotations

from collections.abc import Mapping

from attnfit.engines.vllm.fit.shard_rules import Cut, layer_of, understand
from attnfit.engines.vllm.fit.spec import ceil_div
from attnfit.engines.vllm.fit.weights import Shard
from attnfit.engines.vllm.launch.pages import DTYPE_BYTES
from attnfit.engines.vllm.launch.state import EngineConfig

_MATRICES = ("", "weight", "weight_packed", "qweight")
_SLICES = {Cut.QKV: 3, Cut.EXPERT: 2}  # merged in the checkpoint, wrapped as so many layers (experts: gate and up)
_PACKED = {"U8": 2, "I8": 2, "I32": 8, "U32": 8}  # elements that one stored number may hold, at most


def asked(cfg: EngineConfig) -> tuple[int, int] | None:
    """(adapters at once, largest rank); None: no LoRA."""
    if not cfg.flags.get("enable_lora"):
        return None
    return _whole(cfg, "max_loras", 1), _whole(cfg, "max_lora_rank", 16)


def buffers(cfg: EngineConfig, shard: Shard, tensors: Mapping[str, tuple[str, tuple[int, ...], int]]) -> int:
    """The most bytes the buffers take on the fullest rank."""
    slots = asked(cfg)
    if slots is None:
        return 0
    within = outside = 0  # sums of the sides of all matrices: of the decoder layers, and of all others
    for name, (dtype, shape, _) in tensors.items():
        read = understand(name)
        if len(shape) < 2 or read.part not in _MATRICES:
            continue
        *stack, rows, columns = shape
        packed = _PACKED.get(dtype, 1)
        many = _SLICES.get(read.cut, 1)
        for side in stack:
            many *= side
        if read.cut is Cut.EXPERT and shard.ep > 1:
            many = ceil_div(many, shard.ep)
        if packed == 1 and read.cut is Cut.COLUMN:
            rows = ceil_div(rows, shard.tp)
        elif packed == 1 and read.cut is Cut.ROW:
            columns = ceil_div(columns, shard.tp)
        if layer_of(name) is None:
            outside += many * (rows + columns) * packed
        else:
            within += many * (rows + columns) * packed
    widest = max(shard.partition, default=shard.layers)
    sides = outside + ceil_div(within * widest, shard.layers)
    given = cfg.flags.get("lora_dtype")
    element = DTYPE_BYTES.get(given, 0) if isinstance(given, str) else 0
    return slots[0] * slots[1] * sides * (element or DTYPE_BYTES[cfg.dtype])


def _whole(cfg: EngineConfig, name: str, default: int) -> int:
    value = cfg.flags.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default
