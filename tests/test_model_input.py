"""Reading a model from disk: whatever lies there, a config or one clear error, never a traceback."""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnfit.errors import AttnfitError, InputError, UnknownAnswer
from attnfit.inputs.config_types import validate_types
from attnfit.inputs.json_file import MOST_BYTES
from attnfit.inputs.model import read_model

CONFIGS: dict[str, dict[str, Any]] = json.loads(
    gzip.decompress((Path(__file__).parent / "data" / "configs.json.gz").read_bytes())
)
GLM = CONFIGS["zai-org__GLM-5"]["config"]


def model(directory: Path, config: Any = None, **files: Any) -> str:
    """A model directory; file names in `files` have dots written as double underscores."""
    directory.mkdir(exist_ok=True)
    if config is not None:
        files = {"config__json": config, **files}
    for name, content in files.items():
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (directory / name.replace("__", ".")).write_bytes(data)
    return str(directory)


# --- what is read -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_real_configs_are_read_unchanged_and_have_no_wrong_types(name: str, tmp_path: Path) -> None:
    files = read_model(model(tmp_path / "m", CONFIGS[name]["config"]))
    # compared as text: some hold Infinity or NaN
    assert json.dumps(files.config) == json.dumps(CONFIGS[name]["config"])
    assert files.notes == ()
    assert validate_types(files.config) == []


def test_the_config_file_itself_is_as_good_as_its_directory(tmp_path: Path) -> None:
    place = model(tmp_path / "m", GLM, hf_quant_config__json={"quantization": {"quant_algo": "NVFP4"}})
    by_file, by_directory = read_model(place + "/config.json"), read_model(place)
    assert by_file.config == by_directory.config
    assert by_file.hf_quant == {"quantization": {"quant_algo": "NVFP4"}}
    assert by_file.path == place + "/config.json"


def test_a_file_of_another_name_is_read_alone_and_that_is_said(tmp_path: Path) -> None:
    place = model(tmp_path / "m", GLM, hf_quant_config__json={}, other__json={"model_type": "llama"})
    files = read_model(place + "/other.json")
    assert (files.config, files.hf_quant) == ({"model_type": "llama"}, None)
    assert "without the files beside it" in files.notes[0]


def test_what_lies_beside_the_config_is_told(tmp_path: Path) -> None:
    place = model(
        tmp_path / "m",
        GLM,
        params__json={},
        generation_config__json={"top_k": 1},
        **{"consolidated-00001__safetensors": b"", "model__safetensors__index__json": {}},
    )
    files = read_model(place)
    assert (files.params, files.consolidated, files.weights) == (True, True, ("safetensors",))
    assert files.generation == {"top_k": 1}


def test_a_broken_hf_quant_config_is_an_error_only_where_the_engine_reads_it(tmp_path: Path) -> None:
    place = model(tmp_path / "a", {"model_type": "llama"}, hf_quant_config__json=b"{")
    with pytest.raises(InputError, match=r"hf_quant_config\.json is not valid JSON"):
        read_model(place)
    place = model(tmp_path / "b", {"quantization_config": {}}, hf_quant_config__json=b"{")
    files = read_model(place)
    assert files.hf_quant is None
    assert "left out" in files.notes[0]


def test_a_broken_generation_config_is_only_a_note(tmp_path: Path) -> None:
    files = read_model(model(tmp_path / "m", GLM, generation_config__json=b"<html>"))
    assert files.generation is None
    assert "web page" in files.notes[0]


def test_what_the_engine_accepts_is_accepted(tmp_path: Path) -> None:
    """NaN, Infinity and duplicate keys, of which the last counts."""
    files = read_model(model(tmp_path / "m", b'{"a": NaN, "b": -Infinity, "head_dim": 64, "head_dim": 128}'))
    assert files.config["head_dim"] == 128
    assert "'head_dim' given twice" in files.notes[0]


def test_half_characters_are_replaced_so_that_they_can_be_printed(tmp_path: Path) -> None:
    files = read_model(model(tmp_path / "m", rb'{"model_type": "a\ud800", "x\udfff": ["\ud83d\ude00", ["\udc00"]]}'))
    json.dumps(files.config, ensure_ascii=False).encode()
    assert files.config["model_type"] == "a\ufffd"


def test_an_existing_path_wins_over_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zai-org").mkdir()
    model(tmp_path / "zai-org" / "GLM-5", GLM)
    assert read_model("zai-org/GLM-5").config == GLM


