"""Whether the engine serves: its health endpoint answers, and one tiny real request, sent to it and no other."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import psutil

from attnfit.engines.serving import Address, Serving, local

HEALTH_S = 10.0  # for an answer of the health endpoint
EVERY_S = 0.5
_REFUSED = (400, 404, 405, 422, 501)  # the server does not serve this kind of request


class Said(NamedTuple):
    """What the prober found. `request`: the tiny request that was answered; "" and `note`: why there was none."""

    what: str  # "healthy" | "ready" | "answers"
    request: str = ""
    note: str = ""


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(address: Address, path: str, body: Any = None, *, timeout: float = HEALTH_S) -> tuple[int, bytes]:
    """Status and answer. No proxy is asked: the server is on this machine. Raises OSError, HTTPException."""
    try:
        return _asked(address, path, body, timeout)
    except (ValueError, OverflowError) as error:  # a host that is no name, a port that is none, a key with a newline
        raise OSError(f"nobody can be asked there: {error}") from None


def _asked(address: Address, path: str, body: Any, timeout: float) -> tuple[int, bytes]:
    connection: http.client.HTTPConnection
    if address.socket:
        connection = _Unix(address.socket, timeout)
    elif address.tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # its certificate is for another name
        connection = http.client.HTTPSConnection(address.host, address.port, timeout=timeout, context=context)
    else:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout)
    headers = {"Authorization": f"Bearer {address.key}"} if address.key else {}
    with contextlib.closing(connection):
        if body is None:
            connection.request("GET", path, headers=headers)
        else:
            text = json.dumps(body).encode()
            connection.request("POST", path, text, {**headers, "Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read(1 << 20)


def taken(address: Address) -> str:
    """Who listens there already, before anything is started; "" for nobody."""
    try:
        if address.socket:
            with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as there:
                there.settimeout(1)
                there.connect(address.socket)
        else:
            socket.create_connection((address.host, address.port), 1).close()
    except (OSError, ValueError, OverflowError):  # no name and no port of any machine: nobody is there
        return ""
    with contextlib.suppress(psutil.Error, OSError):
        for each in psutil.net_connections("tcp") if not address.socket else ():
            if each.pid and _listens(each, address):
                return f"process {each.pid} ({psutil.Process(each.pid).name()})"
    return "another process"


def _listens(connection: Any, address: Address) -> bool:
    return bool(connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == address.port)


def ours(address: Address, members: Sequence[psutil.Process]) -> bool | None:
    """Whether one of these processes listens there; None: they may not be looked into."""
    unseen = False
    for each in members:
        try:
            if any(_listens(connection, address) for connection in each.net_connections("tcp")):
                return True
        except psutil.AccessDenied:
            unseen = True
        except psutil.Error:
            continue
    return None if unseen else False


def listening(members: Sequence[psutil.Process]) -> set[tuple[str, int]]:
    """(host, port) of everything on which these processes listen."""
    found: set[tuple[str, int]] = set()
    for each in members:
        with contextlib.suppress(psutil.Error):
            for connection in each.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr:
                    found.add((connection.laddr.ip, connection.laddr.port))
    return found


def _answers(address: Address, serving: Serving, *, timeout: float = HEALTH_S) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return ask(address, serving.health, timeout=timeout)[0] == 200
    return False


class Prober:
    """Asks again and again, in a thread of its own: an answer may take as long as a kernel takes to compile."""

    def __init__(
        self,
        serving: Serving,
        address: Address,
        members: Callable[[], Sequence[psutil.Process]] | None,
        *,
        patience: float,
        every: float = EVERY_S,
    ) -> None:
        """members: the engine's processes, to tell it from a stranger; None: they are not on this machine's list."""
        self._serving, self.address, self._members = serving, address, members
        self.looks_elsewhere = False  # it says that it serves: a file may name another port than its command
        self._patience, self._every = patience, every
        self.woken, self._wake = os.pipe()
        os.set_blocking(self.woken, False)
        self._said: list[Said] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def heard(self) -> list[Said]:
        """What is new; call it when `woken` can be read."""
        with contextlib.suppress(OSError):
            os.read(self.woken, 1 << 10)
        said, self._said = self._said, []
        return said

    def close(self) -> None:
        self._over.set()
        self._thread.join(2 * self._every)
        os.close(self.woken)
        if not self._thread.is_alive():
            os.close(self._wake)

    def _say(self, said: Said) -> None:
        self._said.append(said)
        with contextlib.suppress(OSError):
            os.write(self._wake, b".")

    def _run(self) -> None:
        while not self._over.wait(self._every):
            if self._healthy() and self._is_ours():
                self._say(Said("healthy"))
                break
        while not self._over.is_set():
            found = self._request()
            if found is not None:
                self._say(found)
                break
            self._over.wait(self._every)
        while not self._over.wait(10 * self._every):
            if self._healthy():
                self._say(Said("answers"))

    def _healthy(self) -> bool:
        if _answers(self.address, self._serving):
            return True
        if self.looks_elsewhere and self._members is not None:
            for host, port in sorted(listening(self._members())):
                there = self.address._replace(host=local(host), port=port, socket="")
                if port != self.address.port and _answers(there, self._serving, timeout=2):
                    self.address = there
                    return True
        return False

    def _is_ours(self) -> bool:
        if self._members is None or self.address.socket:
            return True
        return ours(self.address, self._members()) is not False

    def _request(self) -> Said | None:
        """None: not yet. A request that the server knows and answers with an error is asked again."""
        try:
            status, text = ask(self.address, self._serving.models)
            if status in (401, 403):
                return Said("ready", note="the server wants a key that is not in the command; no request was tried")
            name = json.loads(text)["data"][0]["id"] if status == 200 else ""
            for each in self._serving.asks:
                status, _ = ask(self.address, each.path, each.body(name), timeout=self._patience)
                if status == 200:
                    return Said("ready", each.name)
                if status not in _REFUSED:
                    return None
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, RecursionError):
            return None
        names = ", ".join(each.name for each in self._serving.asks)
        return Said("ready", note=f"the server takes none of the requests that are tried ({names})")
