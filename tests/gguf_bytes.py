"""GGUF headers by hand, for tests: any version, any byte order, and the faults that no writer makes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

KINDS = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "u64": 10, "i64": 11, "f64": 12}
LETTERS = dict(zip(KINDS, "BbHhIif?Qqd", strict=True))


class Typed:
    """A scalar of a given type, or an array of them."""

    def __init__(self, kind: str, value: Any) -> None:
        self.kind, self.value = kind, value


class Builder:
    """Packs the parts of a header."""

    def __init__(self, version: int = 3, order: str = "<") -> None:
        self.version, self.order = version, order
        self.word = "I" if version == 1 else "Q"

    def pack(self, letter: str, value: Any) -> bytes:
        return struct.pack(self.order + letter, value)

    def text(self, value: str | bytes) -> bytes:
        data = value.encode() if isinstance(value, str) else value
        return self.pack(self.word, len(data)) + data

    def value(self, value: Any, *, typed: bool = True) -> bytes:
        """A value with its type in front. int: u32; list: array; nested lists: arrays of arrays."""
        kind, body = self._split(value)
        return (self.pack("I", kind) if typed else b"") + body

    def _split(self, value: Any) -> tuple[int, bytes]:
        if isinstance(value, bytes):  # ready made, type included
            return struct.unpack(self.order + "I", value[:4])[0], value[4:]
        if isinstance(value, str):
            return 8, self.text(value)
        if isinstance(value, bool):
            return 7, self.pack("?", value)
        if isinstance(value, int):
            return 4, self.pack("I", value)
        if isinstance(value, float):
            return 6, self.pack("f", value)
        if isinstance(value, Typed) and not isinstance(value.value, list):
            return KINDS[value.kind], self.pack(LETTERS[value.kind], value.value)
        items = value.value if isinstance(value, Typed) else list(value)
        if isinstance(value, Typed):
            kind, parts = KINDS[value.kind], [self.pack(LETTERS[value.kind], x) for x in items]
        else:
            split = [self._split(x) for x in items]
            kind, parts = (split[0][0] if split else 4), [body for _, body in split]
        return 9, self.pack("I", kind) + self.pack(self.word, len(items)) + b"".join(parts)

    def header(
        self,
        values: Mapping[str, Any] | Sequence[tuple[str, Any]],
        tensors: Sequence[tuple[str, Sequence[int], int, int]] = (),
        *,
        keys: int | None = None,
        tensor_count: int | None = None,
    ) -> bytes:
        """A header. keys, tensor_count: what it claims instead of the truth."""
        pairs = list(values.items()) if isinstance(values, Mapping) else list(values)
        out = [b"GGUF", self.pack("I", self.version)]
        out.append(self.pack(self.word, len(tensors) if tensor_count is None else tensor_count))
        out.append(self.pack(self.word, len(pairs) if keys is None else keys))
        out += [self.text(key) + self.value(value) for key, value in pairs]
        for name, shape, kind, offset in tensors:
            out.append(self.text(name) + self.pack("I", len(shape)))
            out += [self.pack(self.word, n) for n in shape]
            out.append(self.pack("I", kind) + self.pack("Q", offset))
        return b"".join(out)


class Bytes:
    """A Source in memory that counts what is asked of it. `size` may be larger than what it holds: zeros follow."""

    def __init__(self, data: bytes, size: int | None = None, name: str = "model.gguf") -> None:
        self.data, self.size, self.name = data, len(data) if size is None else size, name
        self.asked = 0

    def read(self, offset: int, length: int) -> bytes:
        length = min(length, self.size - offset)
        if length <= 0:
            return b""
        self.asked += length
        part = self.data[offset : offset + length]
        return part + bytes(length - len(part))