# --- what is refused, and in which words ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b'{"a": 1', r"line 1, column 8 \(the file seems to be cut off\)"),
        (b'{\n "a": 1,\n "b" 2}', "line 3, column 6"),
        (b"[]", "an array, not a JSON object"),
        (b"null", "null, not a JSON object"),
        (b'"GLM"', "a string, not a JSON object"),
        (b"12", "a number, not a JSON object"),
        (b'{"a": 1} {"b": 2}', "not valid JSON: Extra data"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
        (b"<!DOCTYPE html><html><body>Log in", "web page"),
        (b"\n<html>", "web page"),
        (b"GGUF\x03\x00\x00\x00", "GGUF"),
        (b"\x80\x02}q\x00" + b"\x00" * 9, "binary file"),
        (b'{"a": "\xff"}', "byte 0xff at offset 7"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b'\xef\xbb\xbf{"a": 1}', "byte order mark"),
        (b"[" * 100_000, "nested deeper"),
        (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, "nested deeper"),
        (b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", "nested deeper"),
        (b'{"a": ' + b"9" * 5000 + b"}", "thousands of digits"),
        (b'{"_class_name": "FluxPipeline", "_diffusers_version": "0.30"}', "diffusers"),
        (b'{"peft_type": "LORA", "base_model_name_or_path": "org/base"}', "LoRA adapter.*'org/base'"),
    ],
)
def test_each_bad_config_gets_one_sentence_naming_the_file(content: bytes, words: str, tmp_path: Path) -> None:
    place = model(tmp_path / "m", content)
    with pytest.raises(InputError, match=words) as error:
        read_model(place)
    assert place in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < len(place) + 300


def test_a_huge_file_is_refused_by_its_size(tmp_path: Path) -> None:
    place = model(tmp_path / "m", b"{}")
    with open(place + "/config.json", "wb") as file:
        file.truncate(200 * 2**20)
    with pytest.raises(InputError, match="200 MiB"):
        read_model(place)


def test_a_large_file_of_duplicate_keys_is_read(tmp_path: Path) -> None:
    pair = b'"k%d":1,'
    body = b"".join(pair % (i % 4_000) for i in range(200_000))
    assert len(body) < MOST_BYTES
    assert read_model(model(tmp_path / "m", b"{" + body + b'"z":0}')).config["z"] == 0


@pytest.mark.parametrize(
    ("files", "kind", "words"),
    [
        ({}, InputError, "it holds nothing"),
        ({"README__md": b"", "a__txt": b""}, InputError, r"it holds README\.md, a\.txt"),
        ({"adapter_config__json": {"base_model_name_or_path": "org/base"}}, InputError, "LoRA adapter.*'org/base'"),
        ({"adapter_config__json": b"{"}, InputError, "LoRA adapter"),
        ({"model_index__json": {}}, InputError, "diffusers"),
        ({"x-Q4_K_M__gguf": b"GGUF"}, InputError, r"holds 1 GGUF files: give one, as .*x-Q4_K_M\.gguf"),
        ({"params__json": {}}, UnknownAnswer, "Mistral format"),
    ],
)
def test_a_directory_that_is_no_model_is_told_for_what_it_is(
    files: dict[str, Any], kind: type[AttnfitError], words: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=words):
        read_model(model(tmp_path / "m", **files))


def test_the_model_one_level_down_is_pointed_at(tmp_path: Path) -> None:
    model(tmp_path / "GLM-5", GLM)
    with pytest.raises(InputError, match=r"but .*GLM-5 has; give that"):
        read_model(str(tmp_path))


def test_a_hub_cache_folder_is_pointed_at_its_snapshot(tmp_path: Path) -> None:
    (tmp_path / "snapshots").mkdir()
    model(tmp_path / "snapshots" / "0123abcd", GLM)
    with pytest.raises(InputError, match=r"snapshots.0123abcd has; give that"):
        read_model(str(tmp_path))


@pytest.mark.parametrize(
    ("path", "kind", "words"),
    [
        ("zai-org/GLM-5", UnknownAnswer, "cannot be reached"),
        ("gpt2", UnknownAnswer, "cannot be reached"),
        ("https://huggingface.co/zai-org/GLM-5/tree/main", UnknownAnswer, "cannot be reached"),
        ("https://example.org/config.json", InputError, "web address"),
        ("s3://bucket/model", UnknownAnswer, "remote storage"),
        ("unsloth/GLM-5-GGUF:Q4_K_M", UnknownAnswer, "cannot be reached"),
        ("./model.gguf", InputError, "no such file"),
        ("./GLM-5", InputError, "no such file"),
        ("/models/a/b/c", InputError, "no such file"),
        ("~/GLM-5", InputError, "does not expand ~"),
        ("", InputError, "no model"),
        ("  ", InputError, "no model"),
        ("a\0b", InputError, "cannot be a path"),
        ("x" * 5000, InputError, "too long"),
        ("\ud800/x", InputError, "cannot be a path|no such file"),
    ],
)
def test_a_path_that_is_not_there(
    path: str, kind: type[AttnfitError], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=words) as error:
        read_model(path)
    assert error.value.exit_code == (3 if kind is UnknownAnswer else 2)


def test_a_misspelt_path_gets_a_suggestion(tmp_path: Path) -> None:
    model(tmp_path / "GLM-5-FP8", GLM)
    with pytest.raises(InputError, match="did you mean 'GLM-5-FP8'"):
        read_model(str(tmp_path / "GLM-5-FP9"))


