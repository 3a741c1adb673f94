"""What a path is when it is no model that can be read: one sentence each, with what to give instead."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from attnfit.errors import InputError, UnknownAnswer, did_you_mean
from attnfit.inputs.json_file import why
from attnfit.inputs.places import Place

_REMOTE = re.compile(r"(s3|gs|az|hf|runai|oci)://", re.IGNORECASE)


def adapter(path: str, found: dict[str, Any]) -> str:
    base = found.get("base_model_name_or_path")
    named = f" (it says {base[:120]!r})" if isinstance(base, str) and base else ""
    return f"{path} is a LoRA adapter, not a model; give its base model{named} and pass the adapter by --lora-modules"


def without_config(path: str, place: Place, directory: Path | None) -> InputError | UnknownAnswer:
    """What a directory or repository without config.json is, as well as can be told."""
    names = place.names or frozenset()
    if "adapter_config.json" in names:
        try:
            found = place.json("adapter_config.json")
        except (InputError, UnknownAnswer):
            found = {}
        return InputError(adapter(path, found))
    if "model_index.json" in names:
        return InputError(f"{path} is a diffusers pipeline (images or video), not a language model")
    if gguf := sorted(n for n in names if n.lower().endswith(".gguf")):
        one = f"{path}:{gguf[0]}" if directory is None else str(directory / gguf[0])
        return InputError(f"{path} has no config.json; it holds {len(gguf)} GGUF files: give one, as {one}")
    if "params.json" in names:
        return UnknownAnswer(
            f"{path} is in Mistral format (params.json without config.json), which is not read yet; add the "
            "config.json of the model's repository"
        )
    if directory is not None and (inner := _inner(directory, names)):
        return InputError(f"{path} has no config.json, but {inner} has; give that")
    held = ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "") if names else "nothing"
    if directory is None:
        return UnknownAnswer(f"{path} has no config.json on the hub (it holds {held}); give the id of a model")
    return InputError(f"{path} has no config.json (it holds {held}); give the directory of a model")


def _inner(directory: Path, names: frozenset[str]) -> Path | None:
    """The one place below where a config.json lies: a sub-directory, or a snapshot of a hub cache folder."""
    try:
        if "snapshots" in names:
            places = sorted((directory / "snapshots").iterdir(), key=lambda p: p.stat().st_mtime)[-1:]
        else:
            places = [directory / name for name in sorted(names)[:200]]
        found = [place for place in places if (place / "config.json").is_file()]
    except OSError:
        return None
    return found[0] if len(found) == 1 else None


def absent(path: str, error: OSError | ValueError) -> InputError | UnknownAnswer:
    """What a path that is not there, and no hub id, may be: object storage, a web address, or a typing error."""
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError | NotADirectoryError):
        return InputError(f"{path}: {why(error)}")
    if isinstance(error, ValueError):
        return InputError(f"{path!r} {why(error)}")
    if re.match(r"https?://", path):
        return InputError(f"{path} is a web address; download the model's config.json and give that")
    if _REMOTE.match(path):
        return UnknownAnswer(
            f"{path} lies in remote storage, which is not read; copy its config.json here and give that"
        )
    if path.startswith("~"):
        return InputError(f"{path}: the engine does not expand ~ and neither does attnfit; write the path in full")
    return InputError(f"{path}: no such file or directory{near(path) or '; check the spelling'}")


def near(path: str) -> str:
    """A sibling of nearly that name."""
    parent = Path(path).parent
    try:
        with os.scandir(parent) as entries:
            names = [entry.name for entry, _ in zip(entries, range(2000), strict=False)]
    except OSError:
        return ""
    return did_you_mean(Path(path).name, names)
