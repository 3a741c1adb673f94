"""A model as its files say it: config.json and the files beside it that change what an engine does with it.

`read_model` reads and refuses; it decides nothing about attention. The files lie in a directory here, or in a
repository on the hub (hub.py, imported only then). What a path can be instead of a model gets an answer that says so
(not_a_model.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from attnfit.core import Model
from attnfit.errors import InputError, UnknownAnswer
from attnfit.inputs.json_file import read_object, starts_as_gguf
from attnfit.inputs.places import Directory, Place

if TYPE_CHECKING:
    from attnfit.inputs.gguf.traits import GgufModel
    from attnfit.inputs.hub_ref import HubRef, HubSettings

CONFIG = "config.json"
_WEIGHT_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. `config` is config.json as the engine's JSON reader would give it."""

    path: str  # as the user gave it
    config_path: str  # for people: where config.json was read
    config: dict[str, Any]
    hf_quant: dict[str, Any] | None = None  # hf_quant_config.json (ModelOpt); engines read it only without
    # a quantization_config in config.json
    generation: dict[str, Any] | None = (
        None  # generation_config.json; of a hub model it is not fetched: nothing asks for it
    )
    params: bool = False  # params.json (Mistral format) lies beside it
    consolidated: bool = False  # consolidated*.safetensors too: some releases then read params.json, not config.json
    names: frozenset[str] | None = None  # of all files beside it; None: only the config file is known
    weights: tuple[str, ...] = ()  # kinds of weight files: "safetensors", "bin", "gguf"; empty: none here
    notes: tuple[str, ...] = ()
    gguf: GgufModel | None = None  # the model is this GGUF file; `config` is what its keys say
    place: Place | None = None  # where more can be read; None: only the config file is known
    repo: str | None = None  # the hub repository it is, if it is one
    revision: str | None = None  # of that repository, as asked for
    commit: str | None = None
    named: str | None = None  # what an engine is given, where that is not `path`

    @property
    def engine_path(self) -> str:
        return self.named or self.path

    @property
    def served_as(self) -> tuple[str, ...]:
        """How a launch command names it."""
        return (self.engine_path, *(("--revision", self.revision) if self.revision and self.repo else ()))

    def model(self) -> Model:
        """What the engines are asked with. Reads the headers of the weights where config.json names no dtype."""
        dtypes = None
        if "safetensors" in self.weights and not _names_dtype(self.config):
            from attnfit.inputs.weights import weights_or_why

            found, _ = weights_or_why(self)
            dtypes = None if found is None else frozenset(tensor.dtype for tensor in found.tensors.values())
        return Model(
            path=self.engine_path,
            config=self.config,
            hf_quant=self.hf_quant,
            files=self.names,
            weight_dtypes=dtypes,
            hub=self.repo is not None and self.gguf is None,
            gguf=self.gguf,
        )


def _names_dtype(config: dict[str, Any]) -> bool:
    """Whether an engine finds a dtype in config.json (the parts it looks into have names of their own)."""
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    return any(part.get("dtype") or part.get("torch_dtype") for part in parts)


def read_model(path: str, hub: Callable[[], HubSettings] | None = None) -> ModelFiles:
    """Read the model at `path`: a directory with config.json, such a file itself, or a hub id.

    hub: how the launch reaches the hub; called only where `path` is none here. Default: this process's environment.

    Raises InputError (missing, unreadable, or not what it should be) and UnknownAnswer (gated, offline, a format that
    is not read yet, ...). An existing path wins over a hub id of the same name, and a note says so.
    """
    if not isinstance(path, str) or not path.strip():
        raise InputError("no model: give a directory with config.json, such a file, or a hub id (org/name)")
    place = Path(path)
    try:
        os.stat(place)
        is_directory = place.is_dir()
    except (OSError, ValueError) as error:
        return _elsewhere(path, error, hub)
    if is_directory:
        return _from_directory(path, place)
    return _from_file(path, place)


def _from_directory(path: str, directory: Path) -> ModelFiles:
    place = Directory(directory)
    if CONFIG not in place.names:
        from attnfit.inputs.not_a_model import without_config

        raise without_config(path, place, directory)
    found = _from_place(path, place, generation=True)
    if _could_be_an_id(path):
        said = f"{path} is the directory here; it is not looked for on the hub"
        found = msgspec.structs.replace(found, notes=(said, *found.notes))
    return found


def _from_place(path: str, place: Place, *, generation: bool) -> ModelFiles:
    notes: list[str] = []
    config = place.json(CONFIG, notes)
    _refuse_pipelines(path, config)
    names = place.names
    here = names or frozenset()
    return ModelFiles(
        path=path,
        config_path=place.where(CONFIG),
        config=config,
        hf_quant=_hf_quant(place, config, notes),
        generation=_optional(place, "generation_config.json", notes) if generation else None,
        params="params.json" in here,
        consolidated=any(n.startswith("consolidated") and n.endswith(".safetensors") for n in here),
        names=names,
        weights=_weights(here),
        notes=tuple(notes),
        place=place,
    )


def _from_gguf(path: str, file: Path) -> ModelFiles:
    """The model its header describes; `config` is what the keys say, in the terms of a config.json."""
    from attnfit.inputs.gguf import read_gguf
    from attnfit.inputs.gguf.traits import describe

    found = describe(read_gguf(path))
    return ModelFiles(
        path=path,
        config_path=path,
        config=found.config,
        names=Directory(file.parent).names,
        weights=("gguf",),
        notes=(*found.files.notes, *found.notes),
        gguf=found,
    )


