"""What each engine says of its server: where it listens, how it is asked, and the stages of its start.

One table per engine, in `engines/ENGINE/serving.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple


class Address(NamedTuple):
    """Where a launch will listen."""

    host: str = "127.0.0.1"  # as a client on this machine names it
    port: int = 0
    tls: bool = False
    socket: str = ""  # path of a Unix socket, instead of host and port
    key: str = ""  # what a request must bear; "": none, or none that the command tells
    nothing: str = ""  # why there is nothing to ask: "its second node has no HTTP server"

    @property
    def url(self) -> str:
        if self.socket:
            return f"unix:{self.socket}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}"


class Ask(NamedTuple):
    """One tiny request: what shows that the model answers, not only the server."""

    name: str
    path: str
    body: Callable[[str], Mapping[str, Any]]  # by the name under which the model is served


# the smallest requests of the interface that the engines share
OPENAI = (
    Ask("completion", "/v1/completions", lambda model: {"model": model, "prompt": "Hello", "max_tokens": 1}),
    Ask(
        "chat completion",
        "/v1/chat/completions",
        lambda model: {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1},
    ),
    Ask("embedding", "/v1/embeddings", lambda model: {"model": model, "input": "Hello"}),
)


class Stage(NamedTuple):
    name: str
    words: tuple[str, ...]  # one of which stands in a line that opens it, or goes on with it
    patience: float  # seconds without a sign of progress in which it may be


class Serving(NamedTuple):
    engine: str
    address: Callable[[Sequence[str], str, Mapping[str, str]], Address]  # (argv, form, environment)
    health: str
    models: str
    asks: tuple[Ask, ...]  # the first that the server knows is the one
    stages: tuple[Stage, ...]  # in the order of a start; the first is what a process that says nothing is in
    waiting: tuple[str, ...]  # said again and again while nothing goes on


def serving_of(engine: str) -> Serving:
    found: Serving = import_module(f"attnfit.engines.{engine}.serving").SERVING
    return found


def local(host: str | None) -> str:
    """How a client on this machine names the address that a server is bound to."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1", "*": "127.0.0.1"}.get(host or "", host or "")
