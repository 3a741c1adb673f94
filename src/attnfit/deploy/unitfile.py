"""Writing a drop-in so that it can be taken back: the whole new file or the old one, and the old one kept."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from attnfit.deploy.dropin import FILE, holds_key
from attnfit.deploy.files import private_folder, write_private
from attnfit.errors import InputError, UsageError
from attnfit.inputs.units import paths
from attnfit.inputs.units.unit import Unit


class Place(msgspec.Struct, frozen=True):
    """A drop-in of ours: where systemd reads it, where it lies (under an image's root), and what is there now."""

    shown: str
    path: Path
    before: str | None  # None: no such file


def place_of(unit: Unit, environ: Mapping[str, str] | None = None) -> Place:
    """Raises InputError for a place that is no plain file we may read."""
    around = os.environ if environ is None else environ
    folder = f"{paths.home_of_dropins(unit.user, around)}/{unit.name}.d"
    shown = f"{folder}/{FILE}"
    path = paths.within(unit.root, shown)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise InputError(f"{path} is a link or no plain file; look at it and move it away")
    try:
        before = path.read_text("utf-8") if path.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}); look at it and move it away") from None
    return Place(shown, path, before)


def kept_at(path: Path, environ: Mapping[str, str] | None = None) -> Path:
    """The file that keeps what was there before."""
    around = os.environ if environ is None else environ
    base = around.get("XDG_STATE_HOME") or Path(around.get("HOME") or Path.home()) / ".local" / "state"
    return Path(base) / "attnfit" / "units" / f"{quote(str(path.absolute()), safe='')[-200:]}.json"


def put(place: Place, text: str, name: str) -> None:
    """Keeps what was there, then writes `text`. Raises UsageError where that is not allowed or has no room."""
    kept = kept_at(place.path)
    first = _kept(kept) if place.before is not None else None
    before = first["before"] if first and first["after"] == place.before else place.before  # of several, the first
    try:
        private_folder(kept.parent)
        write_private(
            kept, {"unit": name, "path": str(place.path), "before": before, "after": text, "at": int(time.time())}
        )
        _write(place.path, text)
    except OSError as error:
        raise _refused(place.path, error) from None


def take_back(place: Place, to: str | None, ours: str) -> None:
    """Puts `to` back where `ours` was written; None takes the file away. Raises UsageError if it is no longer ours."""
    try:
        now = place.path.read_text("utf-8") if place.path.exists() else None
        if now != ours:
            raise UsageError(f"{place.path} was changed since attnfit wrote it; it is left as it stands")
        if to is not None:
            _write(place.path, to)
            return
        place.path.unlink()
        with contextlib.suppress(OSError):  # others' drop-ins stand in it
            place.path.parent.rmdir()
    except OSError as error:
        raise _refused(place.path, error) from None


def undo(place: Place) -> str | None:
    """Puts back what was there before attnfit's first change; returns that text. Raises UsageError: nothing kept."""
    kept = kept_at(place.path)
    record = _kept(kept)
    if record is None:
        raise UsageError(f"attnfit keeps nothing of {place.path}; there is nothing to undo")
    take_back(place, record["before"], record["after"])
    forget(place)
    before: str | None = record["before"]
    return before


def forget(place: Place) -> None:
    with contextlib.suppress(OSError):
        kept_at(place.path).unlink()


def _kept(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"before", "after"} <= found.keys() else None


def _write(path: Path, text: str) -> None:
    """The file, whole; readable by all unless a key stands in it. Raises OSError."""
    made = not path.parent.exists()
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(prefix=".attnfit.", suffix=".new", dir=path.parent)  # systemd reads only *.conf
    try:
        with os.fdopen(number, "w", encoding="utf-8", errors="surrogateescape") as file:
            os.fchmod(file.fileno(), 0o600 if holds_key(text) else 0o644)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
            if made:
                path.parent.rmdir()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _refused(path: Path, error: OSError) -> UsageError:
    if isinstance(error, PermissionError):
        return UsageError(f"{path} may not be written by this user; run again as root, or write --stdout")
    return UsageError(f"{error.filename or path} cannot be written ({error.strerror}); nothing was changed")
