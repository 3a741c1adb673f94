"""The user's own package index: listing a project's files and reading parts of a wheel by HTTP ranges.

Speaks the simple API in JSON (PEP 691) and HTML (PEP 503), as pip is configured: PIP_INDEX_URL, PIP_CERT, pip's
configuration files, proxies from the environment. Credentials never leave the index's own host.
"""

from __future__ import annotations

import base64
import configparser
import hashlib
import html.parser
import io
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import IO, Any, NamedTuple

from attnfit.errors import UnknownAnswer

PYPI = "https://pypi.org/simple"
ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
BLOCK = 1 << 20
TRIES = 4
TIMEOUT = 60.0
MOST_LISTING = 64 << 20


class IndexFile(NamedTuple):
    """One file of a project, as the index lists it."""

    name: str
    url: str
    sha256: str | None
    yanked: bool


class Index:
    """One simple index."""

    def __init__(self, url: str, certificates: str | None = None) -> None:
        parts = urllib.parse.urlsplit(url.rstrip("/"))
        self._login = None
        if parts.username is not None:
            pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._login = "Basic " + base64.b64encode(pair.encode()).decode()
        host = parts.hostname or ""
        self._host = f"{host}:{parts.port}" if parts.port else host
        self.url = urllib.parse.urlunsplit(parts._replace(netloc=self._host))
        context = ssl.create_default_context(cafile=certificates) if certificates else ssl.create_default_context()
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _Redirects(self._host))

    def files(self, project: str) -> list[IndexFile]:
        """Every file of a project. Raises UnknownAnswer if the index cannot be reached or does not have it."""
        url = f"{self.url}/{project}/"
        response = self._open(url, {"Accept": ACCEPT})
        body = response.read(MOST_LISTING + 1)
        if len(body) > MOST_LISTING:
            raise UnknownAnswer(f"{self.url} lists {project} without end; name another index (PIP_INDEX_URL)")
        base = response.geturl()
        try:
            if "json" in response.headers.get("Content-Type", ""):
                return [_from_json(base, entry) for entry in json.loads(body)["files"]]
            page = _Anchors(base)
            page.feed(body.decode("utf-8", "replace"))
        except (ValueError, KeyError, TypeError) as error:
            raise UnknownAnswer(f"{url} is not a package index listing ({error}); set PIP_INDEX_URL to one") from error
        return page.files

    def ranged(self, file: IndexFile) -> RangedFile | None:
        """The remote file as a seekable stream, or None if its server does not serve ranges."""
        response = self._open(file.url, {"Range": "bytes=0-0"})
        with response:
            total = response.headers.get("Content-Range", "").rpartition("/")[2]
            if response.status != 206 or not total.isdecimal():
                return None
        return RangedFile(lambda start, end: self._part(file.url, start, end), int(total))

    def download(self, file: IndexFile, target: IO[bytes], progress: Callable[[int, int], None]) -> None:
        """The whole file into `target`; its listed sha256 is checked. Interrupted downloads are taken up again."""
        digest = hashlib.sha256()
        done = total = 0
        for attempt in range(TRIES):
            try:
                headers = {"Range": f"bytes={done}-"} if done else {}
                with self._raw(file.url, headers) as response:
                    if done and response.status != 206:
                        target.seek(0)
                        target.truncate()
                        digest, done = hashlib.sha256(), 0
                    total = done + int(response.headers.get("Content-Length", "0"))
                    while block := response.read(BLOCK):
                        target.write(block)
                        digest.update(block)
                        done += len(block)
                        progress(done, total)
                if done >= total:
                    break
            except (OSError, HTTPException) as error:
                _give_up(error, file.url, last=attempt == TRIES - 1)
            time.sleep(0.5 * attempt)
        if total and done < total:
            raise UnknownAnswer(f"{file.name}: only {done} of {total} bytes arrived; try again later")
        if file.sha256 and digest.hexdigest() != file.sha256:
            raise UnknownAnswer(
                f"{file.name} does not have the sha256 that {self.url} lists ({file.sha256[:12]}...); it was not used. "
                "Ask whoever runs the index"
            )

    def _part(self, url: str, start: int, end: int) -> bytes:
        for attempt in range(TRIES):
            try:
                with self._raw(url, {"Range": f"bytes={start}-{end - 1}"}) as response:
                    data: bytes = response.read(end - start)
                if response.status == 206 and len(data) == end - start:
                    return data
            except (OSError, HTTPException) as error:
                _give_up(error, url, last=attempt == TRIES - 1)
            time.sleep(0.5 * attempt)
        raise UnknownAnswer(f"{url}: the connection kept breaking off; try again later")

    def _open(self, url: str, headers: Mapping[str, str]) -> HTTPResponse:
        try:
            return self._raw(url, headers)
        except (OSError, HTTPException) as error:
            _give_up(error, url, last=True)
            raise

    def _raw(self, url: str, headers: Mapping[str, str]) -> HTTPResponse:
        request = urllib.request.Request(url, headers={"User-Agent": "attnfit", **headers})
        if self._login and urllib.parse.urlsplit(url).netloc.rpartition("@")[2] == self._host:
            request.add_unredirected_header("Authorization", self._login)
        response: HTTPResponse = self._opener.open(request, timeout=TIMEOUT)
        return response


