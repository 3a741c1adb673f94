"""The tensors of a model: from the headers of its safetensors files, wherever they lie, never the weights."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from attnfit.errors import InputError, UnknownAnswer
from attnfit.inputs.model import ModelFiles
from attnfit.inputs.places import Place
from attnfit.inputs.safetensors import (
    BITS,
    INDEX,
    MOST_INDEX,
    BrokenFile,
    Checkpoint,
    missing_parts,
    read_checkpoint,
    weight_files,
)
from attnfit.inputs.waiting import told

_AT_ONCE = 8  # headers asked of the hub at the same time


def read_weights(files: ModelFiles) -> Checkpoint | None:
    """All tensors of the model, exact to the byte. None where there are no safetensors files, or only config.json.

    Of a hub model each header is one range request; they are kept, so a second run needs no hub. Raises InputError
    (broken or missing files) and UnknownAnswer (the hub cannot be read).
    """
    place = files.place
    if place is None or "safetensors" not in files.weights:
        return None
    if files.repo is None:
        names = weight_files(place.names or (), _index(place))
        return read_checkpoint(names, place.source) if names else None
    return _of_the_hub(files)


def _of_the_hub(files: ModelFiles) -> Checkpoint | None:
    from concurrent.futures import ThreadPoolExecutor

    from attnfit.inputs import hub_kept
    from attnfit.inputs.hub import Repository

    place = files.place
    assert isinstance(place, Repository), "a model with a repository lies in one"
    if (kept := hub_kept.checkpoint(place.ref, place.commit)) is not None:
        return kept
    names = weight_files(place.files or (), _index(place))
    if not names:
        return None
    with ThreadPoolExecutor(_AT_ONCE) as pool, told(f"reading the headers of {len(names)} files of {place.ref.repo}"):
        found = read_checkpoint(names, place.source, many=pool.map)
    hub_kept.keep_checkpoint(place.ref, place.commit, found)
    return found


def _index(place: Place) -> dict[str, Any] | None:
    """The index of the shards, if there is one. BrokenFile where Python's own `json` refuses it, as the engine does."""
    if not place.has(INDEX):
        return None
    try:
        return place.json(INDEX, most=MOST_INDEX)
    except InputError as error:
        source = place.source(INDEX)
        try:
            text = source.read(0, MOST_INDEX)
            whole = isinstance(json.loads(text.decode("utf-8")), dict)
        except (ValueError, RecursionError):
            raise BrokenFile(str(error)) from None
        except UnknownAnswer:
            raise error from None
        finally:
            getattr(source, "close", lambda: None)()
        if not whole:
            raise BrokenFile(str(error)) from None
        raise


class Found(NamedTuple):
    """A checkpoint, or why there is none. `broken` and `doubt` as in `engines.Weights`."""

    checkpoint: Checkpoint | None
    why: str = ""
    broken: str = ""
    doubt: str = ""


def examine(files: ModelFiles) -> Found:
    """`read_weights`, with sentences instead of errors, and a look at what makes a checkpoint useless."""
    if files.gguf is not None:
        return Found(None, "the tensors of a GGUF file are not divided among GPUs here")
    try:
        found = read_weights(files)
    except BrokenFile as error:
        if files.consolidated:  # Mistral's own copy, which recent releases load instead
            return Found(None, str(error), doubt=str(error))
        return Found(None, str(error), broken=str(error))
    except (InputError, UnknownAnswer) as error:
        return Found(None, str(error))
    if found is None:
        return Found(None, "no safetensors files at hand")
    return Found(found, doubt=_doubt(found))


def _doubt(found: Checkpoint) -> str:
    if missing := missing_parts(found.files):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return f"the names of the weight files say that there is {missing[0]}{more}, which is not there"
    for name, tensor in found.tensors.items():
        if tensor.dtype not in BITS:
            return (
                f"{name[:80]!r} has dtype {tensor.dtype[:20]!r}, which the safetensors format does not name; is the "
                "file whole, or newer than its readers?"
            )
    return ""


def weights_or_why(files: ModelFiles) -> tuple[Checkpoint | None, str]:
    """`read_weights`, with a sentence instead of an error: for answers that can do without."""
    found = examine(files)
    return found.checkpoint, found.why