def test_a_weight_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 9)
    with pytest.raises(InputError, match="give the directory"):
        read_model(str(tmp_path / "model.safetensors"))


def test_pipes_devices_and_links_never_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    place = model(tmp_path / "m", x=b"")
    for target, words in (
        (tmp_path / "pipe", "named pipe"),
        (Path("/dev/zero"), "a device"),
        (tmp_path / "nowhere", "link to a file that is not there"),
        (tmp_path / "loop", "symbolic links"),
        (tmp_path, "is a directory"),
    ):
        link = Path(place) / "config.json"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        with pytest.raises(InputError, match=words):
            read_model(place)
    with pytest.raises(InputError, match="symbolic links"):
        read_model(str(tmp_path / "loop"))
    with pytest.raises(InputError, match="named pipe"):
        read_model(str(tmp_path / "pipe"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_or_directory_is_named(tmp_path: Path) -> None:
    place = model(tmp_path / "m", GLM)
    os.chmod(place + "/config.json", 0)
    with pytest.raises(InputError, match="may not be read"):
        read_model(place)
    os.chmod(place, 0)
    try:
        with pytest.raises(InputError, match="may not be read"):
            read_model(place)
    finally:
        os.chmod(place, 0o700)


# --- types --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("num_attention_heads", "64", "num_attention_heads is the text '64', but must be a positive whole number"),
        ("num_attention_heads", None, "is null"),
        ("num_attention_heads", -4, "is -4"),
        ("num_attention_heads", 0, "is 0"),
        ("num_attention_heads", True, "is true"),
        ("hidden_size", 4096.0, r"is 4096\.0"),
        ("hidden_size", 10**30, r"is 1e\+30"),
        ("hidden_size", 10**400, "hundreds of digits"),
        ("kv_lora_rank", float("nan"), "is nan"),
        ("head_dim", [], "is an empty list"),
        ("head_dim", {"a": 1}, "is an object"),
        ("rope_theta", float("inf"), "is inf, but must be a finite number"),
        ("model_type", 7, "model_type is 7, but must be a text"),
        ("architectures", "GlmMoeDsaForCausalLM", "must be a list of texts"),
        ("layer_types", ["full_attention", 1], "must be a list of texts"),
        ("quantization_config", "fp8", "must be an object or null"),
        ("torch_dtype", 16, "must be the name of a dtype"),
    ],
)
def test_a_deciding_key_of_wrong_type_is_named_with_what_is_expected(key: str, value: Any, message: str) -> None:
    for config in ({key: value}, {"text_config": {key: value}}):
        (found,) = validate_types(config)
        assert re.search(message, found), found


def test_null_is_fine_where_engines_have_a_default() -> None:
    assert validate_types({"head_dim": None, "num_key_value_heads": None, "sliding_window": None}) == []
    assert validate_types({"num_key_value_heads": [8, 8, 4], "sliding_window": -1, "intermediate_size": [1, 2]}) == []


# --- anything at all ----------------------------------------------------------------------------------------------

SAMPLE = ("zai-org__GLM-5", "google__gemma-3-27b-it", "Qwen__Qwen3-Next-80B-A3B", "openai__gpt-oss-20b")
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**30, -1, 0, 10**400, 1e308, float("nan"), float("inf"), "", "64", [], {}, [[]], "\ud800"]),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A real config with some keys changed, removed or added, then perhaps some bytes."""
    config = copy.deepcopy(CONFIGS[draw(st.sampled_from(SAMPLE))]["config"])
    for _ in range(draw(st.integers(0, 6))):
        level = config
        while nested := [k for k, v in level.items() if isinstance(v, dict) and v]:
            if not draw(st.booleans()):
                break
            level = level[draw(st.sampled_from(nested))]
        key = draw(st.sampled_from(sorted(level)) if level else st.just("model_type"))
        if draw(st.booleans()):
            level[key] = draw(JUNK)
        else:
            level.pop(key, None)
    data = json.dumps(config).encode()
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(["cut", "flip", "insert", "repeat", "none"]))
        if kind == "cut":
            data = data[:at]
        elif kind == "flip":
            data = data[:at] + bytes([draw(st.integers(0, 255))]) + data[at + 1 :]
        elif kind == "insert":
            data = data[:at] + draw(st.binary(max_size=6)) + data[at:]
        elif kind == "repeat":
            data = data + data[at:]
    return data


@given(mutated())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_mutated_real_config_is_read_or_refused_in_one_sentence(tmp_path: Path, data: bytes) -> None:
    place = model(tmp_path / "m", data)
    said: list[str]
    try:
        said = validate_types(read_model(place).config)
    except AttnfitError as error:
        said = [str(error)]
    for message in said:
        message.encode()  # can be printed
        assert 0 < len(message) < len(place) + 400
        assert "\n" not in message


@given(st.text(max_size=40))
@settings(max_examples=150, deadline=None)
def test_any_text_as_a_path_is_a_model_or_an_error(path: str) -> None:
    with contextlib.suppress(AttnfitError):
        read_model(path)
