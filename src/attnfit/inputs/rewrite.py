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
from attnfit.inputs.layers import Layer, Unwrapped
from attnfit.inputs.options import skip_options
from attnfit.inputs.starts import match_entry
from attnfit.inputs.wrappers import CONTAINERS, MODULE_WRAPPERS, SHELLS, WRAPPERS

_HANDED_ON = ("-e", "--env")  # how a container runtime is told a variable
# they start the server elsewhere, or with an environment of its own; so may any that is not known
_LETS_NONE = frozenset({"doas", "systemd-run", "srun", "mpirun", "mpiexec", "ray", "screen"})


def rewrite(
    command: Command, argv: Sequence[str], variables: Mapping[str, str | None], release: str = ""
) -> list[str] | None:
    """The whole command with `argv` and those variables set, or taken away where the value is None.

    `release`: in the place of the one that the command names, if it names any.
    None if that cannot be written: the variable comes from a script line, a file, or from outside.
    """
    layers = list(command.layers)
    named = command.image_release or command.required_release
    if release and named:
        layers = [_of_release(layer, command, named, release) for layer in layers]
    for name, value in variables.items():
        if name in command.env:
            layers = [_replaced(layer, name, value) for layer in layers]
        elif value is not None and layers:
            layers = _added(command, layers, name, value)
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

    return Layer(
        before=tuple(put(word) for word in layer.before),
        after=layer.after,
        skip=layer.skip,
        text=layer.text,
        raw=layer.raw,
    )


def _replaced(layer: Layer, name: str, value: str | None) -> Layer:
    before: list[str] = []
    for word in layer.before:
        head, assigned, _ = word.partition(f"{name}=")
        if not assigned or head not in ("", "-e", "--env="):
            before.append(word)
        elif value is not None:
            before.append(f"{head}{name}={value}")
        elif not head and before and before[-1] in _HANDED_ON:
            before.pop()
    if before[:1] == ["env"] and len(before) > 1 and not before[1].startswith("-") and "=" not in before[1]:
        before = before[1:]  # it has nothing left to set
    return Layer(before=tuple(before), after=layer.after, skip=layer.skip, text=layer.text, raw=layer.raw)


def without_variable(layer: Layer, name: str) -> Layer:
    return _replaced(layer, name, None)


def _added(command: Command, layers: list[Layer], name: str, value: str) -> list[Layer]:
    last = layers[-1]
    if command.image is None and not command.files_here:
        return layers  # what is set here does not reach another machine
    if command.image is None and any(each in _LETS_NONE or not _known(each) for each in command.wrappers):
        start = server_at(last.before)
        if start is None:
            return layers
        before = (*last.before[:start], "env", f"{name}={value}", *last.before[start:])
        return [*layers[:-1], _with_before(last, before)]
    if command.image is None and "sudo" in command.wrappers:
        return [_behind_sudo(layer, f"{name}={value}") for layer in layers]
    if command.image is not None:
        at = next((i for i, w in enumerate(last.before) if w.rpartition("/")[2] in CONTAINERS), None)
        run = None if at is None else next((i for i, w in enumerate(last.before) if i > at and w == "run"), None)
        if run is None:
            return layers
        before = (*last.before[: run + 1], "-e", f"{name}={value}", *last.before[run + 1 :])
        return [*layers[:-1], _with_before(last, before)]
    if command.layers[0].text is not None and not command.layers[0].before:
        first = layers[0]
        assert first.text is not None
        text = (f"{first.text[0]}{name}={shell.quote(value)} ", first.text[1])
        return [Layer(before=(), after=first.after, skip=first.skip, text=text, raw=first.raw), *layers[1:]]
    return [_with_before(layers[0], (f"{name}={value}", *layers[0].before)), *layers[1:]]


def _behind_sudo(layer: Layer, assigned: str) -> Layer:
    """sudo starts with an environment of its own, and takes assignments behind its options."""
    words = list(layer.before)
    at = next((i for i, word in enumerate(words) if word.rpartition("/")[2] == "sudo"), None)
    if at is None:
        return layer
    stop = skip_options(Unwrapped(), words, at, "sudo")
    return _with_before(layer, (*words[:stop], assigned, *words[stop:]))


def server_at(words: Sequence[str]) -> int | None:
    """Where, in the words in front of a server's arguments, the server starts."""
    for at in range(len(words)):
        match = match_entry(entry_points(), words, at)
        if match is not None and at + match[2] == len(words):
            return at
    return None


def _known(wrapper: str) -> bool:
    return wrapper in WRAPPERS or wrapper in SHELLS or wrapper in MODULE_WRAPPERS


def _with_before(layer: Layer, before: tuple[str, ...]) -> Layer:
    return Layer(before=before, after=layer.after, skip=layer.skip, text=layer.text, raw=layer.raw)
