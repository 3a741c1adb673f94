"""Headers of safetensors files: what the format's own package reads, and one clear error for anything else."""

from __future__ import annotations

import json
import random
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from safetensors.numpy import save_file

from attnfit.errors import InputError
from attnfit.inputs.model import read_model
from attnfit.inputs.ranges import FileSource, ReadAhead
from attnfit.inputs.safetensors import MOST_TENSORS, Tensor, read_header, weight_files
from attnfit.inputs.weights import read_weights


class Bytes:
    """A source in memory that counts what is read of it."""

    def __init__(self, data: bytes, size: int | None = None) -> None:
        self.name, self.data, self.asked = "x.safetensors", data, 0
        self.size: int | None = len(data) if size is None else size

    def read(self, offset: int, length: int) -> bytes:
        self.asked += length
        return self.data[offset : offset + length]


def packed(header: Any, data: int = 0) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"\0" * data


def entry(size: int = 4, start: int = 0, dtype: str = "U8", shape: Any = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [size] if shape is None else shape, "data_offsets": [start, start + size]}


ARRAYS = {
    "model.embed": np.zeros((7, 5), np.float16),
    "scalar": np.array(3.0, np.float32),
    "empty": np.zeros((0, 4), np.float64),
    "ids": np.arange(6, dtype=np.int64).reshape(1, 2, 3),
    "mask": np.ones(9, np.bool_),
    "packed": np.zeros((3, 2), np.uint8),
}


def test_a_file_of_the_formats_own_package_is_read_as_that_package_reads_it(tmp_path: Path) -> None:
    place = tmp_path / "m.safetensors"
    save_file(ARRAYS, place, metadata={"format": "pt", "dtype": "x", "shape": "y"})
    with FileSource(place) as source:
        found = read_header(source)
    with safetensors.safe_open(place, framework="numpy") as theirs:
        assert set(found) == set(theirs.keys())
        for name in theirs.keys():  # noqa: SIM118  (no mapping)
            part = theirs.get_slice(name)
            assert (found[name].dtype, list(found[name].shape)) == (part.get_dtype(), part.get_shape())
            assert found[name].nbytes == ARRAYS[name].nbytes


def test_every_dtype_of_the_package_is_known_by_its_bits(tmp_path: Path) -> None:
    for dtype, shape, size in (
        ("F8_E4M3", [16], 16), ("F8_E5M2", [16], 16), ("F8_E8M0", [16], 16), ("F4", [16, 2], 16), ("BF16", [4], 8),
        ("F6_E2M3", [4], 3), ("C64", [2], 16), ("U64", [2], 16),
    ):  # fmt: skip
        place = tmp_path / "m.safetensors"
        place.write_bytes(packed({"w": entry(size, 0, dtype, shape)}, size))
        with safetensors.safe_open(place, framework="numpy") as theirs:
            assert list(theirs.keys()) == ["w"]
        with FileSource(place) as source:
            assert read_header(source) == {"w": Tensor(dtype, tuple(shape), size)}


def test_a_dtype_nobody_knows_is_counted_by_its_bytes() -> None:
    assert read_header(Bytes(packed({"w": entry(5, 0, "Q3", [99])}, 5)))["w"] == Tensor("Q3", (99,), 5)


