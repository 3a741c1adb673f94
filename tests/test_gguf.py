"""A GGUF header is read as the `gguf` package reads it, at the cost of the header, whatever the file is."""

from __future__ import annotations

import os
import resource
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnfit.errors import InputError
from attnfit.inputs.gguf import Array, Header, read_gguf, read_header
from attnfit.inputs.gguf.header import MOST_KEPT, MOST_STRINGS, Text
from attnfit.inputs.gguf.tensor_types import TYPES
from attnfit.inputs.ranges import FileSource
from gguf_bytes import Builder, Bytes, Typed

TINY = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.rope.freq_base": 10000.0,
    "llama.flag": True,
    "llama.attention.head_count_kv": Typed("i32", [4, 2]),
    "tokenizer.ggml.tokens": ["a", "bb", "", "ccc"],
}
TENSORS = [("token_embd.weight", (64, 8), 1, 0), ("blk.0.attn_q.weight", (256, 2), 12, 1024)]


def tiny(version: int = 3, order: str = "<") -> bytes:
    return Builder(version, order).header(TINY, TENSORS)


def refused(data: bytes, size: int | None = None) -> str:
    """What is said of a header that cannot be read: one sentence that names the file and ends with what to do."""
    with pytest.raises(InputError) as caught:
        read_header(Bytes(data, size))
    said = str(caught.value)
    assert said.startswith("model.gguf ")
    assert "\n" not in said
    assert len(said) < 300
    return said


def peak_mib() -> float:
    """The most memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_all_versions_and_byte_orders_give_the_same_header(version: int, order: str) -> None:
    header = read_header(Bytes(tiny(version, order), 10_000))
    assert header.version == version
    assert header.big_endian == (order == ">")
    assert header.values == {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.rope.freq_base": 10000.0,
        "llama.flag": True,
        "llama.attention.head_count_kv": Array("int32", 2, (4, 2)),
        "tokenizer.ggml.tokens": Array("string", 4),
    }
    assert [(t.name, t.shape, t.type, t.offset, t.nbytes) for t in header.tensors] == [
        ("token_embd.weight", (64, 8), 1, 0, 1024),
        ("blk.0.attn_q.weight", (256, 2), 12, 1024, 288),
    ]
    assert header.data_offset % 32 == 0
    assert header.end == header.data_offset + 1024 + 288


def write(
    path: Path, endian: gguf.GGUFEndian, values: dict[str, Any], tensors: dict[str, np.ndarray[Any, Any]]
) -> None:
    writer = gguf.GGUFWriter(path, "llama", endianess=endian)
    for key, (add, value) in values.items():
        getattr(writer, add)(key, value)
    for name, data in tensors.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def same_as_package(path: Path) -> Header:
    """Our header, after it was found equal to what the package's reader says of the same file."""
    header, reader = read_gguf(str(path)).header, gguf.GGUFReader(path)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert list(header.values) == list(fields)
    for key, field in fields.items():
        ours, theirs = header.values[key], field.contents()
        if isinstance(ours, Array):
            assert ours.length == len(theirs) or field.types.count(gguf.GGUFValueType.ARRAY) > 1
            assert ours.values is None or list(ours.values) == pytest.approx(theirs, nan_ok=True)
        elif isinstance(ours, Text):
            assert ours.length == len(theirs.encode())
        elif isinstance(ours, float):
            assert ours == pytest.approx(theirs, nan_ok=True)
        else:
            assert (type(ours), ours) == (type(theirs), theirs)
    assert header.data_offset == reader.data_offset
    assert len(header.tensors) == len(reader.tensors)
    for mine, other in zip(header.tensors, reader.tensors, strict=True):
        assert (mine.name, mine.type, mine.shape) == (other.name, int(other.tensor_type), tuple(other.shape.tolist()))
        assert mine.nbytes == other.n_bytes
        assert header.data_offset + mine.offset == other.data_offset
    assert header.cut_off == 0
    return header


