"""One service of a compose file, read as the `docker run` it stands for. Nothing is asked of docker.

PyYAML is a dependency already, for the engines' own `--config` files, and its marks say where each word stands. Nodes
are read, not Python values: compose takes `yes` and `010` for text.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from attnfit.errors import InputError, UsageError, did_you_mean
from attnfit.inputs.units import plain as plain_file
from attnfit.inputs.units.environ import parse_file

if TYPE_CHECKING:
    from yaml import Node

MAX_BYTES = 1 << 20
MAX_NODES = 100_000  # with what aliases stand for written out: nine lines of them can stand for a billion
_ELSEWHERE = "docker compose config prints the whole of it; give that"
_VARIABLE = re.compile(
    r"\$(?:\$|(?P<plain>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)(?:(?P<how>:?[-?+])(?P<other>[^{}]*))?\})"
)


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """`words` are `docker run ... IMAGE ARGUMENTS`; the last `own` of them are the service's `command`."""

    file: Path
    text: str
    name: str
    words: tuple[str, ...]
    image_at: int  # index of the image; between it and the command stands what its entry point is given
    own: int
    variables: Mapping[str, str]
    binds: tuple[tuple[str, str], ...] = ()  # (path in the container, path here)
    notes: tuple[str, ...] = ()
    around: Mapping[str, str] = {}  # what was put in for the variables of the text

    @property
    def command(self) -> tuple[str, ...]:
        return self.words[len(self.words) - self.own :]

    def here(self, path: str) -> str | None:
        """Where a path of the container lies on this machine, if it is mounted from here."""
        for inside, outside in sorted(self.binds, key=lambda pair: -len(pair[0])):
            if path == inside or path.startswith(inside.rstrip("/") + "/"):
                return outside + path[len(inside.rstrip("/")) :]
        return None


def read_service(file: Path, name: str | None = None, environ: Mapping[str, str] | None = None) -> Service:
    """The service `name`; None: the only one. Raises InputError for the file, UsageError for the service."""
    around = {**_dotenv(file.parent / ".env"), **(os.environ if environ is None else environ)}
    return read_text_of(file, read_text(file), name, around)


def read_text_of(file: Path, text: str, name: str | None, around: Mapping[str, str]) -> Service:
    """The same of a text that stands, or would stand, in the file. around: what the text's variables are."""
    services = _mapping(plain(parse(text, file)).get("services"), f"{file}: services")
    if name is None:
        if len(services) != 1:
            raise UsageError(f"{file} has {len(services)} services; name one of: {', '.join(services) or 'none'}")
        name = next(iter(services))
    if name not in services:
        raise UsageError(f"no service {name!r} in {file}{did_you_mean(name, services)}; it has: {', '.join(services)}")
    where = f"{file}, service {name}"
    service = _filled(_mapping(services[name], where), around, where)
    if "extends" in service:
        raise UsageError(f"{where}: extends is not read; {_ELSEWHERE}")
    return msgspec.structs.replace(_service(file, text, name, service, where), around=around)


def read_text(file: Path) -> str:
    try:
        data = plain_file.read(file, MAX_BYTES)
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}); name a compose file") from None
    try:
        if len(data) > MAX_BYTES or b"\0" in data:
            raise ValueError
        return data.decode("utf-8")
    except ValueError:
        raise InputError(f"{file} is no text of at most {MAX_BYTES >> 20} MiB; name a compose file") from None


def parse(text: str, file: Path) -> Node:
    """The file's mapping, merges (`<<`) carried out. Raises InputError."""
    import yaml

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None and _size(node, {}) > MAX_NODES:
            raise InputError(f"{file} has aliases that stand for more than {MAX_NODES} values; write them out")
        _merge(node, 0)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        why = getattr(error, "problem", None) or type(error).__name__
        raise InputError(f"{file}{line} is no YAML that can be read ({why}); docker compose config says more") from None
    if not isinstance(node, yaml.MappingNode):
        raise InputError(f"{file} is no compose file: it holds no mapping with services")
    return node


def _size(node: Any, known: dict[int, int]) -> int:
    """How many nodes it is with its aliases written out; a node that holds itself is a RecursionError."""
    if id(node) not in known:
        inside = node.value if isinstance(node.value, list) else ()
        parts = (part for each in inside for part in (each if isinstance(each, tuple) else (each,)))
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]


def _merge(node: Any, depth: int) -> None:
    import yaml

    if depth > 20:
        raise yaml.YAMLError
    if isinstance(node, yaml.MappingNode):
        yaml.SafeLoader("").flatten_mapping(node)
        for _, value in node.value:
            _merge(value, depth + 1)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _merge(value, depth + 1)


