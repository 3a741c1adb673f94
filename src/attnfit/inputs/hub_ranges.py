"""Parts of one file over HTTP, through huggingface_hub's own session (its proxies, its certificates, its token)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from attnfit.errors import UnknownAnswer
from attnfit.inputs.hub_errors import Unreachable, sentence
from attnfit.inputs.hub_ref import HubRef, HubSettings
from attnfit.inputs.waiting import TooSlow, within

Fetch = Callable[[int, int], bytes]
TIMEOUT = 20.0  # seconds without a byte
LONGEST = 60.0  # seconds for one answer, however its bytes come
WAITS = (0.2, 1.0)  # seconds before another try, where the connection broke or the hub is in trouble
_CHUNK = 64 << 10


def ranges(ref: HubRef, settings: HubSettings, commit: str, name: str) -> Fetch:
    """A function that reads `length` bytes at `offset` of the file `name`. It raises UnknownAnswer."""
    import huggingface_hub as hub
    from huggingface_hub.utils import build_hf_headers

    from attnfit import __version__

    url = hub.hf_hub_url(ref.repo, name, revision=commit, endpoint=settings.endpoint)

    @cache
    def headers() -> dict[str, str]:
        with without_telemetry():
            own = build_hf_headers(token=settings.token, library_name="attnfit", library_version=__version__)
        return {**own, "Accept-Encoding": "identity"}

    return _fetch(url, headers, ref, settings, name)


@contextmanager
def without_telemetry() -> Iterator[None]:
    """Else the library asks the hub for a list of agents before the first request, and reads all that it is sent."""
    from huggingface_hub import constants

    before = constants.HF_HUB_DISABLE_TELEMETRY
    constants.HF_HUB_DISABLE_TELEMETRY = True
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_TELEMETRY = before


def address(url: str) -> Fetch:
    """The same for a file at any web address; no token is sent."""
    from urllib.parse import urlsplit

    host = urlsplit(url).netloc.rpartition("@")[2]
    settings = HubSettings(endpoint=host)
    return _fetch(url, lambda: {"Accept-Encoding": "identity"}, HubRef(repo=host), settings, url.rsplit("/", 1)[-1])


def _fetch(url: str, headers: Callable[[], dict[str, str]], ref: HubRef, settings: HubSettings, name: str) -> Fetch:
    def fetch(offset: int, length: int) -> bytes:
        for wait in (*WAITS, None):
            try:
                return within(LONGEST, lambda: _once(url, headers(), offset, length, settings))
            except UnknownAnswer:
                raise
            except Exception as error:
                said = sentence(error, ref, settings, name)
                if said is None:
                    raise
                status = getattr(getattr(error, "response", None), "status_code", 0)
                if wait is None or isinstance(error, TooSlow) or not isinstance(said, Unreachable) or status == 429:
                    raise said from None
                time.sleep(wait)
        raise AssertionError("the last try returns or raises")

    return fetch


def _once(url: str, headers: dict[str, str], offset: int, length: int, settings: HubSettings) -> bytes:
    from huggingface_hub.utils import hf_raise_for_status

    asked = {**headers, "Range": f"bytes={offset}-{offset + length - 1}"}
    with _opened(url, asked) as (response, chunks):
        if response.status_code == 416:  # the file ends before `offset`
            return b""
        if response.status_code >= 400:
            for _ in chunks:  # the library wants the hub's words for its error
                break
        hf_raise_for_status(response)
        if response.status_code == 200 and offset:
            raise UnknownAnswer(
                f"{settings.host} does not serve parts of files, so only whole weights could be read there; give a "
                "local copy, or another HF_ENDPOINT"
            )
        promised = _promised(response)
        parts, have = [], 0
        for chunk in chunks:
            parts.append(chunk)
            have += len(chunk)
            if have >= length:  # a server that ignores the range sends the whole file: hang up
                break
    if promised is not None and have < min(length, promised):
        raise ConnectionError("the connection broke off")
    return b"".join(parts)[:length]


def document(url: str, headers: dict[str, str], most: int, timeout: float) -> bytes | None:
    """The whole of a small answer; None where it is larger than `most` bytes, of which no more are read.

    Raises what huggingface_hub raises for an answer that is an error.
    """
    from huggingface_hub.utils import hf_raise_for_status

    with _opened(url, {**headers, "Accept-Encoding": "identity"}, timeout) as (response, chunks):
        if response.status_code >= 400:
            for _ in chunks:
                break
        hf_raise_for_status(response)
        if (_promised(response) or 0) > most:
            return None
        parts, have = [], 0
        for chunk in chunks:
            parts.append(chunk)
            have += len(chunk)
            if have > most:
                return None
    return b"".join(parts)


def _promised(response: Any) -> int | None:
    """How many bytes the answer says it has."""
    part = re.fullmatch(r"bytes (\d+)-(\d+)/(?:\d+|\*)", response.headers.get("Content-Range") or "")
    if part:
        return int(part[2]) - int(part[1]) + 1
    total = response.headers.get("Content-Length") or ""
    return int(total) if total.isdecimal() and len(total) < 20 else None


@contextmanager
def _opened(url: str, headers: dict[str, str], timeout: float = TIMEOUT) -> Iterator[tuple[Any, Iterator[bytes]]]:
    """The answer with its body unread: huggingface_hub brings httpx from 1.0 on, requests before."""
    from huggingface_hub.utils import get_session

    session: Any = get_session()
    if callable(getattr(session, "stream", None)):  # a switch in requests
        with session.stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as response:
            if response.status_code >= 400:
                response.read()
                yield response, iter(())
            else:
                yield response, response.iter_bytes(_CHUNK)
    else:
        with session.get(url, headers=headers, timeout=timeout, stream=True) as response:
            yield response, response.iter_content(_CHUNK)
