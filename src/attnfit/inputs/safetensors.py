"""The tensors of a checkpoint, from the headers of its safetensors files: names, dtypes, shapes and exact bytes.

The format (github.com/huggingface/safetensors, README "Format"): 8 bytes little-endian header length N, N bytes of
JSON, then the data without gaps. Only the header is read, so a file of 100 GB costs as much as one of 1 MB.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from attnfit.errors import InputError
from attnfit.inputs.ranges import Source

MOST_HEADER = 100_000_000  # bytes; the format's own reader refuses more
MOST_TENSORS = 300_000  # in one file; the largest checkpoint known has some 280,000 in all of its files
MOST_PARTS = 2_000  # files of one checkpoint
_MOST_COMMAS = 16 * MOST_TENSORS
#: bits of one element
BITS: dict[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
INDEX = "model.safetensors.index.json"
MOST_INDEX = 100 << 20  # bytes of an index file


class BrokenFile(InputError):
    """A file that is certainly not whole: an engine cannot load it either."""


class Tensor(msgspec.Struct, frozen=True, gc=False):
    """One tensor as it lies in its file."""

    dtype: str  # the format's name: "BF16", "F8_E4M3", "U8", ...
    shape: tuple[int, ...]
    nbytes: int


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """All tensors of a model's safetensors files."""

    tensors: dict[str, Tensor]
    files: dict[str, int | None]  # the files they lie in, and the bytes of each

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, each counted once."""
        return sum(t.nbytes for t in self.tensors.values())

    def by_dtype(self) -> dict[str, int]:
        """dtype -> bytes, the largest first."""
        found: dict[str, int] = {}
        for tensor in self.tensors.values():
            found[tensor.dtype] = found.get(tensor.dtype, 0) + tensor.nbytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))


class _Entry(msgspec.Struct, gc=False):
    """What the header says of one tensor, nothing checked; `__metadata__` decodes as one with nothing in it."""

    dtype: Any = None
    shape: Any = None
    data_offsets: Any = None


_DECODER = msgspec.json.Decoder(dict[str, _Entry])


def read_header(source: Source) -> dict[str, Tensor]:
    """The tensors of one safetensors file, in the file's order. Raises InputError naming the file and the fault."""
    name = source.name
    size = source.size
    head = source.read(0, 8)
    if head.startswith(b"version "):
        raise BrokenFile(f"{name} is a Git LFS pointer, not the weights; run `git lfs pull` in its repository")
    if len(head) < 8:
        raise _broken(name, f"it has only {len(head)} bytes")
    length = int.from_bytes(head, "little")
    if length > MOST_HEADER:
        raise _broken(name, "its header would be larger than the 100 MB the format allows")
    if length < 2 or (size is not None and 8 + length > size):
        raise _broken(name, "it ends inside its header")
    text = source.read(8, length)
    if len(text) < length:
        raise _broken(name, "it ends inside its header")
    entries = _decode(name, text)
    return _tensors(name, entries, None if size is None else size - 8 - length)


def _decode(name: str, text: bytes) -> dict[str, _Entry]:
    if not text.startswith(b"{"):
        raise _broken(name, "its header is not JSON")
    # Counted before anything is built of them, so that a hostile header costs no more than its own length.
    if text.count(b"{") > MOST_TENSORS + 2 or text.count(b",") > _MOST_COMMAS:
        raise InputError(f"{name} lists more than {MOST_TENSORS:,} tensors; no model's file does. Is it the right one?")
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        raise _broken(name, "its header is not a JSON object of tensors") from None


def _tensors(name: str, entries: dict[str, _Entry], data: int | None) -> dict[str, Tensor]:
    entries.pop("__metadata__", None)
    found: list[tuple[int, int, str, Tensor]] = []
    for key, entry in entries.items():
        dtype, shape, offsets = entry.dtype, entry.shape, entry.data_offsets
        if (
            not isinstance(dtype, str)
            or not isinstance(shape, list)
            or not isinstance(offsets, list)
            or len(offsets) != 2
            or len(shape) > 64
            or any(type(n) is not int or n < 0 for n in (*shape, *offsets))
        ):
            raise _broken(name, f"its header does not say dtype, shape and data_offsets of {key[:80]!r}")
        begin, end = offsets
        bits = BITS.get(dtype)
        if bits is not None and math.prod(shape) * bits != (end - begin) * 8:
            raise _broken(name, f"{key[:80]!r} has {end - begin} bytes, which is not its shape times its dtype")
        found.append((begin, end, key, Tensor(dtype, tuple(shape), end - begin)))
    found.sort(key=lambda item: item[:2])
    at = 0
    for begin, end, key, _ in found:
        if begin != at or end < begin:
            raise _broken(name, f"{key[:80]!r} does not begin where the tensor before it ends")
        at = end
    if data is not None and at != data:
        missing = "bytes are missing" if at > data else "bytes too many"
        raise _broken(name, f"{abs(at - data):,} {missing}")
    return {key: tensor for _, _, key, tensor in found}


def _broken(name: str, why: str) -> BrokenFile:
    return BrokenFile(f"{name} is no whole safetensors file: {why}; download it again")


def weight_files(names: Iterable[str], index: Mapping[str, Any] | None) -> list[str]:
    """The safetensors files an engine loads: those of the index, else all that lie beside config.json.

    `consolidated*` are the same weights in Mistral's own format, and are not counted twice.
    Raises InputError if the index is none, or names a file that is not there.
    """
    here = {n for n in names if n.endswith(".safetensors") and "/" not in n}
    if index is not None:
        mapped = index.get("weight_map")
        if not isinstance(mapped, dict) or not all(isinstance(f, str) for f in mapped.values()):
            raise BrokenFile(f"{INDEX} has no weight_map of tensor names to file names; download it again")
        wanted = sorted(set(mapped.values()))
        missing = [f for f in wanted if f not in here]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise BrokenFile(f"{INDEX} names {missing[0]!r}{more}, which is not there; download the model again")
        return wanted
    own = sorted(n for n in here if not n.startswith("consolidated"))
    return own or sorted(here)


_PART = re.compile(r"(.*-)(\d{5})(-of-)(\d{5})(\.safetensors)", re.DOTALL)


def missing_parts(names: Iterable[str]) -> list[str]:
    """The files that the names of the others (`NAME-00001-of-00002.safetensors`) say there should be."""
    here = set(names)
    missing: dict[str, None] = {}
    for name in sorted(here):
        if (part := _PART.fullmatch(name)) is not None:
            for number in range(1, min(int(part[4]), MOST_PARTS) + 1):
                wanted = f"{part[1]}{number:05d}{part[3]}{part[4]}{part[5]}"
                if wanted not in here:
                    missing[wanted] = None
    return list(missing)


def read_checkpoint(
    files: Iterable[str], source: Callable[[str], Source], *, many: Callable[..., Iterable[Any]] = map
) -> Checkpoint:
    """The tensors of `files` (from `weight_files`), each opened with `source`. Raises InputError.

    many: maps over the files; a thread pool's `map` where each header is a round trip.
    """
    names = list(files)

    def one(name: str) -> tuple[int | None, dict[str, Tensor]]:
        opened = source(name)
        try:
            return opened.size, read_header(opened)
        finally:
            close = getattr(opened, "close", None)
            if close is not None:
                close()

    tensors: dict[str, Tensor] = {}
    sizes: dict[str, int | None] = {}
    for name, (size, header) in zip(names, many(one, names), strict=True):
        sizes[name] = size
        tensors.update(header)
    return Checkpoint(tensors=tensors, files=sizes)
