"""`attnfit model`: what a release of an engine makes of a model, and from which key or file each trait comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from attnfit import engines
from attnfit.core import Model
from attnfit.engines.traits import Trait, Traits

if TYPE_CHECKING:
    from attnfit.inputs.gguf.traits import GgufModel
    from attnfit.inputs.model import ModelFiles


class ModelReport(msgspec.Struct, kw_only=True):
    """What `attnfit model` answers: a model as one release reads it."""

    model: str
    engine: str
    traits: Traits
    said: tuple[str, ...] = ()  # where it was read
    repo: str | None = None
    commit: str | None = None
    weights: Weights | None = None
    without_weights: str = ""  # why there are none

    @property
    def exit_code(self) -> int:
        return 3 if self.traits.unknown else 0


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Exact sizes from the headers of the weight files."""

    bytes: int
    tensors: int
    by_dtype: dict[str, int]  # bytes, the largest first
    files: dict[str, int | None]  # bytes of each file


def describe(model: str, *, engine: str | None = None, headers: bool = True) -> ModelReport:
    """What a release of an engine makes of a model, and from which key or file each trait comes.

    model: a directory, a config.json, a hub id, or a GGUF file. engine: "NAME==VERSION"; None: the newest rule book.
    headers: False leaves the weight files alone (a hub model then costs two small requests).

    Raises an AttnfitError as `check` does.
    """
    from attnfit.inputs.model import read_model
    from attnfit.inputs.weights import weights_or_why

    name, version = engines.split_spec(engine) if engine else (engines.ENGINES[0], None)
    release = engines.engine(name).release(version)
    said = () if version else (f"no release given: read as {name} {release.version} does, the newest rule book",)
    files = read_model(model)
    said = (*said, *release.said, *files.notes)
    if files.gguf is not None:
        return _of_gguf(files, files.gguf, name, release, said)
    found, why = weights_or_why(files) if headers else (None, "not asked for")
    return ModelReport(
        model=model,
        engine=name,
        traits=release.traits(files.model()),
        said=said,
        repo=files.repo,
        commit=files.commit,
        weights=None
        if found is None
        else Weights(bytes=found.nbytes, tensors=len(found.tensors), by_dtype=found.by_dtype(), files=found.files),
        without_weights=why,
    )


def _of_gguf(
    read: ModelFiles, gguf: GgufModel, engine: str, release: engines.Release, said: tuple[str, ...]
) -> ModelReport:
    """Traits by the keys of the file; its tensors' types are its quantisation."""
    files = gguf.files
    found = release.traits(Model(path=read.engine_path, config=gguf.config)).renamed(gguf.sources)
    bits = files.bits_per_weight
    kinds = {kind: size for kind, (_, size) in files.types().items()}
    found.traits = (
        *(trait for trait in found.traits if trait.name not in ("quantization", "kv_cache_dtype")),
        Trait("quantization", "gguf", ", ".join(list(kinds)[:4])),
        *((Trait("bits_per_weight", round(bits, 2), "tensor types and shapes"),) if bits else ()),
    )
    found.unknown = (gguf.unknown,) if gguf.unknown else found.unknown
    size = files.weight_bytes
    weights = None
    if size is not None:
        names = dict.fromkeys(files.names)
        weights = Weights(bytes=size, tensors=len(files.tensors), by_dtype=kinds, files=names)
    why = "" if size is not None else "a part of the set is missing, or a tensor's type is not known"
    return ModelReport(
        model=read.path,
        engine=engine,
        traits=found,
        said=said,
        repo=read.repo,
        commit=read.commit,
        weights=weights,
        without_weights=why,
    )
