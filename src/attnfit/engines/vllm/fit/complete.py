"""Whether a checkpoint can be the whole of its model: every decoder layer, and an embedding.

The engine looks at that itself once all files are read ("weights were not initialized from checkpoint",
model_loader/default_loader.py) where nothing is quantised; a quantised model it would serve without them.
"""

from __future__ import annotations

from collections.abc import Iterable

from attnfit.engines.vllm.fit.config_weights import DERIVED
from attnfit.engines.vllm.fit.shard_rules import Cut, layer_of, understand
from attnfit.engines.vllm.fit.weights import Shard, Tensors
from attnfit.engines.vllm.launch.state import EngineConfig


def lacking(cfg: EngineConfig, shard: Shard, tensors: Tensors) -> tuple[str, bool]:
    """What is missing, in a few words ("" if nothing is), and whether that is certain.

    Certain for architectures whose every layer is known to have weights of its own.
    """
    certain = cfg.architecture in DERIVED
    groups: dict[str, tuple[int, set[int]]] = {}  # what stands before the layer's number -> bytes, numbers
    embedded = False
    for name, (_, _, nbytes) in tensors.items():
        read = understand(name)
        if read.cut is Cut.TOWER or read.role == "mtp":
            continue
        embedded = embedded or read.role == "embed"
        layer = layer_of(name)
        if layer is not None:
            before = name.partition(f".{layer}.")[0]
            size, numbers = groups.get(before, (0, set()))
            numbers.add(layer)
            groups[before] = size + nbytes, numbers
    if not groups:
        return f"none of its {len(tensors):,} tensors belongs to a layer; are they another model's?", certain
    _, found = max(groups.values(), key=lambda group: group[0])
    absent = sorted(set(range(shard.layers)) - found)
    if absent:
        return f"they have no tensor of layer{'s' * (len(absent) > 1)} {_numbers(absent)} of {shard.layers}", certain
    if certain and not embedded:
        return "they have no embedding", True
    return "", False


def _numbers(absent: Iterable[int]) -> str:
    """ "3, 5 to 7 and 9", at most four parts."""
    parts: list[list[int]] = []
    for n in absent:
        if parts and parts[-1][1] == n - 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    shown = [str(a) if a == b else f"{a} to {b}" for a, b in parts[:4]]
    return ", ".join(shown) + (" and more" if len(parts) > 4 else "")
