"""Source files come from where the user says, whole or in parts, checked, and are kept for next time."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import textwrap
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import tiny_engine
from attnfit.engines.vllm.distribution import DISTRIBUTION
from attnfit.engines.vllm.witness.release import Release
from attnfit.errors import InputError, UnknownAnswer
from attnfit.witness import cache, fetch, index, sources
from attnfit.witness.distribution import Distribution
from attnfit.witness.index import Index, IndexFile, configured

METADATA = "Metadata-Version: 2.4\nName: vllm\nVersion: 0.99.0\nRequires-Dist: flashinfer-python==0.6.14\n\nRead me.\n"
WHEEL = "vllm-0.99.0-cp38-abi3-manylinux_2_35_x86_64.whl"


def wheel_bytes(extra: dict[str, bytes] | None = None) -> bytes:
    members = {name: textwrap.dedent(text).encode() for name, text in tiny_engine.FILES.items()}
    members["vllm/_flashmla_C.abi3.so"] = b"\x7fELF" * 400_000  # large, stored, never fetched
    members["vllm-0.99.0.dist-info/METADATA"] = METADATA.encode()
    members |= extra or {}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data, zipfile.ZIP_STORED if name.endswith(".so") else None)
    return buffer.getvalue()


class Server:
    """A package index on localhost, with faults to order."""

    def __init__(self) -> None:
        self.wheel = wheel_bytes()
        self.sha256 = hashlib.sha256(self.wheel).hexdigest()
        self.json, self.ranges, self.drops, self.fails = True, True, 0, 0
        self.sent = 0
        self.logins: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                outer.logins.append(self.headers.get("Authorization"))
                if outer.fails:
                    outer.fails -= 1
                    self.send_error(503)
                elif self.path == "/simple/vllm/":
                    self.listing()
                elif self.path == f"/files/{WHEEL}":
                    self.file()
                else:
                    self.send_error(404)

            def listing(self) -> None:
                url = f"../../files/{WHEEL}"
                if outer.json:
                    entry = {"filename": WHEEL, "url": url, "hashes": {"sha256": outer.sha256}}
                    body, kind = json.dumps({"files": [entry]}), "application/vnd.pypi.simple.v1+json"
                else:
                    body, kind = f'<a href="{url}#sha256={outer.sha256}">{WHEEL}</a>', "text/html"
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.end_headers()
                self.wfile.write(body.encode())

            def file(self) -> None:
                data, status = outer.wheel, 200
                asked = self.headers.get("Range")
                if asked and outer.ranges:
                    first, _, last = asked.removeprefix("bytes=").partition("-")
                    start = int(first)
                    end = min(int(last), len(data) - 1) if last else len(data) - 1
                    status, span = 206, f"bytes {start}-{end}/{len(data)}"
                    data = data[start : end + 1]
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                if status == 206:
                    self.send_header("Content-Range", span)
                self.end_headers()
                if outer.drops and len(data) > 1:
                    outer.drops -= 1
                    data = data[: len(data) // 2]
                    self.close_connection = True
                outer.sent += len(data)
                self.wfile.write(data)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/simple"

    def fetch(self, version: str = "0.99.0") -> sources.Source:
        return fetch.fetched(DISTRIBUTION, version, indexes=[Index(self.url)], say=lambda text: None)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    monkeypatch.setenv("ATTNFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(index.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(index, "BLOCK", 4096)
    monkeypatch.setattr(fetch, "WHOLE", 0)
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


def usable(source: sources.Source) -> None:
    assert source.version == "0.99.0"
    assert (source.env["flashinfer"], source.env["flashmla"], source.env["fa2"]) == (True, True, False)
    assert Release(source.root, source.version, source.env).ask(tiny_engine.QUESTION).chosen == "FAST"
    assert not list(Path(source.root).glob("**/*.so"))


@pytest.mark.parametrize("as_json", [True, False])
def test_only_the_source_files_of_a_release_are_fetched(server: Server, as_json: bool) -> None:
    server.json = as_json
    usable(server.fetch())
    assert server.sent < len(server.wheel) / 10


def test_once_fetched_it_needs_no_network(server: Server) -> None:
    first = server.fetch()
    server.http.shutdown()
    assert fetch.fetched(DISTRIBUTION, "0.99.0", offline=True) == first


def test_kept_files_that_were_cut_off_or_lost_are_fetched_anew(server: Server) -> None:
    first = server.fetch()
    file = next(Path(first.root).rglob("*.py"))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])

    again = server.fetch()

    assert Path(again.root, file.relative_to(first.root)).read_bytes() == whole
    (Path(again.root) / "attnfit.json").write_text("{")
    assert Path(server.fetch().root, file.relative_to(first.root)).read_bytes() == whole
    assert not [path for path in Path(first.root).parent.iterdir() if path != Path(first.root)]  # nothing left beside


def test_offline_says_so(server: Server) -> None:
    with pytest.raises(UnknownAnswer, match="not in the cache"):
        fetch.fetched(DISTRIBUTION, "0.99.0", offline=True)


def test_a_server_without_ranges_gives_the_whole_wheel(server: Server) -> None:
    server.ranges = False
    source = server.fetch()
    usable(source)
    assert source.sha256 == server.sha256


def test_a_wheel_that_is_not_what_the_index_lists_is_not_used(server: Server) -> None:
    server.ranges, server.sha256 = False, "0" * 64
    with pytest.raises(UnknownAnswer, match="sha256"):
        server.fetch()
    assert not list((cache.cache_dir() / "sources").glob("*"))


@pytest.mark.parametrize("ranges", [True, False])
def test_dropped_connections_and_passing_faults_are_tried_again(server: Server, ranges: bool) -> None:
    server.ranges, server.drops = ranges, 2
    usable(server.fetch())


def test_a_connection_that_keeps_breaking_off_is_one_clear_error(server: Server) -> None:
    server.drops = 1000
    with pytest.raises(UnknownAnswer, match=r"breaking off|cannot be reached"):
        server.fetch()


def test_a_damaged_member_is_noticed(server: Server) -> None:
    """One byte of one compressed file is different; its checksum tells."""
    with zipfile.ZipFile(io.BytesIO(server.wheel)) as archive:
        member = archive.getinfo("vllm/v1/attention/backend.py")
    damaged = bytearray(server.wheel)
    damaged[member.header_offset + 30 + len(member.filename) + member.compress_size // 2] ^= 0xFF
    server.wheel = bytes(damaged)
    with pytest.raises(UnknownAnswer):
        server.fetch()


def test_a_version_the_index_does_not_have_names_the_nearest(server: Server) -> None:
    with pytest.raises(UnknownAnswer, match=r"did you mean '0\.99\.0'"):
        server.fetch("0.99.1")


def test_a_login_stays_with_the_index(server: Server) -> None:
    url = server.url.replace("http://", "http://me:pass%40word@")
    there = Index(url)
    there.files("vllm")
    assert server.logins[-1] == "Basic bWU6cGFzc0B3b3Jk"
    assert "pass" not in there.url
    Index(server.url.replace("127.0.0.1", "me:secret@localhost"))._raw(server.url + "/vllm/", {}).close()
    assert server.logins[-1] is None


def test_no_index_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTNFIT_CACHE", str(tmp_path))
    with pytest.raises(UnknownAnswer, match="cannot be reached"):
        fetch.fetched(DISTRIBUTION, "0.99.0", indexes=[Index("http://127.0.0.1:9/simple")], say=lambda text: None)


def test_pip_s_settings_are_honoured(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = https://mirror.example/simple\nextra-index-url = file:///x https://two.example/s\n"
    )
    nowhere = {"HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path)}
    assert [i.url for i in configured({**nowhere, "PIP_CONFIG_FILE": str(file)})] == [
        "https://mirror.example/simple",
        "https://two.example/s",
    ]
    given = {**nowhere, "PIP_CONFIG_FILE": str(file), "PIP_INDEX_URL": "https://u:p@own.example/simple/"}
    assert configured(given)[0].url == "https://own.example/simple"


def test_a_wheel_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTNFIT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / WHEEL
    path.write_bytes(wheel_bytes())
    source = sources.find(DISTRIBUTION, str(path))
    usable(source)
    assert sources.find(DISTRIBUTION, str(path)) == source


@pytest.mark.parametrize("name", ["../evil.py", "/evil.py", "vllm/../../evil.py"])
def test_a_member_outside_the_wheel_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.setenv("ATTNFIT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / WHEEL
    path.write_bytes(wheel_bytes({name: b"x"}))
    with pytest.raises(InputError, match="outside itself"):
        sources.find(DISTRIBUTION, str(path))
    assert not list(tmp_path.rglob("evil.py"))


@pytest.mark.parametrize("content", [b"", b"<html>", b"PK\x03\x04" + b"\0" * 100, wheel_bytes()[:5000]])
def test_what_is_no_wheel_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes) -> None:
    monkeypatch.setenv("ATTNFIT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / WHEEL
    path.write_bytes(content)
    with pytest.raises(InputError, match="wheel"):
        sources.find(DISTRIBUTION, str(path))


def test_a_checkout_counts_what_its_setup_builds(tmp_path: Path) -> None:
    root = tiny_engine.write(tmp_path)
    (root / "setup.py").write_text('ext = [CMakeExtension(name="vllm.vllm_flash_attn._vllm_fa2_C")]\n')
    (root / "requirements").mkdir()
    (root / "requirements" / "cuda.txt").write_text("flashinfer-python==0.6.14  # pinned\n-r common.txt\n")
    source = sources.find(DISTRIBUTION, str(root))
    assert (source.env["fa2"], source.env["flashinfer"], source.env["wheel"]) == (True, True, False)
    assert "fa3" not in source.env


def test_an_installed_engine_is_read_without_importing_it(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.12" / "site-packages"
    tiny_engine.write(site)
    (site / "vllm" / "__init__.py").write_text("raise SystemExit('imported')")
    for name, text in {"vllm-0.99.0": METADATA, "tokenspeed_mla-1": "Name: tokenspeed-mla\n"}.items():
        (site / f"{name}.dist-info").mkdir()
        (site / f"{name}.dist-info" / "METADATA").write_text(text)
    (site / "vllm-0.99.0.dist-info" / "RECORD").write_text("vllm/_flashmla_C.abi3.so,sha256=x,1\n")
    source = sources.installed(DISTRIBUTION, tmp_path)
    assert (source.version, source.root) == ("0.99.0", str(site))
    assert (source.env["tokenspeed_mla"], source.env["flashinfer"], source.env["flashmla"]) == (True, False, True)


@pytest.mark.parametrize("spec", ["nowhere", "vllm=0.99", "sglang==1"])
def test_anything_else_is_one_clear_error(spec: str) -> None:
    with pytest.raises(InputError):
        sources.find(DISTRIBUTION, spec)


def test_no_engine_installed_says_what_to_give_instead(tmp_path: Path) -> None:
    with pytest.raises(UnknownAnswer, match="give a wheel"):
        sources.installed(DISTRIBUTION, tmp_path)


def sdist_bytes(members: dict[str, bytes], links: tuple[str, ...] = ()) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        for name in links:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(entry)
    return buffer.getvalue()


SDIST = {
    "other-2.0/PKG-INFO": b"Name: other\nVersion: 2.0\n\nRead me.\n",
    "other-2.0/python/other/part/code.py": b"x = 1\n",
    "other-2.0/python/other/__init__.py": b"",
    "other-2.0/python/other/kernel.cu": b"no source of ours",
    "other-2.0/docs/conf.py": b"",
    "other-2.0/python/other.egg-info/entry_points.txt": b"[x]\n",
}
OTHER = Distribution(name="other", package="other", holds="other/part", folders=("", "python"))


def kept_files(source: sources.Source) -> set[str]:
    return {p.relative_to(source.root).as_posix() for p in Path(source.root).rglob("*") if p.is_file()}


def test_an_sdist_is_kept_as_a_wheel_would_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTNFIT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "other-2.0.tar.gz"
    path.write_bytes(sdist_bytes(SDIST, links=("other-2.0/docs/link.py",)))
    source = sources.find(OTHER, str(path))
    assert (source.version, source.sha256) == ("2.0", hashlib.sha256(path.read_bytes()).hexdigest())
    assert kept_files(source) == {
        "other/part/code.py",
        "other/__init__.py",
        "other-2.0.dist-info/METADATA",
        "other-2.0.dist-info/entry_points.txt",
        "attnfit.json",
    }
    assert sources.find(OTHER, str(path)) == source


@pytest.mark.parametrize(
    ("members", "links", "says"),
    [
        ({**SDIST, "other-2.0/../../evil.py": b"x"}, (), "outside itself"),
        ({**SDIST, "/evil.py": b"x"}, (), "outside itself"),
        (SDIST, ("other-2.0/python/other/part/more.py",), "link"),
        ({"other-2.0/PKG-INFO": b"Version: 2.0\n"}, (), "holds no other/part"),
        ({"other-2.0/other/part/x.py": b""}, (), "PKG-INFO"),
    ],
)
def test_an_sdist_that_is_not_one_or_not_safe_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, members: dict[str, bytes], links: tuple[str, ...], says: str
) -> None:
    monkeypatch.setenv("ATTNFIT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "other-2.0.tar.gz"
    path.write_bytes(sdist_bytes(members, links))
    with pytest.raises(InputError, match=says):
        sources.find(OTHER, str(path))
    assert not list((tmp_path / "cache" / "sources").iterdir())
    assert not list(tmp_path.rglob("evil.py"))


@pytest.mark.parametrize("cut", [0, 30, 200])
def test_a_damaged_sdist_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cut: int) -> None:
    monkeypatch.setenv("ATTNFIT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "other-2.0.tar.gz"
    path.write_bytes(sdist_bytes(SDIST)[:cut])
    with pytest.raises(InputError, match="cannot be read as an sdist"):
        sources.find(OTHER, str(path))


def test_a_package_that_lies_deeper_in_its_repository_is_found(tmp_path: Path) -> None:
    (tmp_path / "python" / "other" / "part").mkdir(parents=True)
    (tmp_path / "python" / "other" / "version.py").write_text('__version__ = "2.1"\n')
    source = sources.find(OTHER, str(tmp_path))
    assert (source.version, source.root) == ("2.1", str(tmp_path / "python"))


def test_a_small_wheel_is_fetched_whole_and_its_hash_checked(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "WHOLE", len(server.wheel))
    source = server.fetch()
    usable(source)
    assert source.sha256 == server.sha256


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["other-2.0-py3-none-any.whl", "other-2.0.tar.gz"], "other-2.0-py3-none-any.whl"),
        (["other-2.0.tar.gz", "other-2.0.post1-py3-none-any.whl"], "other-2.0.tar.gz"),
        (
            ["other-2.0-cp312-cp312-manylinux_2_34_x86_64.whl", "other-2.0-cp311-cp311-manylinux_2_34_x86_64.whl"],
            "other-2.0-cp311-cp311-manylinux_2_34_x86_64.whl",
        ),
        (["other-2.0-cp312-cp312-macosx_14_0_arm64.whl"], "other-2.0-cp312-cp312-macosx_14_0_arm64.whl"),
        (
            ["other-2.0-cp39-abi3-manylinux_x86_64.whl", "other-2.0-py3-none-any.whl"],
            "other-2.0-cp39-abi3-manylinux_x86_64.whl",
        ),
        (["another-2.0.tar.gz", "other-2.0.zip"], None),
    ],
)
def test_the_file_of_a_release_is_chosen_in_the_same_way_every_time(names: list[str], chosen: str | None) -> None:
    for order in (names, names[::-1]):
        file = fetch.choose(OTHER, [IndexFile(name, "", None, False) for name in order], "2.0")
        assert (file.name if file else None) == chosen


def test_a_release_with_only_an_sdist_is_fetched_as_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTNFIT_CACHE", str(tmp_path))
    data = sdist_bytes(SDIST)

    class Listed(Index):
        def files(self, project: str) -> list[IndexFile]:
            return [IndexFile("other-2.0.tar.gz", "", hashlib.sha256(data).hexdigest(), False)]

        def download(self, file: IndexFile, target: Any, progress: Any) -> None:
            target.write(data)

    source = fetch.fetched(OTHER, "2.0", indexes=[Listed("http://127.0.0.1:9")], say=lambda text: None)
    assert (source.version, source.origin) == ("2.0", "other-2.0.tar.gz")
    assert fetch.fetched(OTHER, "2.0", offline=True) == source


def test_a_slow_download_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    now = 0.0
    monkeypatch.setattr(fetch.time, "monotonic", lambda: now)
    tell = fetch.progress(told.append)
    for second in range(1, 5):
        now = second * 0.6
        tell(second * 10_000_000, 40_000_000)
    assert told == ["  20 of 40 MB"]


def test_a_file_or_a_tree_says_whose_it_is(tmp_path: Path) -> None:
    tiny_engine.write(tmp_path)
    wheel = tmp_path / WHEEL
    wheel.write_bytes(b"")
    both = (OTHER, DISTRIBUTION)
    given = [str(tmp_path), str(wheel), "vllm==0.99.0", "other==1", "third==1"]
    assert [sources.which(both, spec) for spec in given] == [DISTRIBUTION, DISTRIBUTION, DISTRIBUTION, OTHER, None]
