"""How each engine's server is started: programs, modules, container images. One table per engine, in its folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import NamedTuple

from attnfit.engines import ENGINES


class Plugin(NamedTuple):
    """A distribution that the server loads by an entry point of its own, installed beside it."""

    fact: str  # the environment fact that makes true
    group: str  # of the entry point that its metadata must name: an older version may have none
    needs: tuple[str, ...] = ()  # distributions without which it does not load


class EntryPoints(NamedTuple):
    """What starts one engine's server. A *form* names the parser that reads the arguments, in the engine's words."""

    engine: str
    distribution: str  # normalised name of its Python package
    programs: Mapping[str, Mapping[str, str]]  # executable -> subcommand ("" for none) -> form
    modules: Mapping[str, Mapping[str, str]]  # `python -m` module -> subcommand -> form
    scripts: Mapping[str, str]  # end of a script's path -> form
    images: re.Pattern[str]  # container images of the engine
    image_form: str | None  # form of their entry point; None: it is no server, the command stands behind the image
    image_tag: re.Pattern[str]  # group 1: the release
    official_image: str  # the one that the engine's makers publish, without tag; releases are tagged vX.Y.Z
    guard_variables: tuple[str, ...]  # variables that hold a key clients must send
    requirement: re.Pattern[str]  # "vllm==0.16.0" in a wrapper's options; group 1: the release
    model_options: tuple[str, ...]  # options that name the model
    find_model: Callable[[Sequence[str], str], str | None]  # (argv, form): the model where it is not in front
    flag_values: Callable[[Sequence[str], str], Mapping[str, object]]  # (argv, form): dest -> the text it was given
    start: str  # how people start it, without the model: help texts and errors show it
    example_releases: tuple[str, str]  # an old and a new one, for the same
    modelscope: str = ""  # variable by which model ids name models of ModelScope instead of the hub
    facts_beside: Mapping[str, str] = {}  # distribution installed beside it -> the environment fact that makes true
    plugins_beside: Mapping[str, Plugin] = {}

    @property
    def example(self) -> str:
        """A release as `--engine` takes it."""
        return f"{self.engine}=={self.example_releases[1]}"


def entry_points() -> Sequence[EntryPoints]:
    """The tables of all engines that have one."""
    return [import_module(f"attnfit.engines.{name}.entry").ENTRY for name in ENGINES]


def entry_of(engine: str | None = None) -> EntryPoints:
    """The table of one engine; None: of the one that is taken where nobody names any."""
    found: EntryPoints = import_module(f"attnfit.engines.{engine or ENGINES[0]}.entry").ENTRY
    return found


def flag_values(engine: str, argv: Sequence[str], form: str) -> Mapping[str, object]:
    """The text every flag was given, nothing judged: for inputs that must know a flag before the engine is asked."""
    return entry_of(engine).flag_values(argv, form)