def _give_up(error: Exception, url: str, last: bool) -> None:
    """Raise UnknownAnswer unless trying again may help."""
    if isinstance(error, urllib.error.HTTPError):
        if last or error.code < 500:
            answer = f"{error.code} {error.reason}"
            raise UnknownAnswer(f"{url} answers {answer}; is that your index (PIP_INDEX_URL)?") from None
    elif last:
        reason = getattr(error, "reason", error)
        raise UnknownAnswer(f"{url} cannot be reached ({reason}); offline, give a wheel or a source tree") from None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects; a login is an unredirected header, so it stays with the first host."""

    def __init__(self, host: str) -> None:
        self._host = host

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urllib.parse.urlsplit(req.full_url).scheme == "https" and not newurl.startswith("https:"):
            raise urllib.error.URLError("redirected from https to something else")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class RangedFile(io.RawIOBase):
    """A remote file read in blocks, so that `zipfile` can work on it."""

    def __init__(self, part: Callable[[int, int], bytes], size: int) -> None:
        self._part, self.size = part, size
        self._position = 0
        self._kept: tuple[int, bytes] = (0, b"")
        self.fetched = 0

    def keep(self, start: int, end: int) -> None:
        """Fetch a span in one request and serve the next reads from it."""
        end = min(end, self.size)
        self._kept = (start, self._part(start, end))
        self.fetched += end - start

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self.size)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        start, data = self._kept
        wanted = min(len(buffer), self.size - self._position)
        if wanted <= 0:
            return 0
        if not start <= self._position < start + len(data):
            self.keep(self._position, self._position + max(wanted, BLOCK))
            start, data = self._kept
        begin = self._position - start
        piece = data[begin : begin + wanted]
        buffer[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)


class _Anchors(html.parser.HTMLParser):
    """PEP 503: one <a> per file."""

    def __init__(self, base: str) -> None:
        super().__init__()
        self._base = base
        self.files: list[IndexFile] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            url, fragment = urllib.parse.urldefrag(urllib.parse.urljoin(self._base, given["href"] or ""))
            name = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
            sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
            self.files.append(IndexFile(name, url, sha256, "data-yanked" in given))


def _from_json(base: str, entry: Mapping[str, Any]) -> IndexFile:
    url = urllib.parse.urljoin(base, entry["url"])
    return IndexFile(str(entry["filename"]), url, entry.get("hashes", {}).get("sha256"), bool(entry.get("yanked")))


def configured(environ: Mapping[str, str] = os.environ) -> list[Index]:
    """The indexes pip would use here, the main one first. `file:` indexes are left out."""
    settings = _pip_settings(environ)
    named = (environ.get(name) for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"))
    main = next(filter(None, named), settings.get("index-url"))
    extra = environ.get("PIP_EXTRA_INDEX_URL") or settings.get("extra-index-url") or ""
    certificates = environ.get("PIP_CERT") or settings.get("cert") or environ.get("SSL_CERT_FILE")
    urls = [main or PYPI, *extra.split()]
    return [Index(url, certificates) for url in urls if url.startswith(("http://", "https://"))]


def _pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """[global] and [install] of pip's configuration files, later files overriding earlier ones."""
    home = Path(environ.get("HOME", "~")).expanduser()
    shared = [Path(p) / "pip/pip.conf" for p in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":") if p]
    files = [
        *shared,
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf",
        Path(sys.prefix) / "pip.conf",
    ]
    if environ.get("PIP_CONFIG_FILE"):
        files.append(Path(environ["PIP_CONFIG_FILE"]))
    settings: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, "utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                settings.update(parser.items(section))
    return settings