numbers = {
    "add_uint8": st.integers(0, 255), "add_int8": st.integers(-128, 127), "add_uint16": st.integers(0, 65535),
    "add_int16": st.integers(-32768, 32767), "add_uint32": st.integers(0, 2**32 - 1),
    "add_int32": st.integers(-(2**31), 2**31 - 1), "add_uint64": st.integers(0, 2**64 - 1),
    "add_int64": st.integers(-(2**63), 2**63 - 1), "add_float32": st.floats(width=32), "add_float64": st.floats(),
    "add_bool": st.booleans(), "add_string": st.text(min_size=1, max_size=1200),
    "add_array": st.lists(st.integers(0, 999), min_size=1, max_size=5) | st.lists(st.text(), min_size=1, max_size=5)
    | st.lists(st.booleans(), min_size=1, max_size=5) | st.lists(st.floats(width=32), min_size=1, max_size=3),
}  # fmt: skip
a_value = st.one_of(*(st.tuples(st.just(add), values) for add, values in numbers.items()))
some_values = st.dictionaries(st.text("abc._é", min_size=1, max_size=9).map("x.{}".format), a_value, max_size=6)
some_tensors = st.dictionaries(
    st.text("abc.0", min_size=1, max_size=8),
    st.tuples(st.sampled_from([np.float16, np.float32, np.int8, np.int64]), st.lists(st.integers(1, 4), max_size=4)),
    max_size=4,
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=some_values, tensors=some_tensors, endian=st.sampled_from(list(gguf.GGUFEndian)))
def test_what_the_package_writes_is_read_as_the_package_reads_it(
    tmp_path: Path, values: dict[str, Any], tensors: dict[str, Any], endian: gguf.GGUFEndian
) -> None:
    path = tmp_path / "model.gguf"
    made = {name: np.zeros(shape or [1], kind) for name, (kind, shape) in tensors.items()}
    write(path, endian, values, made)
    same_as_package(path)


def test_tensor_types_have_the_sizes_of_the_package() -> None:
    theirs = {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert {number: (kind.block, kind.size) for number, kind in TYPES.items() if number in theirs} == theirs
    assert {kind.value: kind.name for kind in gguf.GGMLQuantizationType}.items() <= {
        number: kind.name for number, kind in TYPES.items()
    }.items()


def test_a_header_cut_at_any_byte_is_one_clear_error() -> None:
    whole = tiny()
    read_header(Bytes(whole))
    for length in range(len(whole)):
        assert any(word in refused(whole[:length]) for word in ("cut off", "too short", "than there can be"))


def test_a_file_that_ends_before_its_tensors_do_is_said_to_be_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny() + bytes(500))
    found = read_gguf(str(path))
    assert found.header.cut_off == found.header.end - path.stat().st_size
    assert "download it again" in found.notes[0]


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"", "too short"),
        (b"GG", "too short"),
        (b"FUGG" + bytes(40), "swapped"),
        (b"tjgg" + bytes(40), "GGJT"),
        (b"lmgg" + bytes(40), "before GGUF"),
        (b"PK\x03\x04" + bytes(40), "not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "git lfs pull"),
        (b"GGUF" + struct.pack("<I", 4) + bytes(40), "version 4"),
        (b"GGUF" + struct.pack("<I", 0) + bytes(40), "version 0"),
        (b"GGUF" + struct.pack(">I", 9) + bytes(40), "version 9"),
        (b"GGUF" + struct.pack("<I", 0x30000) + bytes(40), "version 768"),
    ],
)
def test_what_is_no_gguf_file_is_named(start: bytes, said: str) -> None:
    assert said in refused(start)


def string_array(count: int) -> bytes:
    return struct.pack("<IIQ", 9, 8, count)


