"""A command with another engine's server in the place of its own: its wrappers, mounts, GPUs and variables stay.

Only where that is certain. What comes out is read again, and only given if it starts that server with those words.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from attnfit.engines.entry import EntryPoints, entry_of, entry_points
from attnfit.errors import UsageError
from attnfit.inputs.command import Command, parse_command
from attnfit.inputs.container import run_at
from attnfit.inputs.layers import Layer
from attnfit.inputs.rewrite import server_at, without_variable
from attnfit.inputs.starts import PYTHON, base_name
from attnfit.inputs.wrappers import CONTAINERS, SHELLS, WRAPPERS

# they make an environment of the engine's own, or start its server in a way that another's may not have
_OWN = frozenset({"uvx", "pipx", "apptainer", "singularity", "torchrun", "accelerate", "deepspeed", "coverage", "ray"})
_HANDED_ON = ("-e", "--env")


class Switched(NamedTuple):
    words: tuple[str, ...] | None  # None: it cannot be written for certain
    why: str = ""  # it cannot
    left: tuple[str, ...] = ()  # what of the command is not in it, or has no place in the other one
    named: bool = False  # the words themselves name the release


class _Uncertain(Exception):
    pass


def kept_variables(command: Command) -> dict[str, str]:
    """Those that are not for the engine alone."""
    own = command.engine.upper() + "_"
    return {name: value for name, value in command.env.items() if not name.startswith(own)}


def switched(command: Command, engine: str, head: Sequence[str], argv: Sequence[str], release: str) -> Switched:
    """`head` starts the other engine's server where there is a plain shell, `argv` are its arguments."""
    old, new = entry_of(command.engine), entry_of(engine)
    gone = tuple(name for name in command.env if name not in kept_variables(command))
    surrounded = (*dict.fromkeys(command.wrappers), *(f"{name}=" for name in kept_variables(command)))
    try:
        for name in old.guard_variables:
            if name in command.env or any(name in word for layer in command.layers for word in layer.before):
                raise _Uncertain(f"{name} guards this server, and has no counterpart")
        inner, layers, named = _layers(command, old, new, list(head), list(argv), release)
        for name in gone:
            layers = [without_variable(layer, name) for layer in layers]
        for layer in reversed(layers):
            inner = layer.wrap(inner)
        try:
            read = parse_command(inner)
        except UsageError:
            raise _Uncertain("how to write it behind what stands in front of the server is not known") from None
        if read.engine != engine or read.argv != tuple(argv) or read.env != kept_variables(command):
            raise _Uncertain("how to write it behind what stands in front of the server is not known")
        if (read.visible_gpus, read.gpu_count) != (command.visible_gpus, command.gpu_count):
            raise _Uncertain("it would see other GPUs")
    except _Uncertain as why:
        return Switched(None, str(why), (*surrounded, *gone))
    return Switched(tuple(inner), left=gone, named=named)


def _layers(
    command: Command, old: EntryPoints, new: EntryPoints, head: list[str], argv: list[str], release: str
) -> tuple[list[str], list[Layer], bool]:
    """The server's words, the layers around them, and whether these name the release."""
    for name in command.wrappers:
        if name in _OWN or not (name in WRAPPERS or name in SHELLS or name in CONTAINERS or name == "ssh"):
            raise _Uncertain(f"what it becomes behind {name} is not known")
    layers, last = list(command.layers), command.layers[-1]
    if command.image is not None:
        at = next(i for i, layer in enumerate(layers) if command.image in layer.before)
        layers[at] = _image(layers[at], command.image, old, new, release)
        rest = layers[at + 1 :]
        if new.image_form is not None:
            if any(server_at(layer.before) != 0 for layer in rest):
                raise _Uncertain(f"the image {new.official_image} starts its server itself")
            return argv[1:] if argv[:1] == ["--model"] else argv, layers[: at + 1], True
        if not rest:
            return ["python3", *head[1:], *argv], layers, True
    start = server_at(last.before)
    if start is None:
        raise _Uncertain("where the server starts in this command is not known")
    front = last.before[:start]
    named = command.image is not None
    if "uv" in command.wrappers:
        front, pinned = _requirements(front, old, new, release)
        named |= pinned
    starts = _python if PYTHON.match(head[0]) else _program
    front = (*front, starts(last.before[start], head[0], command), *head[1:])
    layers[-1] = Layer(before=front, after=last.after, skip=last.skip, text=last.text, raw=last.raw)
    return argv, layers, named


def _python(word: str, _: str, command: Command) -> str:
    """The interpreter of the environment that the command starts its server in."""
    if PYTHON.match(base_name(word)):
        return word
    folder = _folder(word)
    return f"{folder}/python3" if folder else "python3" if command.image is not None else "python"


def _program(word: str, name: str, _: Command) -> str:
    """The program of that name in the environment that the command starts its server in."""
    folder = _folder(word)
    return name if folder in ("", "/usr/bin") else f"{folder}/{name}"  # a system's pip puts programs elsewhere


def _folder(word: str) -> str:
    """Where the programs of that environment lie; "": where the shell finds them."""
    if word == "-m":
        raise _Uncertain("which interpreter it starts with is not known")
    folder, slash, _ = word.rpartition("/")
    if slash and base_name(folder) not in ("bin", "Scripts"):
        raise _Uncertain(f"what belongs to {word} is not known")
    return folder


def _image(layer: Layer, image: str, old: EntryPoints, new: EntryPoints, release: str) -> Layer:
    """The other engine's own image of a release, in the place of this one's own."""
    path, _, tag = image.partition(":")
    plain = tag in ("", "latest") or re.fullmatch(r"v\d+\.\d+\.\d+(\.post\d+)?", tag)
    if path.removeprefix("docker.io/") != old.official_image or not plain:
        raise _Uncertain(f"what the image {image} becomes is not known")
    words = list(layer.before)
    for i, word in enumerate(words):
        if base_name(word) in CONTAINERS and (run := run_at(words, i)) is not None and words[run] != "run":
            raise _Uncertain(f"the container {image} holds {old.engine}")
    if layer.skip or any(word.startswith("--env-file") for word in words):
        raise _Uncertain("what its --entrypoint or --env-file become is not known")
    for word, value in itertools.pairwise(words):
        if word in _HANDED_ON and value in old.guard_variables:
            raise _Uncertain(f"{value} guards this server, and has no counterpart")
    before = tuple(f"{new.official_image}:v{release}" if word == image else word for word in words)
    return Layer(before=before, after=layer.after, skip=layer.skip, text=layer.text, raw=layer.raw)


def _requirements(
    words: Sequence[str], old: EntryPoints, new: EntryPoints, release: str
) -> tuple[tuple[str, ...], bool]:
    """`uv run --with`: the other package in the place of this one."""
    one = re.compile(rf"(--with=)?{re.escape(old.distribution)}(?:\[[\w,-]*\])?(?:\s*[=<>~!@][^,;]*)?")
    out: list[str] = []
    for i, word in enumerate(words):
        match = one.fullmatch(word)
        if match and (match[1] or (i and words[i - 1] == "--with")):
            out.append(f"{match[1] or ''}{new.distribution}=={release}")
        elif any(t.distribution in word.lower() for t in entry_points()) and not word.partition("=")[0].isidentifier():
            raise _Uncertain(f"what {word} becomes is not known")
        else:
            out.append(word)
    return tuple(out), tuple(out) != tuple(words)
