"""The header of one GGUF file: its key/value pairs and the list of its tensors, never the weights.

Written to the published format (ggml's docs/gguf.md): versions 1 to 3, either byte order. A vocabulary of a quarter
million words is walked over, not built; fixed-size arrays are stepped over without being read. The file may be
anything: every count is held against what is left of the file, and against limits far above any real header.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple, NoReturn

import msgspec

from attnfit.errors import InputError
from attnfit.inputs.gguf.tensor_types import TYPES
from attnfit.inputs.ranges import Source

MOST_KEYS = 20_000  # real headers have well under a hundred
MOST_TENSORS = 200_000  # the largest known files have a few thousand
MOST_STRINGS = 2_000_000  # walked over in all; the largest vocabularies with their merges have under one million
LONGEST_KEPT = 1_024  # bytes of a text that is kept; templates and licences are longer and decide nothing
MOST_KEPT = 4_096  # elements of an array that is kept: one for each layer, never a vocabulary
_MOST_KEPT_IN_ALL = 100_000
_DEEPEST = 8  # arrays within arrays
_MOST_DIMENSIONS = 8  # ggml has 4
_FAR = 1 << 56  # no file is as long
_WINDOW = 1 << 18

#: value type -> name, struct letter
_SCALARS = {
    0: ("uint8", "B"), 1: ("int8", "b"), 2: ("uint16", "H"), 3: ("int16", "h"), 4: ("uint32", "I"),
    5: ("int32", "i"), 6: ("float32", "f"), 7: ("bool", "?"), 10: ("uint64", "Q"), 11: ("int64", "q"),
    12: ("float64", "d"),
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_NAMES = {**{number: name for number, (name, _) in _SCALARS.items()}, _STRING: "string", _ARRAY: "array"}
_OLD = {b"lmgg": "GGML", b"fmgg": "GGMF", b"tjgg": "GGJT", b"algg": "GGLA"}


class Array(NamedTuple):
    """An array: what its elements are and how many; the elements only where they are few and not text."""

    kind: str
    length: int
    values: tuple[int | float | bool, ...] | None = None


class Text(NamedTuple):
    """A text too long to keep; its length in bytes."""

    length: int


Value = int | float | bool | str | Array | Text


class Tensor(NamedTuple):
    """One tensor as the header lists it. `shape` is in the file's order: the dimension that is contiguous first."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int  # from the start of the tensor data

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int | None:
        """Bytes in the file; None for a type that is not in our table."""
        known = TYPES.get(self.type)
        return None if known is None else self.elements // known.block * known.size


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What the header of one file says."""

    name: str
    version: int
    big_endian: bool
    values: dict[str, Value]
    tensors: tuple[Tensor, ...]
    alignment: int
    data_offset: int  # where the tensor data starts
    size: int | None  # of the file

    @property
    def end(self) -> int:
        """Where the last tensor of a known type ends; 0 where the file lists none."""
        return max((self.data_offset + t.offset + (t.nbytes or 0) for t in self.tensors), default=0)

    @property
    def cut_off(self) -> int:
        """Bytes that the file lacks of its tensors; 0 where it is whole or its size is not known."""
        return 0 if self.size is None else max(0, self.end - self.size)


def read_header(source: Source) -> Header:
    """Read the header at the start of `source`. Raises InputError that says what is wrong and what to do."""
    cursor = _Cursor(source)
    start = cursor.bytes(4, "the magic number") if (source.size is None or source.size >= 4) else b""
    if start != b"GGUF":
        raise InputError(_not_gguf(source, start))
    version = cursor.number("I")
    if version & 0xFFFF == 0:  # the writer's byte order is the other one
        cursor.order, cursor.big_endian = ">", True
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in (1, 2, 3):
        raise InputError(
            f"{source.name} says it is GGUF version {version}; versions 1 to 3 are known. Is it damaged? Else update "
            "attnfit"
        )
    cursor.width = "I" if version == 1 else "Q"
    tensor_count, key_count = cursor.number(cursor.width), cursor.number(cursor.width)
    cursor.fits(key_count, MOST_KEYS, cursor.word + 5, "keys")
    cursor.fits(tensor_count, MOST_TENSORS, cursor.word + 16, "tensors")
    values: dict[str, Value] = {}
    for _ in range(key_count):
        key = cursor.text(0xFFFF, "a key")
        if key in values:
            cursor.fail(f"has the key {key[:60]!r} twice")
        values[key] = cursor.value(cursor.number("I"), key)
    alignment = _alignment(cursor, values)
    tensors = _tensors(cursor, tensor_count)
    return Header(
        name=source.name,
        version=version,
        big_endian=cursor.big_endian,
        values=values,
        tensors=tensors,
        alignment=alignment,
        data_offset=-(-cursor.at // alignment) * alignment,
        size=source.size,
    )


def _not_gguf(source: Source, start: bytes) -> str:
    if start in _OLD:
        return f"{source.name} is a {_OLD[start]} file, the format before GGUF; get the model as GGUF"
    if not start:
        return f"{source.name} is too short for a GGUF file; download it again"
    if start == b"vers":
        return f"{source.name} is a Git LFS pointer, not the file itself; run `git lfs pull` in its repository"
    if start == b"FUGG":
        return f"{source.name} has its first bytes swapped, which no GGUF writer does; download it again"
    return f"{source.name} is not a GGUF file (it starts with {start!r}); check which file you mean"


def _alignment(cursor: _Cursor, values: dict[str, Value]) -> int:
    found = values.get("general.alignment", 32)
    if not isinstance(found, int) or isinstance(found, bool) or not 0 < found < 1 << 32 or found & (found - 1):
        cursor.fail(f"has general.alignment {str(found)[:40]!r}, which must be a power of two")
    return found


def _tensors(cursor: _Cursor, count: int) -> tuple[Tensor, ...]:
    tensors: dict[str, Tensor] = {}
    for _ in range(count):
        name = cursor.text(LONGEST_KEPT, "a tensor name")
        dimensions = cursor.number("I")
        if dimensions > _MOST_DIMENSIONS:
            cursor.fail(f"gives tensor {name[:60]!r} {dimensions:,} dimensions")
        shape = tuple(cursor.number(cursor.width) for _ in range(dimensions))
        tensor = Tensor(name, shape, cursor.number("I"), cursor.number("Q"))
        if name in tensors:
            cursor.fail(f"lists tensor {name[:60]!r} twice")
        if tensor.elements >= _FAR or tensor.offset >= _FAR:
            cursor.fail(f"gives tensor {name[:60]!r} a size no file can have")
        known = TYPES.get(tensor.type)
        if known and (shape[0] if shape else 1) % known.block:
            cursor.fail(f"gives tensor {name[:60]!r} rows that are no whole blocks of {known.name}")
        tensors[name] = tensor
    return tuple(tensors.values())


class _Cursor:
    """A place in the file, with the bytes around it."""

    def __init__(self, source: Source) -> None:
        self._source, self._size = source, source.size
        self._held, self._start = b"", 0  # a window of the file and where it starts
        self.at = 0
        self.order, self.big_endian, self.width = "<", False, "Q"
        self._strings, self._kept = MOST_STRINGS, _MOST_KEPT_IN_ALL

    @property
    def word(self) -> int:
        """Bytes of a length or count: 4 in version 1, else 8."""
        return 4 if self.width == "I" else 8

    def fail(self, what: str) -> NoReturn:
        raise InputError(f"{self._source.name} {what} (in the header, near byte {self.at:,}); download it again")

    def fits(self, count: int, most: int, each: int, what: str) -> None:
        """Refuse a count that the file cannot hold, before anything is built for it."""
        if count > most or (self._size is not None and count * each > self._size - self.at):
            self.fail(f"claims to hold {count:,} {what}, more than there can be")

    def _window(self, length: int, what: str) -> int:
        """Have `length` bytes from here in the window; the index of the first."""
        index = self.at - self._start
        if index < 0 or index + length > len(self._held):
            if self.at < _FAR:
                self._held = self._source.read(self.at, max(length, _WINDOW))
            self._start, index = self.at, 0
            if self.at >= _FAR or len(self._held) < length:
                self._held = b""
                self.fail(f"is cut off: it ends inside {what}")
        return index

    def bytes(self, length: int, what: str) -> bytes:
        index = self._window(length, what)
        self.at += length
        return self._held[index : index + length]

    def number(self, letter: str) -> int:
        """One scalar by its struct letter (callers of other letters know what they get)."""
        form = struct.Struct(self.order + letter)
        index = self._window(form.size, "a number")
        self.at += form.size
        return form.unpack_from(self._held, index)[0]  # type: ignore[no-any-return]

    def skip(self, length: int, what: str) -> None:
        self.at += length
        if self.at >= _FAR or (self._size is not None and self.at > self._size):
            self.fail(f"is cut off: it ends inside {what}")

    def text(self, longest: int, what: str) -> str:
        length = self.number(self.width)
        if length > longest:
            self.fail(f"has {what} of {length:,} bytes")
        try:
            return self.bytes(length, what).decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"has {what} that is not UTF-8")

    def value(self, kind: int, key: str) -> Value:
        what = f"the value of {key[:60]!r}"
        if kind in _SCALARS:
            return self.number(_SCALARS[kind][1])
        if kind == _STRING:
            length = self.number(self.width)
            if length > LONGEST_KEPT:
                self.skip(length, what)
                return Text(length)
            return self.bytes(length, what).decode("utf-8", "replace")
        if kind == _ARRAY:
            return self._array(what, 0)
        self.fail(f"gives {what} the type {kind}, which the format does not have")

    def _array(self, what: str, depth: int) -> Array:
        kind, count = self.number("I"), self.number(self.width)
        if kind in _SCALARS:
            name, letter = _SCALARS[kind]
            size = struct.calcsize("=" + letter)
            if count > MOST_KEPT or count > self._kept:
                self.skip(count * size, what)
                return Array(name, count)
            self._kept -= count
            data = self.bytes(count * size, what)
            return Array(name, count, struct.unpack(f"{self.order}{count}{letter}", data))
        if kind not in (_STRING, _ARRAY):
            self.fail(f"gives {what} elements of type {kind}, which the format does not have")
        self.fits(count, self._strings, self.word if kind == _STRING else self.word + 4, f"elements in {what}")
        self._strings -= count
        if kind == _STRING:
            self._walk_strings(count, what)
        elif depth >= _DEEPEST:
            self.fail(f"nests {what} deeper than any writer does")
        else:
            for _ in range(count):
                self._array(what, depth + 1)
        return Array(_NAMES[kind], count)

    def _walk_strings(self, count: int, what: str) -> None:
        """Step over strings: each has its length in front, so each must be looked at."""
        form = struct.Struct(self.order + self.width)
        unpack, word = form.unpack_from, self.word
        while count:
            index = self._window(word, what)
            held, last = self._held, len(self._held) - word
            while count and index <= last:
                index += word + unpack(held, index)[0]
                count -= 1
            self.at = self._start + index
            self.skip(0, what)
