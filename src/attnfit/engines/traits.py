"""What an engine knows of a model before any flag or GPU has a say: the nouns of `attnfit model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec


class Trait(NamedTuple):
    """One thing an engine knows of a model, and the key or file that says so."""

    name: str  # stable, e.g. "head_size"
    value: Any
    source: str = ""


class LayerKind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of cache-bearing layer on one GPU, in the order the model class builds them."""

    kind: str  # "MLA, sparse", "GQA, sliding window", "linear (gated delta net)", ...
    layer_class: str  # the engine's name
    count: int
    head_size: int | None = None
    kv_heads: int | None = None
    window: int | None = None


class Traits(msgspec.Struct, kw_only=True):
    """What a release makes of a model before any flag or GPU has a say."""

    release: str
    traits: tuple[Trait, ...] = ()
    layers: tuple[LayerKind, ...] = ()
    layers_from: tuple[str, ...] = ()  # keys that say which layer is of which kind
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def renamed(self, keys: Mapping[str, str]) -> Traits:
        """The same with each key in a source replaced by the one of another file: key of config.json -> its name."""

        def other(source: str) -> str:
            return ", ".join(dict.fromkeys(keys.get(key, key) for key in source.split(", ")))

        traits = tuple(trait._replace(source=other(trait.source)) for trait in self.traits)
        return msgspec.structs.replace(self, traits=traits, layers_from=tuple(map(other, self.layers_from)))
