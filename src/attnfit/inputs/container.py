"""The options of `docker run` and its like, as far as they say where the image begins and what the server gets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from attnfit.inputs.wrappers import CONTAINER_SWITCH_LETTERS, CONTAINER_SWITCHES, CONTAINERS

if TYPE_CHECKING:
    from attnfit.inputs.command import Command

_OWN = ("-c", "--context", "-H", "--host", "-l", "--log-level", "--config")
_OF_COMPOSE = (
    "-f", "--file", "-p", "--project-name", "--profile", "--env-file", "--project-directory", "--parallel", "--ansi",
    "--progress",
)  # fmt: skip


def run_at(words: list[str], at: int) -> int | None:
    """Index of `run` (or `create`, `exec`) after docker's own options, and those of its compose."""
    i, compose = at + 1, _name(words[at]).endswith("-compose")
    if not compose:
        i = _behind(words, i, _OWN)
        compose = words[i : i + 1] == ["compose"]
        i += compose or words[i : i + 1] == ["container"]
    if compose:
        i = _behind(words, i, _OF_COMPOSE)
    return i if i < len(words) and words[i] in ("run", "create", "exec") else None


def of_service(words: list[str], at: int, run: int) -> bool:
    """Whether that `run` is of a service of a compose file, not of an image."""
    return _name(words[at]).endswith("-compose") or "compose" in words[at + 1 : run]


def _behind(words: list[str], i: int, values: tuple[str, ...]) -> int:
    """Past options, of which these have a value."""
    while i < len(words) and words[i].startswith("-"):
        i += 2 if words[i] in values else 1
    return i


def container_option(words: list[str], i: int) -> tuple[str, str, int]:
    """(name, value, number of words)."""
    word = words[i]
    key, eq, value = word.partition("=")
    if word.startswith("--"):
        if eq or key in CONTAINER_SWITCHES:
            return key, value, 1
        return key, words[i + 1] if i + 1 < len(words) else "", 2
    letters = word[1:]
    if set(letters) <= CONTAINER_SWITCH_LETTERS:
        return word, "", 1
    for n, letter in enumerate(letters):
        if letter not in CONTAINER_SWITCH_LETTERS:
            rest = letters[n + 1 :].removeprefix("=")
            if rest:
                return "-" + letter, rest, 1
            return "-" + letter, words[i + 1] if i + 1 < len(words) else "", 2
    return word, "", 1


def image_run(command: Command) -> str | None:
    """The image that a command starts a container of, as one says it; None: none, or it goes into one that runs."""
    if command.image is None:
        return None
    for words in [list(layer.before) for layer in command.layers if command.image in layer.before]:
        for at, word in enumerate(words):
            if _name(word) in CONTAINERS and (run := run_at(words, at)) is not None:
                if words[run] == "exec":
                    return None
                if of_service(words, at, run):
                    return f"that of the service {command.image}"
    return command.image


def _name(word: str) -> str:
    return word.rpartition("/")[2]


_DEVICES = re.compile(r"device=([\w:.-]+(?:,[\w:.-]+(?![\w:.-]*=))*)")  # up to the next `key=`


def gpu_request(value: str) -> tuple[str, ...] | int | None:
    """The ids of `device=0,1` (quoted or not), how many, or None for all."""
    if devices := _DEVICES.search(value):
        return tuple(devices[1].split(","))
    count = value.partition("count=")[2].partition(",")[0] if "count=" in value else value
    count = count.strip("\"' ")
    return int(count) if count.isdecimal() else None
