"""A model as it lies on disk: its config.json and the files beside it that change what an engine does with it.

`read_model` reads and refuses; it decides nothing about attention. What a path can be instead of a model (a hub id, a
GGUF file, a LoRA adapter, a diffusers pipeline, a cache folder) gets an answer that says so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from attnfit.errors import InputError, UnknownAnswer, did_you_mean
from attnfit.inputs.json_file import read_object, why

CONFIG = "config.json"
_MOST_FILES = 20_000  # of a directory are looked at
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?")
_REMOTE = re.compile(r"(s3|gs|az|hf|runai|oci)://", re.IGNORECASE)
_WEIGHT_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. `config` is config.json as the engine's JSON reader would give it."""

    path: str  # as the user gave it
    config_path: str
    config: dict[str, Any]
    hf_quant: dict[str, Any] | None = None  # hf_quant_config.json (ModelOpt); engines read it only without
    # a quantization_config in config.json
    generation: dict[str, Any] | None = None  # generation_config.json
    params: bool = False  # params.json (Mistral format) lies beside it
    consolidated: bool = False  # consolidated*.safetensors too: recent vLLM then reads params.json, not config.json
    names: frozenset[str] | None = None  # of all files beside it; None: only the config file is known
    weights: tuple[str, ...] = ()  # kinds of weight files: "safetensors", "bin", "gguf"; empty: none here
    notes: tuple[str, ...] = ()


def read_model(path: str) -> ModelFiles:
    """Read the model at `path`: a directory with config.json, or such a file itself.

    Raises InputError (missing, unreadable, or not what it should be) and UnknownAnswer (a hub id, a GGUF file, a
    format that is not read yet). An existing path wins over a hub id of the same name.
    """
    if not isinstance(path, str) or not path.strip():
        raise InputError("no model: give a directory with config.json, or a config.json file")
    place = Path(path)
    try:
        os.stat(place)
        is_directory = place.is_dir()
    except (OSError, ValueError) as error:
        raise _absent(path, error) from None
    if is_directory:
        return _from_directory(path, place)
    return _from_file(path, place)


def _from_directory(path: str, directory: Path) -> ModelFiles:
    names = _names(directory)
    if CONFIG not in names:
        raise _without_config(path, directory, names)
    notes: list[str] = []
    config = read_object(directory / CONFIG, notes)
    _refuse_pipelines(path, config)
    return ModelFiles(
        path=path,
        config_path=str(directory / CONFIG),
        config=config,
        hf_quant=_hf_quant(directory, names, config, notes),
        generation=_optional(directory / "generation_config.json", names, notes),
        params="params.json" in names,
        consolidated=any(n.startswith("consolidated") and n.endswith(".safetensors") for n in names),
        names=names,
        weights=_weights(names),
        notes=tuple(notes),
    )


def _from_file(path: str, file: Path) -> ModelFiles:
    if file.suffix.lower() == ".gguf":
        raise UnknownAnswer(_GGUF.format(path))
    if file.suffix.lower() in {".safetensors", ".bin", ".pt", ".pth", ".onnx"}:
        raise InputError(f"{path} holds weights; give the directory it lies in, which has the config.json")
    if file.name == CONFIG:
        found = _from_directory(str(file.parent), file.parent)
        said = f"{path} is the file; an engine is given its directory, {file.parent}"
        return msgspec.structs.replace(found, path=path, notes=(*found.notes, said))
    notes: list[str] = []
    config = read_object(file, notes)
    _refuse_pipelines(path, config)
    notes.append(f"{path} is not named {CONFIG}: it is read as one, without the files beside it")
    return ModelFiles(path=path, config_path=path, config=config, notes=tuple(notes))


def _names(directory: Path) -> frozenset[str]:
    names: list[str] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) >= _MOST_FILES:
                    break
    except OSError as error:
        raise InputError(f"{directory}: {why(error)}") from None
    if len(names) >= _MOST_FILES and (directory / CONFIG).exists():
        names.append(CONFIG)
    return frozenset(names)


def _hf_quant(
    directory: Path, names: frozenset[str], config: dict[str, Any], notes: list[str]
) -> dict[str, Any] | None:
    file = "hf_quant_config.json"
    if file not in names:
        return None
    if config.get("quantization_config") is None:
        return read_object(directory / file, notes)  # the engine reads it, so a broken one is an error
    return _optional(directory / file, names, notes)


def _optional(file: Path, names: frozenset[str], notes: list[str]) -> dict[str, Any] | None:
    """A file that does not decide: one that cannot be read is a note, not an error."""
    if file.name not in names:
        return None
    try:
        return read_object(file, notes)
    except InputError as error:
        notes.append(f"left out: {error}")
        return None