def plain(node: Any) -> Any:
    """Mappings, lists and texts; None for what is empty."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        return {str(key.value): plain(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [plain(value) for value in node.value]
    return None if node.tag == "tag:yaml.org,2002:null" else str(node.value)


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{where} is no mapping; name a compose file with services")
    return value


def fill(text: str, around: Mapping[str, str], where: str) -> str:
    """`$NAME`, `${NAME}` and `${NAME:-other}` as compose replaces them. Raises UsageError for `${NAME:?why}`."""

    def put(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name, how = match["plain"] or match["name"], match["how"] or ""
        value = around.get(name)
        there = value is not None and (value != "" or not how.startswith(":"))
        if how.endswith("+"):
            return match["other"] if there else ""
        if there or not how:
            return value or ""
        if how.endswith("-"):
            return match["other"]
        raise UsageError(f"{where}: {name} is not set, and the file demands it ({match['other']}); set it")

    return _VARIABLE.sub(put, text)


def _filled(value: Any, around: Mapping[str, str], where: str) -> Any:
    if isinstance(value, dict):
        return {key: _filled(each, around, where) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, around, where) for each in value]
    return fill(value, around, where) if isinstance(value, str) else value


def _dotenv(path: Path) -> dict[str, str]:
    try:
        return _assignments(path)
    except (OSError, ValueError):
        return {}


def _assignments(path: Path) -> dict[str, str]:
    """Raises OSError, and ValueError for what is no text."""
    data = plain_file.read(path, MAX_BYTES)
    if len(data) > MAX_BYTES:
        raise ValueError
    return parse_file(data.decode("utf-8", "surrogateescape"))


def _service(file: Path, text: str, name: str, service: dict[str, Any], where: str) -> Service:
    notes: list[str] = []
    image = service.get("image")
    if not isinstance(image, str):
        raise UsageError(f"{where} has no image, so its release is not known; give attnfit check its command")
    variables = dict(_files(file, service.get("env_file"), where))
    variables |= _variables(service.get("environment"), where)
    words = ["docker", "run", *_gpus(service)]
    for key, value in variables.items():
        words += ["-e", f"{key}={value}"]
    entry = _words(service.get("entrypoint"), f"{where}: entrypoint")
    command = _words(service.get("command"), f"{where}: command")
    if entry:
        words += ["--entrypoint", entry[0]]
    words += [image, *entry[1:], *command]
    others = [each for each in ("compose.override.yaml", "compose.override.yml", "docker-compose.override.yml",
                                "docker-compose.override.yaml") if (file.parent / each).exists()]  # fmt: skip
    if others and file.name not in others:
        notes.append(f"{others[0]} beside it is not read; {_ELSEWHERE}")
    return Service(
        file=file, text=text, name=name, words=tuple(words), image_at=len(words) - len(command) - max(len(entry), 1),
        own=len(command), variables=variables,
        binds=tuple(_binds(file, service.get("volumes"))), notes=tuple(notes),
    )  # fmt: skip


def _words(value: Any, where: str) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            raise UsageError(f"{where} cannot be split into words ({error}); correct the quotes") from None
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return value
    raise UsageError(f"{where} is neither a text nor a list of texts; correct it")


def _variables(value: Any, where: str) -> dict[str, str]:
    pairs = value.items() if isinstance(value, dict) else [str(each).partition("=")[::2] for each in value or ()]
    found = {}
    for key, text in pairs:
        named = isinstance(value, dict) or f"{key}=" in value
        if text is None or (not named and not text and key in (value or ())):
            if key in os.environ:  # a name alone is handed on
                found[str(key)] = os.environ[key]
            continue
        if not re.fullmatch(r"[A-Za-z_]\w*", str(key)):
            raise UsageError(f"{where}: {str(key)[:40]!r} in environment is no name of a variable; correct it")
        found[str(key)] = str(text)
    return found


def _files(file: Path, value: Any, where: str) -> Iterator[tuple[str, str]]:
    for each in [value] if isinstance(value, str | dict) else value or ():
        path = each.get("path") if isinstance(each, dict) else each
        needed = not (isinstance(each, dict) and each.get("required") == "false")
        try:
            found = _assignments(file.parent / str(path))
        except (OSError, ValueError):
            if needed:
                raise InputError(f"{where}: env_file {path} cannot be read; make it, or run where it lies") from None
            continue
        yield from found.items()


def _gpus(service: dict[str, Any]) -> list[str]:
    """What `--gpus` would be. Nothing said: as docker run without it, which the launch then cannot count."""
    if service.get("gpus") == "all":
        return ["--gpus", "all"]
    deploy: Any = service
    for key in ("deploy", "resources", "reservations", "devices"):
        deploy = deploy.get(key) if isinstance(deploy, dict) else None
    devices = service["gpus"] if isinstance(service.get("gpus"), list) else deploy
    for device in devices if isinstance(devices, list) else ():
        if not isinstance(device, dict) or device.get("driver") not in (None, "nvidia"):
            continue
        if ids := device.get("device_ids"):
            return ["--gpus", f"device={','.join(map(str, ids))}"]
        return ["--gpus", str(device.get("count") or "all")]
    return []


def _binds(file: Path, value: Any) -> Iterator[tuple[str, str]]:
    for each in value or ():
        if isinstance(each, dict):
            source, target = each.get("source"), each.get("target")
        else:
            source, _, rest = str(each).partition(":")
            target = rest.partition(":")[0]
        if source and target and str(source).startswith((".", "/", "~")):
            yield str(target), str((file.parent / Path(str(source)).expanduser()).resolve())
