"""Writing a command back with other environment variables or another release, in the form the user has.

`env X=1 PROGRAM serve m`, `docker run -e X=1 image`, `X=1 PROGRAM serve m`: the variable is changed where it stands.
What comes out is read again, and is only offered if it says what was meant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnfit.engines.entry import entry_of, entry_points
from attnfit.errors import UsageError
from attnfit.inputs import shell
from attnfit.inputs.command import Command, parse_command
from attnfit.inputs.container import run_at
from attnfit.inputs.layers import Layer, Unwrapped
from attnfit.inputs.options import ASSIGNMENT, skip_options
from attnfit.inputs.starts import base_name, match_entry
from attnfit.inputs.throwaway import with_packages
from attnfit.inputs.wrappers import CONTAINERS, MODULE_WRAPPERS, SHELLS, WRAPPERS

_HANDED_ON = ("-e", "--env")  # how a container runtime is told a variable
# they start the server elsewhere, or with an environment of its own; so may any that is not known
_LETS_NONE = frozenset({"doas", "systemd-run", "srun", "mpirun", "mpiexec", "ray", "screen"})


def rewrite(
    command: Command,
    argv: Sequence[str],
    variables: Mapping[str, str | None],
    release: str = "",
    packages: Sequence[str] = (),
) -> list[str] | None:
    """The whole command with `argv` and those variables set, or taken away where the value is None.

    `release`: in the place of the one that the command names, if it names any. `packages`: in the environment that it
    makes, if it makes one.
    None if that cannot be written: the variable comes from a script line, a file, or from outside.
    """
    written = (_written(command, argv, variables, release, packages, inside) for inside in (False, True))
    return next((words for words in written if words is not None), None)


def _written(
    command: Command,
    argv: Sequence[str],
    variables: Mapping[str, str | None],
    release: str,
    packages: Sequence[str],
    inside: bool,
) -> list[str] | None:
    """inside: variables stand directly in front of the server, where nothing keeps them from it."""
    layers = with_packages(command.layers, packages)
    named = command.image_release or command.required_release
    if release and named:
        layers = [_of_release(layer, command, named, release) for layer in layers]
    for name, value in variables.items():
        if name in command.env:
            layers = [_replaced(layer, name, value) for layer in layers]
        elif value is not None and layers:
            layers = _inside(layers, name, value) if inside else _added(command, layers, name, value)
    inner = list(argv)
    for layer in reversed(layers):
        inner = layer.wrap(inner)
    try:
        read = parse_command(inner)
    except UsageError:
        return None
    wanted = {name: value for name, value in {**command.env, **variables}.items() if value is not None}
    if release and named and (read.image_release or read.required_release) != release:
        return None
    return inner if read.argv == tuple(argv) and read.env == wanted else None


def _of_release(layer: Layer, command: Command, old: str, new: str) -> Layer:
    """The image's tag, or the requirement, of another release."""
    table = entry_of(command.engine)

    def put(word: str) -> str:
        if word == command.image:
            path, colon, tag = word.partition("@")[0].rpartition(":")  # a digest would name the old one
            return f"{path}{colon}{tag.replace(old, new, 1)}"
        match = table.requirement.match(word)
        return word[: match.start(1)] + new + word[match.end(1) :] if match and match[1] == old else word

    return layer.starting([put(word) for word in layer.before])


def _replaced(layer: Layer, name: str, value: str | None) -> Layer:
    before: list[str] = []
    for at, word in enumerate(layer.before):
        head, assigned, _ = word.partition(f"{name}=")
        if not assigned or head not in ("", "-e", "--env="):
            before.append(word)
        elif value is not None:
            before.append(f"{head}{name}={value}")
        elif not head and before and (before[-1] in _HANDED_ON or _idle(before[-1], layer.before[at + 1 :])):
            before.pop()
    return layer.starting(before)


def _idle(word: str, following: Sequence[str]) -> bool:
    """Whether that is an `env` with nothing left to set, as it stands in front of its command."""
    return word == "env" and bool(following) and not following[0].startswith("-") and "=" not in following[0]


def without_variable(layer: Layer, name: str) -> Layer:
    return _replaced(layer, name, None)


def _added(command: Command, layers: list[Layer], name: str, value: str) -> list[Layer]:
    if command.image is None and any(each in _LETS_NONE or not _known(each) for each in command.wrappers):
        return _inside(layers, name, value)
    if command.image is None and "sudo" in command.wrappers:
        return [_behind_sudo(layer, f"{name}={value}") for layer in layers]
    if command.image is not None:
        return _handed_on(layers, f"{name}={value}")
    if command.layers[0].text is not None and not command.layers[0].before:
        first = layers[0]
        assert first.text is not None
        text = (f"{first.text[0]}{name}={shell.quote(value)} ", first.text[1])
        return [Layer(before=(), after=first.after, skip=first.skip, text=text, raw=first.raw), *layers[1:]]
    return [layers[0].starting((f"{name}={value}", *layers[0].before)), *layers[1:]]


def _inside(layers: list[Layer], name: str, value: str) -> list[Layer]:
    """By `env`, or where the command has one already: behind its options and the variables that it sets."""
    words, assigned = list(layers[-1].before), f"{name}={value}"
    start = server_at(words)
    if start is None:
        return layers
    ends = (skip_options(Unwrapped(), words, at, "env") for at in range(start) if base_name(words[at]) == "env")
    sets = any(all(map(ASSIGNMENT.fullmatch, words[end:start])) for end in ends)
    put = (assigned,) if sets else ("env", assigned)
    return [*layers[:-1], layers[-1].starting((*words[:start], *put, *words[start:]))]


def _handed_on(layers: list[Layer], assigned: str) -> list[Layer]:
    """The container runtime hands it on, as the first of its options."""
    for i, layer in enumerate(layers):
        words = list(layer.before)
        for at, word in enumerate(words):
            if base_name(word) in CONTAINERS and (run := run_at(words, at)) is not None:
                put = layer.starting((*words[: run + 1], "-e", assigned, *words[run + 1 :]))
                return [*layers[:i], put, *layers[i + 1 :]]
    return layers


def _behind_sudo(layer: Layer, assigned: str) -> Layer:
    """sudo starts with an environment of its own, and takes assignments behind its options."""
    words = list(layer.before)
    at = next((i for i, word in enumerate(words) if word.rpartition("/")[2] == "sudo"), None)
    if at is None:
        return layer
    stop = skip_options(Unwrapped(), words, at, "sudo")
    return layer.starting((*words[:stop], assigned, *words[stop:]))


def server_at(words: Sequence[str]) -> int | None:
    """Where, in the words in front of a server's arguments, the server starts."""
    for at in range(len(words)):
        match = match_entry(entry_points(), words, at)
        if match is not None and at + match[2] == len(words):
            return at
    return None


def _known(wrapper: str) -> bool:
    return wrapper in WRAPPERS or wrapper in SHELLS or wrapper in MODULE_WRAPPERS
