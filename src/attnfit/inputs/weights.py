"""The tensors of a model: from the headers of its safetensors files, wherever they lie, never the weights."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from attnfit.errors import InputError
from attnfit.inputs.model import ModelFiles
from attnfit.inputs.safetensors import INDEX, MOST_INDEX, Checkpoint, read_checkpoint, weight_files

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
        names = weight_files(place.names or (), place.json(INDEX, most=MOST_INDEX) if place.has(INDEX) else None)
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
    index = place.json(INDEX, most=MOST_INDEX) if place.has(INDEX) else None
    names = weight_files(place.files or (), index)
    if not names:
        return None
    with ThreadPoolExecutor(_AT_ONCE) as pool, _told(f"reading the headers of {len(names)} files of {place.ref.repo}"):
        found = read_checkpoint(names, place.source, many=pool.map)
    hub_kept.keep_checkpoint(place.ref, place.commit, found)
    return found


@contextmanager
def _told(doing: str) -> Iterator[None]:
    """Says on a terminal's stderr what takes more than a second."""
    from threading import Timer

    timer = Timer(1.0, lambda: print(f"{doing} ...", file=sys.stderr))
    timer.daemon = True
    if sys.stderr is not None and sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def weights_or_why(files: ModelFiles) -> tuple[Checkpoint | None, str]:
    """`read_weights`, with a sentence instead of an error: for answers that can do without."""
    from attnfit.errors import UnknownAnswer

    if files.gguf is not None:
        return None, "the tensors of a GGUF file are not divided among GPUs here"
    try:
        found = read_weights(files)
    except (InputError, UnknownAnswer) as error:
        return None, str(error)
    return found, "" if found is not None else "no safetensors files at hand"
