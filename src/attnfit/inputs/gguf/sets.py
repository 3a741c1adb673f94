"""A model in GGUF: one file, or the parts of a split set, each with its own list of tensors.

`gguf-split` names the parts `NAME-00001-of-000NN.gguf`; only the first has the model's keys.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping

import msgspec

from attnfit.errors import AttnfitError, InputError
from attnfit.inputs.gguf.header import MOST_TENSORS, Header, Tensor, read_header
from attnfit.inputs.gguf.tensor_types import TYPES, name_of
from attnfit.inputs.ranges import FileSource, Source

MOST_PARTS = 1_000
_PART = re.compile(r"(.*-)(\d{5})(-of-)(\d{5})(\.gguf)", re.IGNORECASE | re.DOTALL)

#: gives the file of that name beside the first, or None where there is none
Beside = Callable[[str], "Source | None"]


class GgufFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The header of the first (or only) file, and the tensors of all parts that are there."""

    header: Header
    names: tuple[str, ...]  # of the files that were read
    parts: int  # of the set; 1: not split
    missing: tuple[str, ...]  # parts that are not there
    tensors: tuple[Tensor, ...]
    notes: tuple[str, ...] = ()
    broken: str = ""  # what is wrong with a part that ends too early

    @property
    def architecture(self) -> str:
        """`general.architecture`. Raises InputError where the file does not name one."""
        found = self.header.values.get("general.architecture")
        if not isinstance(found, str) or not found:
            raise InputError(
                f"{self.header.name} names no general.architecture; is it a model, or an adapter, a vocabulary or an "
                "importance matrix?"
            )
        return found

    @property
    def weight_bytes(self) -> int | None:
        """Bytes of all tensors, without padding. None where a part is missing or a tensor's type is not known."""
        sizes = [tensor.nbytes for tensor in self.tensors]
        return None if self.missing or None in sizes else sum(size for size in sizes if size is not None)

    @property
    def bits_per_weight(self) -> float | None:
        """Mean over all tensors at hand of a known type; None where there are none."""
        known = [tensor for tensor in self.tensors if tensor.type in TYPES]
        count = sum(tensor.elements for tensor in known)
        return sum(tensor.nbytes or 0 for tensor in known) * 8 / count if count else None

    def types(self) -> Mapping[str, tuple[int, int]]:
        """Tensor type -> (tensors, bytes), the largest share first; 0 bytes where the type is not known."""
        found: dict[str, tuple[int, int]] = {}
        for tensor in self.tensors:
            count, size = found.get(name_of(tensor.type), (0, 0))
            found[name_of(tensor.type)] = count + 1, size + (tensor.nbytes or 0)
        return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def read_gguf(path: str) -> GgufFiles:
    """Read the local file at `path`, and the other parts of its set. Raises InputError."""
    with FileSource(path) as source:
        return read_set(source, open_beside(path))


def open_beside(path: str) -> Beside:
    """For `read_set`: opens files in the directory of the local file `path`."""

    def beside(name: str) -> Source | None:
        place = os.path.join(os.path.dirname(path), name)
        return FileSource(place) if os.path.isfile(place) else None

    return beside


def read_set(source: Source, beside: Beside) -> GgufFiles:
    """Read `source` and, where its name says that it is the first part of a set, the other parts.

    beside: opens another part by its file name; what it opens is closed again. Raises InputError where the first
    file cannot be read or is not the first; what is wrong with another part is a note, and the part counts as missing.
    """
    header = read_header(source)
    notes = [_cut_off(header)] if header.cut_off else []
    name = source.name.rsplit("/", 1)[-1]
    match = _PART.fullmatch(name)
    split = header.values.get("split.count")
    stated = split if isinstance(split, int) and not isinstance(split, bool) else 0
    number, parts = (int(match[2]), int(match[4])) if match else (_number(header), max(stated, 1))
    if number != 1 and parts > 1:
        first = f"{match[1]}00001{match[3]}{match[4]}{match[5]}" if match else "the first"
        raise InputError(f"{source.name} is part {number} of a split set; give {first}, which describes the model")
    if match and stated > 1 and stated != parts:
        notes.append(f"{name}: the file says it is one of {stated} parts, its name one of {parts}")
    if parts > MOST_PARTS:
        raise InputError(f"{source.name} is one of {parts:,} parts; more than {MOST_PARTS:,} are not read")
    tensors, names, missing = list(header.tensors), [name], []
    broken = notes[0] if notes else ""
    for other in range(2, parts + 1):
        part = f"{match[1]}{other:05d}{match[3]}{match[4]}{match[5]}" if match else f"part {other}"
        found = _part(part, beside, notes) if match else None
        if found is None:
            missing.append(part)
        else:
            names.append(part)
            broken = broken or (_cut_off(found) if found.cut_off else "")
            tensors += found.tensors
            if len(tensors) > MOST_TENSORS:
                raise InputError(f"{source.name} and its parts list more than {MOST_TENSORS:,} tensors; no model does")
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        notes.append(f"{len(missing)} of {parts} parts are not here: {shown}; sizes of weights are not known")
    return GgufFiles(
        header=header,
        names=tuple(names),
        parts=parts,
        missing=tuple(missing),
        tensors=tuple(tensors),
        notes=tuple(notes),
        broken=broken,
    )


def _number(header: Header) -> int:
    found = header.values.get("split.no", 0)
    return found + 1 if isinstance(found, int) else 1


def _part(name: str, beside: Beside, notes: list[str]) -> Header | None:
    try:
        source = beside(name)
        if source is None:
            return None
        try:
            header = read_header(source)
        finally:
            if isinstance(source, FileSource):
                source.close()
    except AttnfitError as error:
        notes.append(f"left out: {error}")
        return None
    if header.cut_off:
        notes.append(_cut_off(header))
    return header


def _cut_off(header: Header) -> str:
    return (
        f"{header.name} ends {header.cut_off:,} bytes before its last tensor does: the engine cannot load it; "
        "download it again"
    )