def test_only_the_header_is_read_of_a_huge_file() -> None:
    source = Bytes(packed({"w": entry(1 << 40)}), size=8 + len(packed({"w": entry(1 << 40)})) - 8 + (1 << 40))
    assert read_header(source)["w"].nbytes == 1 << 40
    assert source.asked < 200


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "only 0 bytes"),
        (b"\x10\0\0", "only 3 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        (b"GGUF\3\0\0\0rest", "larger than the 100 MB"),
        (b"\xff" * 9, "larger than the 100 MB"),
        (struct.pack("<Q", 1 << 26) + b"{}", "ends inside its header"),
        (struct.pack("<Q", 0), "ends inside its header"),
        (packed(b"[]"), "not JSON"),
        (packed(b"{ "), "not a JSON object of tensors"),
        (packed(b'{"a":1}'), "not a JSON object of tensors"),
        (packed(b'{"\xff":{}}'), "not a JSON object of tensors"),
        (packed(b'{"a":' * 5000 + b"1" + b"}" * 5000), "not a JSON object of tensors"),
        (packed({"a": {}}), "does not say dtype"),
        (packed({"a": entry(shape="x")}, 4), "does not say dtype"),
        (packed({"a": {"dtype": "U8", "shape": [True], "data_offsets": [0, 1]}}, 1), "does not say dtype"),
        (packed({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 2]}}, 1), "does not say dtype"),
        (packed({"a": {"dtype": "U8", "shape": [-1], "data_offsets": [0, 1]}}, 1), "does not say dtype"),
        (packed({"a": {"dtype": "U8", "shape": [], "data_offsets": [1, 0]}}, 1), "not its shape times"),
        (packed({"a": entry(4, shape=[2, 3])}, 4), "'a' has 4 bytes, which is not its shape"),
        (packed({"a": entry(4, shape=[1 << 62, 1 << 62])}, 4), "not its shape"),
        (packed({"a": entry(4), "b": entry(4, 5)}, 9), "'b' does not begin where"),
        (packed({"a": entry(4), "b": entry(4, 2)}, 6), "'b' does not begin where"),
        (packed({"a": entry(4, 1)}, 5), "'a' does not begin where"),
        (packed({"a": entry(400)}, 100), "300 bytes are missing"),
        (packed({"a": entry(4)}, 9), "5 bytes too many"),
        (packed(b'{"a":' + b"{" * (MOST_TENSORS + 9)), "more than 300,000 tensors"),
    ],
)
def test_each_broken_file_gets_one_sentence_naming_it(data: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        read_header(Bytes(data))
    assert "x.safetensors" in str(error.value)
    assert len(str(error.value)) < 300


def test_mutated_headers_are_read_or_refused_at_once() -> None:
    """3,000 random damages here; proofs/mutations.py does as many as one likes."""
    rng = random.Random(20_261_130)
    good = packed({f"w{i}": entry(4, 4 * i, "F32", [1]) for i in range(40)} | {"__metadata__": {"a": "b"}}, 160)
    started = time.perf_counter()
    refused = 0
    for _ in range(3_000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            match rng.randrange(3):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    del data[at : at + rng.randint(1, 60)]
                case _:
                    data[at:at] = rng.choice([b"9" * 30, b"[", b"{", b'"', b"-1", b"1e400", b"null", b"\xed\xa0\x80"])
        try:
            read_header(Bytes(bytes(data)))
        except InputError:
            refused += 1
    assert refused > 2_000
    assert time.perf_counter() - started < 10


# --- a checkpoint ---------------------------------------------------------------------------------------------------


def checkpoint(folder: Path, shards: dict[str, dict[str, Any]], index: bool = True) -> str:
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    for name, arrays in shards.items():
        save_file({k: np.zeros(v, np.float32) for k, v in arrays.items()}, folder / name)
    if index:
        weight_map = {key: name for name, arrays in shards.items() for key in arrays}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return str(folder)


def test_shards_are_added_up_and_files_beside_them_are_not(tmp_path: Path) -> None:
    place = checkpoint(tmp_path / "m", {"model-1.safetensors": {"a": (2, 3)}, "model-2.safetensors": {"b": (4,)}})
    save_file({"a": np.zeros((2, 3), np.float32)}, tmp_path / "m" / "consolidated.safetensors")
    save_file({"x": np.zeros(9, np.float32)}, tmp_path / "m" / "extra.safetensors")
    found = read_weights(read_model(place))
    assert found is not None
    assert (found.nbytes, set(found.tensors), set(found.files)) == (
        40, {"a", "b"}, {"model-1.safetensors", "model-2.safetensors"},
    )  # fmt: skip
    assert found.by_dtype() == {"F32": 40}


def test_without_an_index_every_file_counts_but_mistrals_own_copy(tmp_path: Path) -> None:
    names = {"model.safetensors", "consolidated.safetensors", "config.json", "sub/x.safetensors"}
    assert weight_files(names, None) == ["model.safetensors"]
    assert weight_files({"consolidated.safetensors"}, None) == ["consolidated.safetensors"]
    place = checkpoint(tmp_path / "m", {"model.safetensors": {"a": (2,)}}, index=False)
    found = read_weights(read_model(place))
    assert found is not None
    assert found.nbytes == 8


def test_a_checkpoint_without_safetensors_has_no_tensors_to_show(tmp_path: Path) -> None:
    assert read_weights(read_model(checkpoint(tmp_path / "m", {}, index=False))) is None


def test_a_shard_that_is_missing_or_cut_off_is_named(tmp_path: Path) -> None:
    place = checkpoint(tmp_path / "m", {"model-1.safetensors": {"a": (99,)}, "model-2.safetensors": {"b": (4,)}})
    shard = tmp_path / "m" / "model-1.safetensors"
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"model-1\.safetensors is no whole .* 10 bytes are missing"):
        read_weights(read_model(place))
    shard.unlink()
    with pytest.raises(InputError, match=r"names 'model-1\.safetensors', which is not there"):
        read_weights(read_model(place))
    (tmp_path / "m" / "model.safetensors.index.json").write_text('{"weight_map": [1]}')
    with pytest.raises(InputError, match="has no weight_map"):
        read_weights(read_model(place))


# --- sources --------------------------------------------------------------------------------------------------------


def test_reading_ahead_gives_the_bytes_of_the_file_in_few_requests() -> None:
    data = random.Random(1).randbytes(200_000)
    asked: list[tuple[int, int]] = []

    def fetch(offset: int, length: int) -> bytes:
        asked.append((offset, length))
        return data[offset : offset + length]

    ahead = ReadAhead("x", len(data), fetch, first=1_000, most=64_000)
    at = 0
    while at < len(data):
        assert ahead.read(at, 97) == data[at : at + 97]
        at += 97
    assert len(asked) < 12
    rng = random.Random(2)
    for _ in range(500):
        offset, length = rng.randrange(-5, len(data) + 50), rng.randrange(0, 30_000)
        assert ahead.read(offset, length) == (data[offset : offset + length] if offset >= 0 else b"")


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    for place, words in ((tmp_path / "pipe", "regular"), (tmp_path, "regular"), (tmp_path / "none", "No such file")):
        with pytest.raises(InputError, match=words):
            FileSource(place)
