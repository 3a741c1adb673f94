"""What a hub id names, and how the launch would reach the hub. Light: nothing here imports huggingface_hub.

Forms: `org/name`, `name`, `org/name@revision`, `org/name:file.gguf`, `org/name:Q4_K_M`, `org/name/file.gguf`, and the
hub's own addresses (`hf://org/name`, `https://huggingface.co/org/name/tree/main`, `.../resolve/main/file.gguf`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from attnfit.inputs.command import Command

_NAME = r"[A-Za-z0-9_][\w.-]{0,95}"
_ID = re.compile(
    rf"(?P<repo>{_NAME}(?:/{_NAME})?)"
    r"(?:@(?P<revision>[^@:\s][^@:\s]{0,199}))?"
    r"(?:(?P<mark>[:/])(?P<file>[^@:/\s][^@:\s]{0,400}))?",
    re.ASCII,
)
HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co", "hub-ci.huggingface.co")
DEFAULT_HOST = "https://huggingface.co"
_TRUE = frozenset(("1", "ON", "YES", "TRUE"))  # as huggingface_hub reads its switches


class HubRef(msgspec.Struct, frozen=True, kw_only=True):
    """A repository on the hub, and what of it is meant."""

    repo: str  # "zai-org/GLM-5"
    revision: str | None = None  # branch, tag or commit; None: main
    file: str | None = None  # a GGUF file in it
    quant: str | None = None  # instead of a file: "Q4_K_M", as engines name a GGUF file of a repository

    def __str__(self) -> str:
        at = f"@{self.revision}" if self.revision else ""
        of = self.file or self.quant
        return f"{self.repo}{at}" + (f":{of}" if of else "")


class HubSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the launch reaches the hub. None: as huggingface_hub decides by itself (its variables, its files)."""

    revision: str | None = None
    code_revision: str | None = None  # of the model's own code
    token: str | None = None  # never printed
    endpoint: str | None = None
    cache: str | None = None
    download_dir: str | None = None  # where the engine keeps weights
    offline: bool = False
    modelscope: str = ""  # the variable that makes the id one of ModelScope, not of the hub

    def __repr__(self) -> str:  # msgspec's own would show the token
        return f"HubSettings(revision={self.revision!r}, endpoint={self.endpoint!r}, offline={self.offline})"

    @property
    def host(self) -> str:
        """The hub's address, for people."""
        return (self.endpoint or DEFAULT_HOST).rstrip("/").removeprefix("https://")


def parse_ref(text: str, endpoint: str | None = None) -> HubRef | None:
    """What `text` names on the hub, or None where it cannot be a hub id.

    endpoint: a mirror, whose web addresses count as the hub's own.
    """
    if text.startswith("hf://"):
        text = text[5:].removeprefix("models/")
    elif re.match(r"https?://", text, re.IGNORECASE):
        return _address(text, endpoint)
    match = _ID.fullmatch(text)
    if match is None or text.endswith((".json", ".safetensors", ".bin")):
        return None
    repo, file = match["repo"], match["file"]
    if ".." in repo or "--" in repo or repo.endswith((".git", ".")) or repo.startswith("."):
        return None
    gguf = file is not None and file.lower().endswith(".gguf")
    if match["mark"] == "/" and not gguf:
        return None
    if file is None and repo.lower().endswith(".gguf"):
        return None  # a file that is not here
    return HubRef(
        repo=repo,
        revision=match["revision"],
        file=file if gguf else None,
        quant=file if file and not gguf else None,
    )


def _address(text: str, endpoint: str | None) -> HubRef | None:
    """https://huggingface.co/ORG/NAME[/tree|blob|resolve/REVISION[/FILE]]"""
    from urllib.parse import unquote, urlsplit

    try:
        parts = urlsplit(text)
        own = urlsplit(endpoint or DEFAULT_HOST)
        here = parts.netloc.lower()
        if here not in HOSTS and here != own.netloc.lower():
            return None
    except ValueError:
        return None
    path = [unquote(p) for p in parts.path.split("/") if p]
    if not path or path[0] in ("datasets", "spaces", "models", "api", "docs", "blog"):
        return None
    for mark in ("tree", "blob", "resolve", "raw"):
        if mark in path[1:3]:
            at = path.index(mark, 1)
            repo, rest = "/".join(path[:at]), path[at + 1 :]
            file = "/".join(rest[1:])
            return HubRef(
                repo=repo,
                revision=rest[0] if rest and rest[0] != "main" else None,
                file=file if file.lower().endswith(".gguf") else None,
            )
    repo = "/".join(path[:2])
    return HubRef(repo=repo) if _ID.fullmatch(repo) else None


def hub_settings(command: Command | None, argv: Sequence[str] = (), engine: str | None = None) -> HubSettings:
    """How the launch `command` reaches the hub: its flags, the variables it sets, else this process's environment.

    argv: bare flags of the server of `engine`, where there is no command.
    """
    from attnfit.engines.entry import entry_of

    entry = entry_of(command.engine if command is not None else engine)
    if command is None:
        values = entry.flag_values(argv, "auto") if argv else {}
        return settings_of(values, modelscope=entry.modelscope)
    values = entry.flag_values(command.argv, command.form)
    return settings_of(values, command.env, here=command.files_here, modelscope=entry.modelscope)


def settings_of(
    values: Mapping[str, object],
    variables: Mapping[str, str] | None = None,
    *,
    here: bool = True,
    modelscope: str = "",
) -> HubSettings:
    """The settings of a launch whose flags have `values` (dest -> text) and which sets `variables` for its server.

    here: False where the server runs in a container or elsewhere: its paths and its offline switch are not ours.
    modelscope: the variable by which the engine takes models from ModelScope.
    What the launch does not say comes from this process's own environment.
    """
    own, given = os.environ, dict(variables or {})

    def variable(*names: str, place: bool = False) -> str | None:
        for name in names:
            value = given.get(name) if here or not place else None
            value = _filled(value) if value is not None else own.get(name)
            if value:
                return value
        return None

    cache = variable("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", place=True)
    home = variable("HF_HOME", place=True)
    offline = variable("HF_HUB_OFFLINE", place=True) or variable("TRANSFORMERS_OFFLINE", place=True)
    folder = _text(values, "download_dir") if here else None
    token = _text(values, "hf_token") or _filled(given.get("HF_TOKEN") or given.get("HUGGING_FACE_HUB_TOKEN"))
    return HubSettings(
        revision=_text(values, "revision"),
        code_revision=_text(values, "code_revision"),
        token=token,
        endpoint=variable("HF_ENDPOINT"),
        cache=_place(cache) if cache else os.path.join(_place(home), "hub") if home else None,
        download_dir=folder,
        offline=(offline or "").upper() in _TRUE,
        modelscope=modelscope if modelscope and (variable(modelscope) or "").strip().upper() in _TRUE else "",
    )


def _text(values: Mapping[str, object], key: str) -> str | None:
    """A flag's text; None where it was not given, or given bare (`--hf-token` alone: the stored token)."""
    value = values.get(key)
    return _filled(value) if isinstance(value, str) else None


def _filled(value: str | None) -> str | None:
    """With variables of this process filled in; None where one is not set here (`HF_TOKEN=$HF_TOKEN`)."""
    if value is None or "$" not in value:
        return value or None
    filled = os.path.expandvars(value)
    return None if "$" in filled else filled or None


def _place(path: str) -> str:
    return os.path.expanduser(os.path.expandvars(path))
