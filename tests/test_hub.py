"""Hub ids: what is asked of the hub and how much, and one sentence with exit code 3 for each thing that goes wrong.

Nothing here reaches the network: the hub is tests/hub_server.py on this machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attnfit import check
from attnfit.errors import InputError, UnknownAnswer, UsageError
from attnfit.inputs.hub_gguf import by_quant, open_gguf
from attnfit.inputs.hub_ref import HubRef, HubSettings, hub_settings, parse_ref, settings_of
from attnfit.inputs.model import read_model
from attnfit.inputs.waiting import told
from attnfit.inputs.weights import read_weights
from gguf_bytes import Builder
from hub_server import COMMIT, OTHER, Hub

ROOT = Path(__file__).parent.parent
CONFIG = json.loads((ROOT / "examples" / "glm-5" / "config.json").read_text("utf-8"))
TOKEN = "hf_" + "aB3" * 11
GLM = "zai-org/GLM-5"


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    served = Hub()
    yield served
    served.close()


@pytest.fixture
def hub(server: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    """A hub with one model, and empty caches."""
    server.reset()
    server.add(GLM, {"config.json": CONFIG, "generation_config.json": {}, "README.md": b"text"})
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("ATTNFIT_CACHE", str(tmp_path / "attnfit"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "sleep", lambda _: None)  # waits before another try
    return server


def paths(hub: Hub) -> list[str]:
    return [request.path for request in hub.requests]


def safetensors(tensors: dict[str, tuple[str, list[int], int]]) -> bytes:
    """name -> (dtype, shape, bytes), with that many bytes of weights behind the header."""
    header, at = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"\xff" * at


# --- what is fetched ----------------------------------------------------------------------------------------------


def test_a_hub_id_is_read_as_the_directory_would_be(hub: Hub) -> None:
    files = read_model(GLM)
    assert files.config == CONFIG
    assert files.names == {"config.json", "generation_config.json", "README.md"}
    assert (files.repo, files.commit) == (GLM, COMMIT)
    assert f"read from {hub.url}, commit {COMMIT[:12]}" in files.notes[0]


def test_a_launch_that_is_refused_costs_no_weight_headers(hub: Hub) -> None:
    sharded(hub)
    report = check(f"vllm serve {GLM} --dtype float16", gpu="rtx-pro-6000x8", engine="vllm==0.33.0")
    assert report.verdict == "refused"
    assert {p.rsplit("/", 1)[-1] for p in paths(hub)} == {"GLM-5", "config.json"}
    assert any(f"commit {COMMIT[:12]}" in s for s in report.said)


def test_one_that_passes_costs_the_header_of_each_shard_and_no_weights(hub: Hub) -> None:
    sharded(hub)
    report = check(model=GLM, gpu="h200x8", engine="vllm==0.33.0")
    assert report.launch.ok
    assert all(0 < hub.sent[name] <= 128 << 10 for name in SHARDS)


def test_the_answer_is_that_of_the_same_files_here(hub: Hub) -> None:
    here = check(model=str(ROOT / "examples" / "glm-5"), gpu="rtx-pro-6000x8", engine="vllm==0.16.0", planned=False)
    there = check(model=GLM, gpu="rtx-pro-6000x8", engine="vllm==0.16.0", planned=False)
    assert (there.verdict, there.launch.error, there.launch.layers) == (
        here.verdict, here.launch.error, here.launch.layers,
    )  # fmt: skip


def test_a_second_run_asks_only_which_commit_it_is(hub: Hub) -> None:
    read_model(GLM)
    hub.requests.clear()
    assert read_model(GLM).config == CONFIG
    assert paths(hub) == [f"/api/models/{GLM}"]
    hub.requests.clear()
    read_model(f"{GLM}@{COMMIT}")  # the revision may never have been asked for, but a commit is one
    read_model(f"{GLM}@{COMMIT}")
    assert len(paths(hub)) <= 1


def test_offline_the_second_run_is_answered_from_the_cache(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    online = check(model=GLM, gpu="h200x8", engine="vllm==0.33.0")
    hub.requests.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    offline = check(model=GLM, gpu="h200x8", engine="vllm==0.33.0")
    assert (offline.verdict, offline.launch.layers) == (online.verdict, online.launch.layers)
    assert any("offline mode: taken from the cache" in s for s in offline.said)
    assert hub.requests == []


def test_without_a_hub_the_cache_answers_and_says_so(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    read_model(GLM)
    hub.fail("/api/", "drop")
    files = read_model(GLM)
    assert files.config == CONFIG
    assert "cannot be reached" in files.notes[1]
    assert "taken from the cache" in files.notes[1]


def test_what_an_engine_has_put_into_the_cache_is_found_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import hf_hub_download

    cache = Path(os.environ["HF_HOME"]) / "hub"
    hf_hub_download(GLM, "config.json", endpoint=hub.url, cache_dir=cache)
    hub.gone()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    files = read_model(GLM)
    assert (files.config, files.names) == (CONFIG, {"config.json"})


def test_the_revision_of_the_launch_is_the_one_that_is_read(hub: Hub) -> None:
    hub.add(GLM, {"config.json": {**CONFIG, "num_hidden_layers": 3}}, commit=OTHER, ref="refs/pr/7")
    at_head = check(f"vllm serve {GLM}", gpu="h200x8", engine="vllm==0.33.0")
    of_flag = check(f"vllm serve {GLM} --revision refs/pr/7", gpu="h200x8", engine="vllm==0.33.0")
    of_name = check(model=f"{GLM}@refs/pr/7", gpu="h200x8", engine="vllm==0.33.0")
    assert [sum(layer.count for layer in r.launch.layers) for r in (at_head, of_flag, of_name)] == [78, 3, 3]
    assert any("--revision refs/pr/7" in s for s in of_name.said)  # the command that was taken


def test_a_name_that_the_engine_does_not_take_is_no_launch(hub: Hub) -> None:
    hub.refs[GLM]["v1"] = COMMIT
    with pytest.raises(UsageError, match=f"give it {GLM} --revision v1"):
        check(f"vllm serve {GLM}@v1", gpu="h200x8", engine="vllm==0.33.0")


def test_code_of_the_model_is_looked_for_at_its_own_revision(hub: Hub) -> None:
    config = {**CONFIG, "auto_map": {"AutoConfig": "configuration_x.X"}, "model_type": "llama"}
    hub.add(GLM, {"config.json": config})
    hub.add(GLM, {"config.json": config, "configuration_x.py": b""}, commit=OTHER, ref="code")
    plain = settings_of({})
    assert "configuration_x.py" not in (read_model(GLM, lambda: plain).names or ())
    other = settings_of({"code_revision": "code"})
    found = read_model(GLM, lambda: other)
    assert found.commit == COMMIT
    assert "configuration_x.py" in (found.names or ())


def test_a_refusal_names_the_page_of_a_hub_model(hub: Hub) -> None:
    hub.add(GLM, {"config.json": {**CONFIG, "model_type": "x_y", "auto_map": {"AutoConfig": "c.X"}}})
    report = check(model=GLM, gpu="h200x8", engine="vllm==0.33.0")
    assert "inspect the repository content at https://hf.co/zai-org/GLM-5 ." in str(report.launch.error)


def test_an_existing_path_wins_and_that_is_said(hub: Hub, tmp_path: Path) -> None:
    place = tmp_path / "zai-org" / "GLM-5"
    place.mkdir(parents=True)
    (place / "config.json").write_text('{"model_type": "llama"}')
    files = read_model(GLM)
    assert files.config == {"model_type": "llama"}
    assert "is the directory here" in files.notes[0]
    assert hub.requests == []


def test_a_batch_reads_a_hub_model_once_for_all_its_lines(hub: Hub) -> None:
    from attnfit.batch import _read, answers

    _read.cache_clear()
    line = {"model": GLM, "gpu": "h200x8", "engine": "vllm==0.33.0", "flags": []}
    lines = [json.dumps(line), json.dumps({**line, "flags": ["--dtype", "float16"]})]
    replies = list(answers([text.encode() for text in lines]))
    assert [reply["ok"] for reply in replies] == [True, True]
    gone = json.dumps({**line, "model": "no/such"}).encode()
    assert next(iter(answers([gone])))["exit_code"] == 3
    assert paths(hub).count(f"/api/models/{GLM}") == 1


# --- headers ------------------------------------------------------------------------------------------------------

SHARDS = {
    "model-1.safetensors": {"a": ("F8_E4M3", [1024, 2048], 2 << 20), "a_scale": ("F32", [8, 16], 512)},
    "model-2.safetensors": {"b": ("BF16", [1024, 1024], 2 << 20)},
}
INDEX = {"metadata": {}, "weight_map": {name: file for file, tensors in SHARDS.items() for name in tensors}}


def sharded(hub: Hub) -> None:
    files = {name: safetensors(tensors) for name, tensors in SHARDS.items()}
    hub.add(GLM, {"config.json": CONFIG, "model.safetensors.index.json": INDEX, **files})


def test_every_tensor_is_known_to_the_byte_from_the_first_window_of_each_shard(hub: Hub) -> None:
    sharded(hub)
    found = read_weights(read_model(GLM))
    assert found is not None
    assert {name: (t.dtype, t.nbytes) for name, t in found.tensors.items()} == {
        "a": ("F8_E4M3", 2 << 20), "a_scale": ("F32", 512), "b": ("BF16", 2 << 20),
    }  # fmt: skip
    assert all(hub.sent[name] <= 128 << 10 for name in SHARDS)


def test_headers_are_kept_so_that_offline_they_are_known_again(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    sharded(hub)
    online = read_weights(read_model(GLM))
    hub.gone()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert read_weights(read_model(GLM)) == online


def test_a_header_longer_than_the_first_window_costs_its_own_length(hub: Hub) -> None:
    many = {f"model.layers.{i}.self_attn.q_proj.weight": ("U8", [1], 1) for i in range(4_000)}
    body = safetensors({**many, "last": ("U8", [9 << 20], 9 << 20)})
    hub.add(GLM, {"config.json": CONFIG, "model.safetensors": body})
    found = read_weights(read_model(GLM))
    assert found is not None
    assert len(found.tensors) == 4_001
    assert hub.sent["model.safetensors"] == 8 + int.from_bytes(body[:8], "little")


def test_a_connection_that_breaks_off_is_tried_again(hub: Hub) -> None:
    sharded(hub)
    hub.fail("/storage/.*model-1", "cut", times=1)
    hub.fail("/storage/.*model-2", (503, {}), times=2)
    found = read_weights(read_model(GLM))
    assert found is not None
    assert found.nbytes == (4 << 20) + 512


def test_one_that_always_breaks_off_is_said_so(hub: Hub) -> None:
    sharded(hub)
    hub.fail("/storage/", "cut")
    with pytest.raises(UnknownAnswer, match="the connection broke off"):
        read_weights(read_model(GLM))


def test_a_server_without_ranges_is_hung_up_on(hub: Hub) -> None:
    hub.ranges = False
    hub.add("o/gguf", {"x-Q4_0.gguf": b"GGUF" + b"\1" * (24 << 20)})
    source = open_gguf("o/gguf:x-Q4_0.gguf").source
    assert source.read(0, 4) == b"GGUF"
    with pytest.raises(UnknownAnswer, match="does not serve parts"):
        source.read(5 << 20, 100)


def test_the_token_goes_to_the_hub_and_not_to_its_storage(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    sharded(hub)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    read_weights(read_model(GLM))
    asked = [r for r in hub.requests if not r.path.startswith("/storage/")]
    stored = [r for r in hub.requests if r.path.startswith("/storage/")]
    assert stored
    assert all(r.headers.get("authorization") == f"Bearer {TOKEN}" for r in asked)
    assert not any("authorization" in r.headers for r in stored)


def test_weights_that_an_engine_has_downloaded_are_read_here(hub: Hub, tmp_path: Path) -> None:
    from huggingface_hub import hf_hub_download

    sharded(hub)
    for name in SHARDS:
        hf_hub_download(GLM, name, endpoint=hub.url, cache_dir=tmp_path / "down")
    hub.requests.clear()
    settings = settings_of({"download_dir": str(tmp_path / "down")})
    assert read_weights(read_model(GLM, lambda: settings)) is not None
    assert not [p for p in paths(hub) if p.endswith(".safetensors")]


# --- GGUF files on the hub ------------------------------------------------------------------------------------------


def test_a_gguf_file_of_a_repository_is_a_source_with_its_siblings(hub: Hub) -> None:
    body = b"GGUF" + bytes(range(256)) * 40_000
    hub.add("unsloth/GLM-5-GGUF", {"UD/x-00001-of-00002.gguf": body, "UD/x-00002-of-00002.gguf": b"GGUF2", "y": b""})
    opened = open_gguf("unsloth/GLM-5-GGUF:UD/x-00001-of-00002.gguf")
    assert opened.source.size == len(body)
    assert opened.source.read(0, 4) == b"GGUF"
    for at in range(0, 1 << 20, 1 << 12):  # a header is walked in small steps
        assert opened.source.read(at, 100) == body[at : at + 100]
    assert len([p for p in paths(hub) if p.startswith("/storage/")]) <= 2
    second = opened.beside("x-00002-of-00002.gguf")
    assert second is not None
    assert second.read(0, 99) == b"GGUF2"
    assert opened.beside("x-00003-of-00002.gguf") is None


def test_a_gguf_file_at_any_address_is_read_without_a_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.add("a/b", {"m.gguf": b"GGUF rest"})
    source = open_gguf(f"{hub.storage}/storage/a/b@{COMMIT}/m.gguf").source
    assert source.read(4, 100) == b" rest"
    assert not any("authorization" in r.headers for r in hub.requests)


def test_a_quantisation_names_the_file_that_engines_take() -> None:
    ref = HubRef(repo="o/r", quant="Q4_K_M")
    files: dict[str, int | None] = dict.fromkeys(
        ["a-Q4_K_M-00001-of-00002.gguf", "a-Q4_K_M-00002-of-00002.gguf", "sub/b-b-Q4_K_M.gguf", "a-Q8_0.gguf"]
    )
    assert by_quant(ref, files) == "sub/b-b-Q4_K_M.gguf"  # the fewest dashes, as vLLM sorts
    with pytest.raises(UnknownAnswer, match=r"no GGUF file for 'Q4_K_M'.*name one, as o/r:a-Q8_0\.gguf"):
        by_quant(ref, {"a-Q8_0.gguf": 1})
    with pytest.raises(UnknownAnswer, match="holds no GGUF file"):
        by_quant(ref, {"config.json": 1})


QWEN = {
    "general.architecture": "qwen3", "qwen3.block_count": 4, "qwen3.context_length": 4096,
    "qwen3.embedding_length": 256, "qwen3.feed_forward_length": 512, "qwen3.attention.head_count": 8,
    "qwen3.attention.head_count_kv": 2, "qwen3.attention.key_length": 64, "qwen3.attention.value_length": 64,
    "qwen3.vocab_size": 1000,
}  # fmt: skip


def test_a_gguf_file_on_the_hub_is_a_model_by_file_by_quant_and_by_address(hub: Hub) -> None:
    hub.add("o/Q-GGUF", {"Q-Q4_0.gguf": Builder().header(QWEN), "README.md": b""})
    named = [f"{hub.url}/o/Q-GGUF/resolve/main/Q-Q4_0.gguf", f"{hub.storage}/storage/o/Q-GGUF@{COMMIT}/Q-Q4_0.gguf"]
    for path in ("o/Q-GGUF:Q-Q4_0.gguf", "o/Q-GGUF:Q4_0", "o/Q-GGUF/Q-Q4_0.gguf", *named):
        files = read_model(path)
        assert files.gguf is not None
        assert files.config["num_key_value_heads"] == 2
        assert files.engine_path == ("o/Q-GGUF:Q4_0" if path.endswith(":Q4_0") else "./Q-Q4_0.gguf")
    assert any("o/Q-GGUF:Q4_0 is the file Q-Q4_0.gguf" in note for note in read_model("o/Q-GGUF:Q4_0").notes)
    with pytest.raises(InputError, match=r"holds 1 GGUF files: give one, as o/Q-GGUF:Q-Q4_0\.gguf"):
        read_model("o/Q-GGUF")


def test_an_engine_is_given_the_file_itself_or_its_quantisation(hub: Hub) -> None:
    hub.add("o/Q-GGUF", {"Q-Q4_0.gguf": Builder().header(QWEN)})
    with pytest.raises(UsageError, match="give it the file itself, downloaded"):
        check("vllm serve o/Q-GGUF:Q-Q4_0.gguf", gpu="h200", engine="vllm==0.23.0")
    report = check(model="o/Q-GGUF:Q-Q4_0.gguf", gpu="h200", engine="vllm==0.23.0")
    assert any("taken as if Q-Q4_0.gguf had been downloaded" in s for s in report.said)
    assert any("vllm serve ./Q-Q4_0.gguf" in s for s in report.said)


# --- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "answer", "words"),
    [
        (
            "resolve",
            (403, {"X-Error-Code": "GatedRepo"}),
            "is gated: accept its terms at .*/zai-org/GLM-5, then log in",
        ),
        ("resolve", (401, {"X-Error-Code": "GatedRepo"}), "is gated"),
        ("/api/", (404, {"X-Error-Code": "RepoNotFound"}), "shows no such model without a token; check the spelling"),
        ("/api/", (401, {}), "shows no such model without a token"),
        ("/api/", (404, {"X-Error-Code": "RevisionNotFound"}), "has no revision"),
        ("resolve", (404, {"X-Error-Code": "EntryNotFound"}), r"has no config\.json"),
        ("/api/", (403, {"X-Error-Message": "Access to this resource is disabled."}), "has been disabled"),
        ("/api/", (403, {}), "forbids this token"),
        ("/api/", (404, {}), "has nothing under that name"),
        ("/api/", (429, {"Retry-After": "7"}), r"no more requests for now \(429, wait 7 s\).*log in"),
        ("HEAD", (429, {"RateLimit": '"api";r=0;t=55'}), r"429, wait 55 s"),
        ("/api/", (429, {}), r"no more requests for now \(429\)"),
        ("/api/", (500, {}), r"in trouble \(it answered 500\); try again later"),
        ("resolve", (503, {}), r"in trouble \(it answered 503\)"),
        ("/api/", (418, {}), "answered 418"),
        ("/api/", (200, {}), "does not answer as the hub does"),
        ("/api/", "drop", "cannot be reached .the connection broke off.; check the connection and HF_ENDPOINT"),
        ("HEAD", "drop", "the connection broke off"),
        ("GET /zai", "drop", "the connection broke off"),
        ("GET /zai", "cut", "the connection broke off"),
    ],
)
def test_each_failure_is_one_sentence_with_exit_code_3(
    pattern: str, answer: tuple[int, dict[str, str]] | str, words: str, hub: Hub
) -> None:
    hub.fail(pattern, answer)
    started = time.monotonic()
    with pytest.raises(UnknownAnswer, match=words) as error:
        read_model(GLM)
    assert error.value.exit_code == 3
    assert time.monotonic() - started < 5
    text = str(error.value)
    assert GLM in text
    assert len(text) < 320
    assert "\n" not in text


def test_a_download_that_is_cut_once_is_taken_up_again(hub: Hub) -> None:
    hub.fail("GET /zai", "cut", times=1)
    assert read_model(GLM).config == CONFIG


def test_a_model_that_is_not_there_is_named_and_so_is_a_revision(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownAnswer, match=r"no-one/GLM-9 is no path here, and .* shows no such model without"):
        read_model("no-one/GLM-9")
    with pytest.raises(UnknownAnswer, match="has no revision 'v9'; its branches and tags are at"):
        read_model(f"{GLM}@v9")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(UnknownAnswer, match="shows no such model to this token"):
        read_model("no-one/GLM-9")


def test_a_refused_token_is_said_and_never_shown(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.fail("/api/", (401, {"X-Error-Message": "Invalid credentials in Authorization header"}))
    with pytest.raises(UnknownAnswer, match="refuses the token") as error:
        read_model(GLM)
    assert TOKEN not in str(error.value)
    monkeypatch.setenv("HF_TOKEN", "hf_äöü")
    hub.faults.clear()
    with pytest.raises(UnknownAnswer, match="holds characters that no token has"):
        read_model(GLM)


def test_offline_without_a_cache_says_how_to_fill_it(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UnknownAnswer, match=r"offline mode is on .*run once without it, or `hf download zai-org/GLM-5"):
        read_model(GLM)
    assert hub.requests == []


@pytest.mark.parametrize(
    "endpoint", ["http://nowhere.invalid", "nonsense", "http://127.0.0.1:1", "ftp://x/", "http://"]
)
def test_an_endpoint_that_is_none_is_said(endpoint: str, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(UnknownAnswer, match="cannot be reached"):
        read_model(GLM)


@pytest.mark.parametrize(
    ("files", "kind", "words"),
    [
        ({"adapter_config.json": {"base_model_name_or_path": "org/base"}}, InputError, "LoRA adapter.*'org/base'"),
        ({"model_index.json": {}}, InputError, "diffusers"),
        ({"params.json": {}}, UnknownAnswer, "Mistral format"),
        ({"README.md": b""}, UnknownAnswer, r"has no config.json on the hub \(it holds README.md\)"),
        ({}, UnknownAnswer, "it holds nothing"),
        ({"config.json": b"<html>"}, InputError, "web page"),
        ({"config.json": b"[" * 9_000_000}, InputError, "has 8 MiB"),
    ],
)
def test_a_repository_that_is_no_model_is_told_for_what_it_is(
    files: dict[str, Any], kind: type[Exception], words: str, hub: Hub
) -> None:
    hub.add("o/odd", files)
    with pytest.raises(kind, match=words):
        read_model("o/odd")


def test_a_model_of_modelscope_is_not_looked_for_on_the_hub(hub: Hub) -> None:
    for command in (
        f"VLLM_USE_MODELSCOPE=True vllm serve {GLM}",
        f"SGLANG_USE_MODELSCOPE=true python -m sglang.launch_server --model-path {GLM}",
    ):
        with pytest.raises(UnknownAnswer, match=rf"ModelScope \({command.partition('=')[0]}\)"):
            check(command, gpu="h200")
    assert hub.requests == []
    from attnfit.inputs.command import parse_command

    other = parse_command(f"SGLANG_USE_MODELSCOPE=1 vllm serve {GLM}")
    assert not hub_settings(other).modelscope, "each engine reads its own variable"


# --- the command line -----------------------------------------------------------------------------------------------


def attnfit(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "attnfit", *words],
        capture_output=True, text=True, env={**os.environ, **variables}, check=False,
    )  # fmt: skip


def test_the_program_itself_says_it_in_one_line_and_shows_no_token(hub: Hub) -> None:
    hub.fail("resolve", (403, {"X-Error-Code": "GatedRepo"}))
    found = attnfit("check", "--gpu", "h200", "--", "vllm", "serve", GLM, "--hf-token", TOKEN)
    assert (found.returncode, found.stdout) == (3, "")
    assert found.stderr.startswith(f"error: {GLM} is gated")
    assert found.stderr.count("\n") == 1
    assert TOKEN not in found.stderr
    assert any(r.headers.get("authorization") == f"Bearer {TOKEN}" for r in hub.requests)


def test_a_path_that_is_here_never_imports_the_hub_library() -> None:
    code = (
        "import sys; from attnfit import check; check(model='examples/glm-5', gpu='h200x8');"
        "print([m for m in sys.modules if m.split('.')[0] in ('huggingface_hub', 'httpx', 'requests', 'concurrent')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert found.stdout.strip() == "[]", found.stderr


# --- what an id is --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("zai-org/GLM-5", HubRef(repo="zai-org/GLM-5")),
        ("gpt2", HubRef(repo="gpt2")),
        ("o/n@v1.0", HubRef(repo="o/n", revision="v1.0")),
        ("o/n@refs/pr/3", HubRef(repo="o/n", revision="refs/pr/3")),
        ("o/n:Q4_K_M", HubRef(repo="o/n", quant="Q4_K_M")),
        ("o/n:d/x.gguf", HubRef(repo="o/n", file="d/x.gguf")),
        ("o/n@main:x.gguf", HubRef(repo="o/n", revision="main", file="x.gguf")),
        ("o/n/x.gguf", HubRef(repo="o/n", file="x.gguf")),
        ("hf://o/n", HubRef(repo="o/n")),
        ("https://huggingface.co/o/n", HubRef(repo="o/n")),
        ("https://hf.co/o/n/tree/main", HubRef(repo="o/n")),
        ("https://huggingface.co/o/n/tree/v2/sub", HubRef(repo="o/n", revision="v2")),
        ("https://huggingface.co/o/n/resolve/main/d/x.gguf?download=true", HubRef(repo="o/n", file="d/x.gguf")),
        ("https://huggingface.co/gpt2/blob/main/config.json", HubRef(repo="gpt2")),
        ("https://huggingface.co/datasets/o/n", None),
        ("https://example.org/o/n", None),
        ("https://[", None),
        ("o/n/m", None),
        ("./o/n", None),
        ("/o/n", None),
        ("o//n", None),
        ("o/n@", None),
        ("o/n.json", None),
        ("model.gguf", None),
        ("s3://o/n", None),
        ("o/../n", None),
        ("o n/m", None),
        ("", None),
    ],
)
def test_what_a_name_means(text: str, ref: HubRef | None) -> None:
    assert parse_ref(text) == ref


def test_the_launch_says_how_it_reaches_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnfit.inputs.command import parse_command

    monkeypatch.delenv("HF_ENDPOINT")
    monkeypatch.delenv("HF_HOME")
    words = (
        f"HF_HOME=/data/hf HF_ENDPOINT=https://hf-mirror.com HF_HUB_OFFLINE=1 vllm serve o/n --revision v1 "
        f"--code-revision v2 --hf-token={TOKEN} --download-dir /w"
    )
    found = hub_settings(parse_command(words))
    assert found == HubSettings(
        revision="v1", code_revision="v2", token=TOKEN, endpoint="https://hf-mirror.com", cache="/data/hf/hub",
        download_dir="/w", offline=True,
    )  # fmt: skip
    assert TOKEN not in repr(found)
    inside = hub_settings(parse_command(f"docker run -e HF_HOME=/in -e HF_TOKEN={TOKEN} vllm/vllm-openai --model o/n"))
    assert inside == HubSettings(token=TOKEN)  # its folders are not ours
    assert hub_settings(parse_command("vllm serve o/n --hf-token")).token is None  # the stored one
    monkeypatch.delenv("NOT_SET", raising=False)
    assert hub_settings(parse_command(["HF_TOKEN=$NOT_SET", "vllm", "serve", "o/n"])).token is None


# --- servers that take their time -----------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["GET /api/models", "GET .*config.json", ""])
def test_a_server_that_sends_a_byte_now_and_then_is_given_up(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.setattr("attnfit.inputs.hub.LONGEST", 0.6)
    hub.fail(pattern, "drip")
    began = time.monotonic()
    with pytest.raises(UnknownAnswer, match="does not answer in time"):
        read_model(GLM)
    assert time.monotonic() - began < 5


def test_headers_that_drip_are_given_up_without_another_try(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnfit.inputs.hub_ranges.LONGEST", 0.3)
    sharded(hub)
    hub.fail("GET /storage", "drip")
    began = time.monotonic()
    with pytest.raises(UnknownAnswer, match="does not answer in time"):
        read_weights(read_model(GLM))
    assert time.monotonic() - began < 5


def test_a_list_of_files_without_end_is_not_read_whole(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnfit.inputs.hub.MOST_LISTING", 4 << 20)
    hub.fail("GET /api/models", "vast")
    with pytest.raises(UnknownAnswer, match="does not answer as the hub does"):
        read_model(GLM)
    assert hub.sent["endless"] < 64 << 20


def test_a_config_larger_than_any_is_refused_before_it_is_fetched(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the list of files does not say how large it is."""
    hub.add(GLM, {"config.json": b" " * (9 << 20)})
    with pytest.raises(InputError, match="9 MiB"):
        read_model(GLM)
    assert hub.sent.get("config.json") is None


def test_what_takes_long_is_said_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("attnfit.inputs.waiting.PATIENCE", 0.01)
    with told("asking the hub"):
        threading.Event().wait(0.2)
    assert capsys.readouterr().err == "asking the hub ...\n"
