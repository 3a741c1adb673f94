"""A hub of our own on this machine: the endpoints that huggingface_hub asks, with everything that can go wrong.

`resolve` redirects large files to another address, as the hub does to its storage, which serves ranges.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "fedcba9876543210fedcba9876543210fedcba98"
LARGE = (".safetensors", ".gguf", ".bin")


class Request:
    def __init__(self, method: str, path: str, headers: dict[str, str]) -> None:
        self.method, self.path, self.headers = method, path, headers

    def __repr__(self) -> str:
        return f"{self.method} {self.path}"


class Hub:
    """`repos[name][commit][file] = bytes`; `faults` answer instead, while they return something."""

    def __init__(self) -> None:
        self.reset()
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(self)) for _ in range(2)]
        self.url, self.storage = [f"http://127.0.0.1:{s.server_port}" for s in self._servers]
        for server in self._servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def reset(self) -> None:
        self.repos: dict[str, dict[str, dict[str, bytes]]] = {}
        self.refs: dict[str, dict[str, str]] = {}
        self.requests: list[Request] = []
        self.sent: dict[str, int] = {}  # file -> bytes of its body that were served
        self.faults: list[Callable[[Request], tuple[int, dict[str, str]] | str | None]] = []
        self.ranges = True

    def gone(self) -> None:
        """From now on nobody answers."""
        self.fail("", "drop")

    def add(self, repo: str, files: dict[str, Any], commit: str = COMMIT, ref: str = "main") -> None:
        bodies = {n: b if isinstance(b, bytes) else json.dumps(b).encode() for n, b in files.items()}
        self.repos.setdefault(repo, {})[commit] = bodies
        self.refs.setdefault(repo, {})[ref] = commit

    def fail(self, pattern: str, answer: tuple[int, dict[str, str]] | str, times: int = 10**9) -> None:
        """Requests whose "METHOD /path" matches get `answer` so many times: status and headers, or a word.

        "drop" and "cut" break off, "drip" sends a byte now and then for ever, "vast" a body without end.
        """
        left = [times]

        def fault(request: Request) -> tuple[int, dict[str, str]] | str | None:
            if left[0] > 0 and re.search(pattern, f"{request.method} {request.path}"):
                left[0] -= 1
                return answer
            return None

        self.faults.append(fault)

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # headers and body in one packet: else each answer waits for an acknowledgement

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            request = Request(self.command, path, {k.lower(): v for k, v in self.headers.items()})
            hub.requests.append(request)
            cut = False
            for fault in hub.faults:
                found = fault(request)
                if found == "drop":
                    self.close_connection = True
                    return
                if found in ("drip", "vast"):
                    return self.endless(0.05 if found == "drip" else 0.0)
                if found == "cut":
                    cut = True
                elif isinstance(found, tuple):
                    return self.send(found[0], found[1], b"{}")
            if match := re.fullmatch(r"/api/models/([^/]+(?:/[^/]+)?)(?:/revision/(.+))?", path):
                return self.listing(match[1], match[2] or "main")
            if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path):
                return self.tree(match[1], match[2])
            if match := re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path):
                return self.resolve(match[1], match[2], match[3], cut)
            if match := re.fullmatch(r"/storage/(.+?)@([0-9a-f]+)/(.+)", path):
                return self.body(hub.repos[match[1]][match[2]][match[3]], match[3], {}, cut)
            self.send(404, {}, b"")

        def endless(self, pause: float) -> None:
            self.close_connection = True
            self.send_response(200)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", '"endless"')
            self.end_headers()
            never = threading.Event()
            try:
                while self.command != "HEAD":
                    data = b" " if pause else bytes(1 << 20)
                    hub.sent["endless"] = hub.sent.get("endless", 0) + len(data)
                    self.wfile.write(data)
                    self.wfile.flush()
                    never.wait(pause)
            except OSError:
                self.wfile = io.BytesIO()  # closing it would raise once more

        def commit(self, repo: str, revision: str) -> str | None:
            """The commit, or None after an error was answered."""
            if repo not in hub.repos:
                token = self.headers.get("authorization")
                self.send(404 if token else 401, {"X-Error-Code": "RepoNotFound"} if token else {}, b"{}")
                return None
            commit = hub.refs[repo].get(revision, revision)
            if commit not in hub.repos[repo]:
                self.send(404, {"X-Error-Code": "RevisionNotFound"}, b"{}")
                return None
            return commit

        def listing(self, repo: str, revision: str) -> None:
            commit = self.commit(repo, revision)
            if commit is not None:
                files = [{"rfilename": n, "size": len(b)} for n, b in hub.repos[repo][commit].items()]
                self.send(200, {}, json.dumps({"id": repo, "sha": commit, "siblings": files}).encode())

        def tree(self, repo: str, revision: str) -> None:
            commit = self.commit(repo, revision)
            if commit is not None:
                files = hub.repos[repo][commit].items()
                listed = [{"type": "file", "path": n, "size": len(b), "oid": "0" * 40} for n, b in files]
                self.send(200, {}, json.dumps(listed).encode())

        def resolve(self, repo: str, revision: str, name: str, cut: bool) -> None:
            commit = self.commit(repo, revision)
            if commit is None:
                return
            body = hub.repos[repo][commit].get(name)
            if body is None:
                return self.send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b"")
            etag = hashlib.sha256(body).hexdigest()
            if not name.endswith(LARGE):
                return self.body(body, name, {"X-Repo-Commit": commit, "ETag": f'"{etag}"'}, cut)
            linked = {"X-Linked-Size": str(len(body)), "X-Linked-ETag": f'"{etag}"', "X-Repo-Commit": commit}
            self.send(302, {**linked, "Location": f"{hub.storage}/storage/{repo}@{commit}/{name}"}, b"")

        def body(self, data: bytes, name: str, headers: dict[str, str], cut: bool) -> None:
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)?", self.headers.get("range", "")) if hub.ranges else None
            if asked is None:
                return self.send(200, headers, data, name, cut)
            start, end = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
            if start >= len(data):
                return self.send(416, {"Content-Range": f"bytes */{len(data)}"}, b"")
            part = {"Content-Range": f"bytes {start}-{end}/{len(data)}"}
            self.send(206, {**headers, **part}, data[start : end + 1], name, cut)

        def send(self, status: int, headers: dict[str, str], data: bytes, name: str = "", cut: bool = False) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if cut:
                data, self.close_connection = data[: len(data) // 2], True
            hub.sent[name] = hub.sent.get(name, 0) + len(data)  # before the client can have it, and go on to count
            try:
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

    return Handler
