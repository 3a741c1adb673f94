"""Where the command and what stands beside it speak of the same thing, they must say the same."""

from __future__ import annotations

import os

from packaging.version import InvalidVersion, Version

from attnfit.errors import UnknownAnswer, UsageError
from attnfit.inputs import shell
from attnfit.inputs.command import Command


def agreed_model(model: str | None, command: Command | None) -> tuple[str | None, list[str]]:
    """The model to read, and a note where one given beside the command stands for the one in it.

    Raises UsageError where they are two models, UnknownAnswer where the command names a variable nobody set.
    """
    named = command.model if command else None
    if model is None:
        if named and (name := shell.variable(named)):
            raise UnknownAnswer(
                f"{name} is not set here; put the model into the command, or name it: check MODEL -- ..."
            )
        return named, []
    if command is None or named is None or named == model:
        return model, []
    if command.files_here and shell.variable(named) is None:
        here = os.path.exists(named)
        if here and os.path.exists(model) and os.path.samefile(named, model):
            return model, []
        if here or not os.path.exists(model):
            raise UsageError(
                f"MODEL is {model}, but the command serves {named}; make the two agree, or leave MODEL away"
            )
    return model, [f"{model} is read in the place of {named}, which the command serves"]


def agreed_release(version: str, command: Command) -> None:
    """Raises UsageError where --engine says another release than the command's image or requirement."""
    named = command.image_release or command.required_release
    if named is None:
        return
    try:
        same = Version(version).public == Version(named).public
    except InvalidVersion:
        return  # said elsewhere, with the versions there are
    if not same:
        what = f"the image {command.image}" if command.image_release else "the command's own requirement"
        raise UsageError(
            f"--engine says {version}, but {what} says {named}; make the two agree (attnfit diff compares two releases)"
        )