def _weights(names: Iterable[str]) -> tuple[str, ...]:
    kinds = {"safetensors": ".safetensors", "bin": ".bin", "gguf": ".gguf"}
    found = {kind for kind, ending in kinds.items() if any(n.endswith(ending) for n in names)}
    found |= {("safetensors", "bin")[i] for i, index in enumerate(_WEIGHT_INDEXES) if index in names}
    return tuple(sorted(found))


_GGUF = "{} is a GGUF file, which is not read yet; download the config.json of the model it was made from and give that"


def _refuse_pipelines(path: str, config: dict[str, Any]) -> None:
    if "_diffusers_version" in config or "_class_name" in config:
        raise InputError(f"{path} is part of a diffusers pipeline (images or video), not a language model")
    if "peft_type" in config:
        raise InputError(_adapter(path, config))


def _adapter(path: str, adapter: dict[str, Any]) -> str:
    base = adapter.get("base_model_name_or_path")
    named = f" (it says {base[:120]!r})" if isinstance(base, str) and base else ""
    return f"{path} is a LoRA adapter, not a model; give its base model{named} and pass the adapter by --lora-modules"


def _without_config(path: str, directory: Path, names: frozenset[str]) -> InputError | UnknownAnswer:
    """What a directory without config.json is, as well as can be told."""
    if "adapter_config.json" in names:
        try:
            adapter = read_object(directory / "adapter_config.json")
        except InputError:
            adapter = {}
        return InputError(_adapter(path, adapter))
    if "model_index.json" in names:
        return InputError(f"{path} is a diffusers pipeline (images or video), not a language model")
    if any(n.lower().endswith(".gguf") for n in names):
        return UnknownAnswer(_GGUF.format(f"{path} has no config.json; what it holds"))
    if "params.json" in names:
        return UnknownAnswer(
            f"{path} is in Mistral format (params.json without config.json), which is not read yet; add the "
            "config.json of the model's repository"
        )
    if inner := _inner(directory, names):
        return InputError(f"{path} has no config.json, but {inner} has; give that")
    held = ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "") if names else "nothing"
    return InputError(f"{path} has no config.json (it holds {held}); give the directory of a model")


def _inner(directory: Path, names: frozenset[str]) -> Path | None:
    """The one place below where a config.json lies: a sub-directory, or a snapshot of a hub cache folder."""
    try:
        if "snapshots" in names:
            places = sorted((directory / "snapshots").iterdir(), key=lambda p: p.stat().st_mtime)[-1:]
        else:
            places = [directory / name for name in sorted(names)[:200]]
        found = [place for place in places if (place / CONFIG).is_file()]
    except OSError:
        return None
    return found[0] if len(found) == 1 else None


def _absent(path: str, error: OSError | ValueError) -> InputError | UnknownAnswer:
    """What a path that is not there may be: a hub id, object storage, a web address, or a typing error."""
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError | NotADirectoryError):
        return InputError(f"{path}: {why(error)}")
    if isinstance(error, ValueError):
        return InputError(f"{path!r} {why(error)}")
    if address := re.fullmatch(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([^/?#]+/[^/?#]+).*", path):
        return UnknownAnswer(_HUB.format(address[1]))
    if re.match(r"https?://", path):
        return InputError(f"{path} is a web address; download the model's config.json and give that")
    if _REMOTE.match(path):
        return UnknownAnswer(
            f"{path} lies in remote storage, which is not read; copy its config.json here and give that"
        )
    if path.lower().endswith(".gguf") or re.fullmatch(r"[^/:]+/[^/:]+:[\w.-]+", path):
        return UnknownAnswer(f"{path} is not here; and " + _GGUF.format("what it names"))
    if path.startswith("~"):
        return InputError(f"{path}: the engine does not expand ~ and neither does attnfit; write the path in full")
    if _HUB_ID.fullmatch(path) and not path.endswith(".json"):
        return UnknownAnswer(_HUB.format(path) + _near(path))
    return InputError(f"{path}: no such file or directory{_near(path) or '; check the spelling'}")


_HUB = (
    "{} is no path here, so it is taken for a hub id, and hub ids are not read yet; download config.json (and "
    "hf_quant_config.json if there is one) into a directory and give that"
)


def _near(path: str) -> str:
    """A sibling of nearly that name."""
    parent = Path(path).parent
    try:
        with os.scandir(parent) as entries:
            names = [entry.name for entry, _ in zip(entries, range(2000), strict=False)]
    except OSError:
        return ""
    return did_you_mean(Path(path).name, names)
