"""Writing a drop-in so that it can be taken back: the whole new file or the old one, and the old one kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from attnfit.deploy.dropin import FILE, holds_key
from attnfit.deploy.files import Rights, private_folder, read_plain, rights_of, write_private, write_whole
from attnfit.errors import InputError, UsageError
from attnfit.inputs.units import paths
from attnfit.inputs.units.unit import Unit

Record = dict[str, Any]  # what is kept of one file: `before` attnfit's first change, whose it was, `after` the last
_READABLE = Rights(0o644)


class Place(msgspec.Struct, frozen=True):
    """A drop-in of ours: where systemd reads it, where it lies (under an image's root), and what is there now."""

    shown: str
    path: Path
    before: str | None  # None: no such file
    rights: Rights | None = None  # of that file


def place_of(unit: Unit, environ: Mapping[str, str] | None = None) -> Place:
    """Raises InputError for a place that is no plain file we may read."""
    around = os.environ if environ is None else environ
    folder = f"{paths.home_of_dropins(unit.user, around)}/{unit.name}.d"
    shown = f"{folder}/{FILE}"
    path = paths.within(unit.root, shown)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise InputError(f"{path} is a link or no plain file; look at it and move it away")
    try:
        before = _text(path)
        return Place(shown, path, before, None if before is None else rights_of(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error}); look at it and move it away") from None


def _text(path: Path) -> str | None:
    """What stands in it, each byte as it is; None: no such file. Raises OSError."""
    try:
        return read_plain(path).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None


def kept_at(path: Path, environ: Mapping[str, str] | None = None) -> Path:
    """The file that keeps what was there before. Its name says whose in short; the digest is of the whole path."""
    around = os.environ if environ is None else environ
    base = around.get("XDG_STATE_HOME") or Path(around.get("HOME") or Path.home()) / ".local" / "state"
    whole = str(path.absolute())
    digest = hashlib.sha256(os.fsencode(whole)).hexdigest()[:32]
    return Path(base) / "attnfit" / "units" / f"{quote(whole, safe='')[-100:]}-{digest}.json"


def put(place: Place, text: str, name: str) -> Record | None:
    """Keeps what was there, then writes `text`. Returns what was kept until then, for `roll_back`. Raises UsageError
    where that is not allowed or has no room; then all is as it was."""
    kept = kept_at(place.path)
    earlier = record_of(place.path)
    first = earlier if earlier and place.before is not None and earlier["after"] == place.before else None
    before, rights = (first["before"], first.get("rights")) if first else (place.before, place.rights)
    record = {"unit": name, "path": str(place.path.absolute()), "before": before, "rights": rights, "after": text,
              "at": int(time.time())}  # fmt: skip
    try:
        private_folder(kept.parent)
        write_private(kept, record)
    except OSError as error:
        raise _refused(kept, error) from None
    try:
        _write(place.path, text, _rights(place.rights, text))
    except BaseException as error:
        keep(place.path, earlier)
        if isinstance(error, OSError):
            raise _refused(place.path, error) from None
        raise
    return earlier if first else None


def roll_back(place: Place, text: str, earlier: Record | None) -> None:
    """The file as it was before `text` was put there, and what was kept then."""
    take_back(place.path, place.before, place.rights, text)
    keep(place.path, earlier)


def take_back(path: Path, to: str | None, rights: Rights | None, ours: str) -> None:
    """Puts `to` back where `ours` was written; None takes the file away. Raises UsageError if it is no longer ours."""
    try:
        if _text(path) != ours:
            raise UsageError(f"{path} was changed since attnfit wrote it; it is left as it stands")
        if to is not None:
            _write(path, to, rights or _rights(None, to))
            return
        path.unlink()
        with contextlib.suppress(OSError):  # others' drop-ins stand in it
            path.parent.rmdir()
    except OSError as error:
        raise _refused(path, error) from None


def undoable(place: Place) -> Record:
    """What is kept of the file. Raises UsageError: nothing."""
    record = record_of(place.path)
    if record is None:
        raise UsageError(f"attnfit keeps nothing of {place.path}; there is nothing to undo")
    return record


def undo(place: Place) -> str | None:
    """Puts back what was there before attnfit's first change; returns that text. Raises UsageError: nothing kept."""
    record = undoable(place)
    rights = record.get("rights")
    take_back(place.path, record["before"], Rights(*rights) if rights else None, record["after"])
    keep(place.path, None)
    before: str | None = record["before"]
    return before


def keep(path: Path, record: Record | None) -> None:
    """What undo knows of the file from now on; None: nothing."""
    with contextlib.suppress(OSError):
        if record is None:
            kept_at(path).unlink()
        else:
            write_private(kept_at(path), record)


def record_of(path: Path) -> Record | None:
    """What is kept of this very file."""
    try:
        found = json.loads(read_plain(kept_at(path)))
    except (OSError, ValueError):
        return None
    known = isinstance(found, dict) and {"before", "after", "path"} <= found.keys()
    return found if known and found["path"] == str(path.absolute()) else None


def _rights(old: Rights | None, text: str) -> Rights:
    """Those of the file that was there, else readable by all; by its owner alone if a key stands in the text."""
    rights = old or _READABLE
    return rights.of_owner if holds_key(text) else rights


def _write(path: Path, text: str, rights: Rights) -> None:
    """The file, whole. Raises OSError; then nothing was changed."""
    made = not path.parent.exists()
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    try:
        write_whole(path, text.encode("utf-8", "surrogateescape"), rights)
    except BaseException:
        if made:
            with contextlib.suppress(OSError):
                path.parent.rmdir()
        raise


def _refused(path: Path, error: OSError) -> UsageError:
    why = f"{error.filename or path} cannot be written ({error.strerror or error}); nothing was changed"
    if isinstance(error, PermissionError):
        return UsageError(f"{why}; run again as root, or write --stdout")
    return UsageError(why)
