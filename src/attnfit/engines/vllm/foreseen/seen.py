"""What a predicate is told of a launch that passes every gate, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from attnfit.core import Capability, LayerQuestion
from attnfit.engines.vllm.launch.state import EngineConfig, KvLayer

BREAKS, MAY_BREAK = "breaks", "may break"


class Seen(NamedTuple):
    """One launch as it was walked."""

    cfg: EngineConfig
    layers: Sequence[LayerQuestion]
    kv_layers: Sequence[KvLayer]
    kv_cache_dtype: str | None  # after construction
    capability: Capability
    release: str  # whose sources were read: "0.33.0"
    variables: Mapping[str, str]
    env: Mapping[str, bool]  # environment facts that were stated or found
    driver: str = ""  # of the machine: "580.65.06"; "": not known

    @property
    def minor(self) -> int:
        """33 for 0.33.0."""
        return int(self.release.split(".")[1])

    @property
    def chosen(self) -> list[str]:
        """The backends of all layers, each once."""
        return list(dict.fromkeys(layer.selection.chosen for layer in self.layers if layer.selection.chosen))


class Found(NamedTuple):
    """A hazard that the launch meets: `record` has its words and its remedies."""

    record: str  # "AF223"
    strength: str
    because: str  # what of this launch it is, a clause
    where: str = ""  # engine source
    needs: str = ""
    no_flag: bool = False  # of the record's remedies those that set flags or variables do not help here


Predicate = Callable[[Seen], Found | None]
