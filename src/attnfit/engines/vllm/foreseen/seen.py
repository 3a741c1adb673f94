"""What a predicate is told of a launch that passes every gate, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from attnfit.core import Capability, LayerQuestion, Status
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
    def given(self) -> set[str]:
        """The flags and variables of the command: "--attention-backend", "VLLM_USE_DEEP_GEMM"."""
        flags = {f"--{dest.replace('_', '-')}" for dest in self.cfg.flags.values}
        short = {"--attention-config": "-ac", "--compilation-config": "-cc"}
        return {*flags, *(short[flag] for flag in flags & short.keys()), *self.variables}

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
    ways: tuple[str, ...] = ()  # out of it for this launch, a line each; they stand in place of the record's


Predicate = Callable[[Seen], Found | None]


def accepting(layers: Sequence[LayerQuestion]) -> list[str]:
    """The backends of the release that take every one of these layers, in the engine's order."""
    first, *rest = layers
    names = [verdict.backend for verdict in first.selection.verdicts if verdict.status == Status.ACCEPTS]
    for layer in rest:
        taken = {verdict.backend for verdict in layer.selection.verdicts if verdict.status == Status.ACCEPTS}
        names = [name for name in names if name in taken]
    return names