def _from_file(path: str, file: Path) -> ModelFiles:
    if file.suffix.lower() == ".gguf" or (file.name != CONFIG and starts_as_gguf(path)):
        return _from_gguf(path, file)
    if file.suffix.lower() in {".safetensors", ".bin", ".pt", ".pth", ".onnx"}:
        raise InputError(f"{path} holds weights; give the directory it lies in, which has the config.json")
    if file.name == CONFIG:
        found = _from_place(str(file.parent), Directory(file.parent), generation=True)
        said = f"{path} is the file; an engine is given its directory, {file.parent}"
        return msgspec.structs.replace(found, path=path, notes=(*found.notes, said))
    notes: list[str] = []
    config = read_object(file, notes)
    _refuse_pipelines(path, config)
    notes.append(f"{path} is not named {CONFIG}: it is read as one, without the files beside it")
    return ModelFiles(path=path, config_path=path, config=config, notes=tuple(notes))


def _elsewhere(path: str, error: OSError | ValueError, hub: Callable[[], HubSettings] | None) -> ModelFiles:
    """What is no path here: a model of the hub, or something that gets a sentence of its own."""
    from attnfit.inputs.hub_ref import parse_ref, settings_of
    from attnfit.inputs.not_a_model import absent

    settings = hub() if hub is not None else settings_of({})
    gone = isinstance(error, FileNotFoundError | NotADirectoryError)
    ref = parse_ref(path, settings.endpoint) if gone else None
    at_an_address = path.partition("?")[0].lower().endswith(".gguf") and path.startswith(("http://", "https://"))
    if gone and (at_an_address or (ref is not None and (ref.file or ref.quant))):
        return _from_remote_gguf(path, ref, settings)
    if ref is None:
        raise absent(path, error)
    return _from_hub(path, ref, settings)


def _from_remote_gguf(path: str, ref: HubRef | None, settings: HubSettings) -> ModelFiles:
    """A GGUF file on the hub or at a web address. Engines take only the form `REPO:QUANT`; else it is downloaded."""
    from attnfit.inputs.hub_gguf import read_remote_gguf

    if ref is not None and settings.revision:
        ref = msgspec.structs.replace(ref, revision=settings.revision)
    found, opened = read_remote_gguf(path, ref, settings)
    file = opened.source.name.rpartition("/")[2].rpartition(":")[2]
    by_quant = ref is not None and ref.quant is not None
    said = () if by_quant else (f"an engine is given the file itself: taken as if {file} had been downloaded",)
    return ModelFiles(
        path=path,
        config_path=opened.source.name,
        config=found.config,
        names=opened.folder,
        weights=("gguf",),
        notes=(*opened.notes, *said, *found.files.notes, *found.notes),
        gguf=found,
        repo=ref.repo if ref else None,
        revision=ref.revision if ref else None,
        commit=opened.commit,
        named=f"{ref.repo}:{ref.quant}" if ref is not None and by_quant else f"./{file}",
    )


def _from_hub(path: str, ref: HubRef, settings: HubSettings) -> ModelFiles:
    from attnfit.inputs.hub import open_repository
    from attnfit.inputs.not_a_model import near, without_config

    if settings.revision:
        ref = msgspec.structs.replace(ref, revision=settings.revision)
    try:
        place = open_repository(ref, settings)
    except UnknownAnswer as error:
        guess = near(path)
        raise type(error)(str(error) + guess) from None
    if not place.has(CONFIG):
        raise without_config(path, place, None)
    found = _from_place(path, place, generation=False)
    names = found.names
    if names is not None and settings.code_revision and settings.code_revision != ref.revision:
        code = open_repository(msgspec.structs.replace(ref, revision=settings.code_revision), settings).names
        names = frozenset(n for n in names if not n.endswith(".py")) | {n for n in code or () if n.endswith(".py")}
    return msgspec.structs.replace(
        found,
        names=names,
        named=ref.repo,
        repo=ref.repo,
        revision=ref.revision,
        commit=place.commit,
        notes=(*place.notes(), *found.notes),
    )


def _could_be_an_id(path: str) -> bool:
    """Whether the same word could name a model of the hub."""
    parts = path.split("/")
    return len(parts) <= 2 and all(part.replace("-", "").replace("_", "").replace(".", "").isalnum() for part in parts)


def _hf_quant(place: Place, config: dict[str, Any], notes: list[str]) -> dict[str, Any] | None:
    file = "hf_quant_config.json"
    if place.names is None or file not in place.names:
        return None
    if config.get("quantization_config") is None:
        return place.json(file, notes)  # the engine reads it, so a broken one is an error
    return _optional(place, file, notes)


def _optional(place: Place, name: str, notes: list[str]) -> dict[str, Any] | None:
    """A file that does not decide: one that cannot be read is a note, not an error."""
    if place.names is None or name not in place.names:
        return None
    try:
        return place.json(name, notes)
    except (InputError, UnknownAnswer) as error:
        notes.append(f"left out: {error}")
        return None


def _weights(names: Iterable[str]) -> tuple[str, ...]:
    kinds = {"safetensors": ".safetensors", "bin": ".bin", "gguf": ".gguf"}
    found = {kind for kind, ending in kinds.items() if any(n.endswith(ending) for n in names)}
    found |= {("safetensors", "bin")[i] for i, index in enumerate(_WEIGHT_INDEXES) if index in names}
    return tuple(sorted(found))


def _refuse_pipelines(path: str, config: dict[str, Any]) -> None:
    if "_diffusers_version" in config or "_class_name" in config:
        raise InputError(f"{path} is part of a diffusers pipeline (images or video), not a language model")
    if "peft_type" in config:
        from attnfit.inputs.not_a_model import adapter

        raise InputError(adapter(path, config))