HOSTILE = {
    "keys": Builder().header({}, keys=2**63),
    "tensors": Builder().header({}, tensor_count=2**63),
    "more keys than a header has": Builder().header({}, keys=30_000) + bytes(1_000_000),
    "key length": Builder().header({}, keys=1) + struct.pack("<Q", 2**63) + b"k" * 100,
    "key of a gigabyte": Builder().header({}, keys=1) + struct.pack("<Q", 2**30) + b"k" * 100,
    "text length": Builder().header({"a": struct.pack("<IQ", 8, 2**64 - 1)}),
    "array length": Builder().header({"a": struct.pack("<IIQ", 9, 4, 2**61)}),
    "array of 64-bit numbers": Builder().header({"a": struct.pack("<IIQ", 9, 12, 2**63)}),
    "strings": Builder().header({"a": string_array(2**63)}),
    "strings that fit the file": Builder().header({"a": string_array(MOST_STRINGS + 1)}),
    "a string in an array": Builder().header({"a": string_array(1) + struct.pack("<Q", 2**63)}),
    "strings in all": Builder().header({f"k{i}": string_array(MOST_STRINGS // 2) for i in range(3)}),
    "arrays in an array": Builder().header({"a": struct.pack("<IIQ", 9, 9, 2**62)}),
    "arrays nested without end": Builder().header({"a": struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100_000}),
    "value type": Builder().header({"a": struct.pack("<I", 13)}) + bytes(100),
    "element type": Builder().header({"a": struct.pack("<IIQ", 9, 99, 1)}) + bytes(100),
    "key that is no text": Builder().header([("\udcff".encode("utf-8", "surrogatepass"), 1)]),  # type: ignore[list-item]
    "key twice": Builder().header([("a", 1), ("a", 2)]),
    "tensor twice": Builder().header({}, [("t", (1,), 0, 0)] * 2),
    "dimensions": Builder().header({}, tensor_count=1) + Builder().text("t") + struct.pack("<I", 2**32 - 1) + bytes(99),
    "tensor of 2^63 rows": Builder().header({}, [("t", (2**63, 2**63), 0, 0)]),
    "tensor offset": Builder().header({}, [("t", (32,), 0, 2**63)]),
    "tensor row": Builder().header({}, [("t", (33,), 2, 0)]),
    "alignment 0": Builder().header({"general.alignment": 0}),
    "alignment 48": Builder().header({"general.alignment": 48}),
    "alignment in words": Builder().header({"general.alignment": "32"}),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("size", [None, 400 * 10**9], ids=["short file", "400 GB of zeros behind"])
def test_a_hostile_header_is_one_error_and_costs_little(data: bytes, size: int | None) -> None:
    before = peak_mib()
    begun = time.process_time()
    refused(data, size)
    assert time.process_time() - begun < 2
    assert peak_mib() - before < 50


def test_a_file_of_zeros_behind_a_header_ends_soon() -> None:
    """Zeros are valid strings of no length: as many as are claimed are walked, within a limit."""
    begun = time.process_time()
    header = read_header(Bytes(Builder().header({"a": string_array(MOST_STRINGS)}), 400 * 10**9))
    assert header.values["a"] == Array("string", MOST_STRINGS)
    assert time.process_time() - begun < 2


def test_nested_arrays_are_counted() -> None:
    values = {"a": [[1, 2], [3], []], "b": [["x", "yy"], []], "after": 7}
    header = read_header(Bytes(Builder().header(values)))
    assert header.values == {"a": Array("array", 3), "b": Array("array", 2), "after": 7}


def test_what_decides_nothing_is_not_kept() -> None:
    values = {"long": "x" * 5000, "many": Typed("u8", [1] * (MOST_KEPT + 1)), "few": Typed("u8", [1, 2])}
    header = read_header(Bytes(Builder().header(values)))
    assert header.values == {
        "long": Text(5000),
        "many": Array("uint8", MOST_KEPT + 1),
        "few": Array("uint8", 2, (1, 2)),
    }


def test_a_tensor_type_that_is_not_known_leaves_the_size_open(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(Builder().header({}, [("t", (7,), 99, 0)]))
    found = read_gguf(str(path))
    assert found.weight_bytes is None
    assert found.types() == {"type 99": (1, 0)}


def vocabulary(path: Path, size: int) -> None:
    """A header with a real-sized vocabulary and `size` bytes of tensors, which are not written."""
    words = [f"tok{i}" for i in range(160_000)]
    values = {
        "general.architecture": "glm-dsa",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": Typed("f32", [0.0] * len(words)),
        "tokenizer.ggml.merges": [f"a b{i}" for i in range(320_000)],
    }
    path.write_bytes(Builder().header(values, [("t", (size,), 24, 0)]))
    os.truncate(path, path.stat().st_size + size + 32)


def test_a_file_of_400_gb_costs_its_header(tmp_path: Path) -> None:
    """A sparse file: well under a second and a few MB, though the vocabulary has half a million strings."""
    path = tmp_path / "model.gguf"
    vocabulary(path, 400 * 10**9)
    before = peak_mib()
    begun = time.process_time()
    found = read_gguf(str(path))
    assert time.process_time() - begun < 1
    assert peak_mib() - before < 8
    assert found.weight_bytes == 400 * 10**9
    assert found.header.values["tokenizer.ggml.tokens"] == Array("string", 160_000)
    assert found.header.cut_off == 0


def test_fixed_size_arrays_are_stepped_over_unread() -> None:
    data = Builder().header({"scores": struct.pack("<IIQ", 9, 12, 10**10)})
    source = Bytes(data, 400 * 10**9)
    assert read_header(source).values == {"scores": Array("float64", 10**10)}
    assert source.asked < 2**20


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_a_changed_header_is_read_or_refused_in_one_sentence(data: st.DataObject) -> None:
    whole = bytearray(tiny(data.draw(st.sampled_from([1, 2, 3])), data.draw(st.sampled_from("<>"))))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(whole) - 1))
        whole[place] = data.draw(st.integers(0, 255) | st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    cut = data.draw(st.integers(0, len(whole)) | st.just(len(whole)))
    said = "model.gguf "
    try:
        read_header(Bytes(bytes(whole[:cut])))
    except InputError as error:
        said = str(error)
    assert said.startswith("model.gguf ")
    assert "\n" not in said


def split_set(directory: Path, parts: int = 3, *, without: int | None = None) -> Path:
    """A set as `gguf-split` leaves it: the model's keys in the first part only."""
    for number in range(1, parts + 1):
        keys = {"split.no": Typed("u16", number - 1), "split.count": Typed("u16", parts)}
        values = {"general.architecture": "llama", **keys} if number == 1 else keys
        data = Builder().header(values, [(f"blk.{number}.w", (256, 4), 12, 0)])
        if number != without:
            place = directory / f"Model-Q4_K_M-{number:05d}-of-{parts:05d}.gguf"
            place.write_bytes(data + bytes(-len(data) % 32 + 576))
    return directory / f"Model-Q4_K_M-00001-of-{parts:05d}.gguf"


def test_the_first_part_of_a_set_gives_the_tensors_of_all(tmp_path: Path) -> None:
    found = read_gguf(str(split_set(tmp_path)))
    assert (found.architecture, found.parts, found.missing, found.notes) == ("llama", 3, (), ())
    assert [t.name for t in found.tensors] == ["blk.1.w", "blk.2.w", "blk.3.w"]
    assert found.weight_bytes == 3 * 576
    assert found.bits_per_weight == 4.5
    assert found.types() == {"Q4_K": (3, 3 * 576)}


def test_a_missing_part_is_a_note_and_leaves_the_total_open(tmp_path: Path) -> None:
    found = read_gguf(str(split_set(tmp_path, without=2)))
    assert found.missing == ("Model-Q4_K_M-00002-of-00003.gguf",)
    assert found.weight_bytes is None
    assert "00002-of-00003" in found.notes[0]


def test_a_broken_part_is_a_note(tmp_path: Path) -> None:
    first = split_set(tmp_path)
    (tmp_path / "Model-Q4_K_M-00003-of-00003.gguf").write_bytes(b"GGUF")
    found = read_gguf(str(first))
    assert found.missing == ("Model-Q4_K_M-00003-of-00003.gguf",)
    assert any("cut off" in note for note in found.notes)


def test_a_later_part_names_the_first(tmp_path: Path) -> None:
    first = split_set(tmp_path)
    with pytest.raises(InputError, match="give Model-Q4_K_M-00001-of-00003"):
        read_gguf(str(first).replace("00001-of", "00002-of"))


def test_a_file_that_describes_no_model_is_said_to(tmp_path: Path) -> None:
    path = tmp_path / "imatrix.gguf"
    path.write_bytes(Builder().header({"general.type": "imatrix"}))
    with pytest.raises(InputError, match=r"names no general\.architecture"):
        _ = read_gguf(str(path)).architecture


def test_no_file_is_left_open(tmp_path: Path) -> None:
    first = split_set(tmp_path)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    read_gguf(str(first))
    with pytest.raises(InputError):
        read_gguf(str(tmp_path))
    if before:
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_source_of_unknown_length_is_read_as_well() -> None:
    class Endless(Bytes):
        """As an HTTP server that does not say how long the file is."""

        def read(self, offset: int, length: int) -> bytes:
            return self.data[offset : offset + length]

    source = Endless(tiny())
    source.size = None  # type: ignore[assignment]
    assert read_header(source).tensors[1].name == "blk.0.attn_q.weight"
    source.data = tiny()[:-3]
    with pytest.raises(InputError, match="cut off"):
        read_header(source)


def test_the_reader_needs_no_gguf_package_and_no_numpy() -> None:
    code = "import sys, attnfit.inputs.gguf; print([m for m in ('gguf', 'numpy', 'yaml') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_file_source_and_bytes_agree(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny())
    with FileSource(str(path)) as source:
        assert read_header(source).values == read_header(Bytes(tiny())).values
