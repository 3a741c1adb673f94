"""Where a package that is installed now is not there when the command runs: images, and environments made for a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnfit.inputs.container import image_run
from attnfit.inputs.layers import Layer
from attnfit.inputs.starts import base_name

if TYPE_CHECKING:
    from attnfit.inputs.command import Command

_WITH = "--with"


def takes_packages(command: Command) -> bool:
    """Whether the command makes its environment itself and can be told what else belongs into it."""
    return any(_put_at(layer.before) is not None for layer in command.layers)


def with_packages(layers: Sequence[Layer], packages: Sequence[str]) -> list[Layer]:
    """The same command with these in the environment that it makes."""
    out = list(layers)
    for i in reversed(range(len(out))):
        before = out[i].before
        if (at := _put_at(before)) is not None:
            words = [word for package in packages for word in (_WITH, package)]
            out[i] = out[i].starting((*before[:at], *words, *before[at:]))
            break
    return out


def made_from(command: Command) -> str | None:
    """What takes one's own in its place, with the packages in it; None: what is installed where it runs stays."""
    if (image := image_run(command)) is not None:
        return f"an image of your own, made from {image}"
    if any("pipx" in map(base_name, layer.before) and "run" in layer.before for layer in command.layers):
        return "an environment of your own in the place of pipx run's,"
    return None


def _put_at(words: Sequence[str]) -> int | None:
    """Where `--with` may be put: behind uvx, `uv tool run`, and a `uv run` that makes an environment for this run (with
    --with it makes one on top of the project's, without it the project's own stays)."""
    for at, word in enumerate(words):
        if base_name(word) == "uvx":
            return at + 1
        if base_name(word) == "uv" and "run" in words[at:]:
            run = words.index("run", at)
            made = words[run - 1] == "tool" or any(
                each == "--isolated" or each.partition("=")[0] in (_WITH, "--with-requirements", "--with-editable")
                for each in words[run:]
            )
            return run + 1 if made else None
    return None
