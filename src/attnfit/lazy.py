"""Command groups whose commands are imported only when one of them is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """Commands are the names of `module`'s `COMMANDS`, a dict; `attnfit check` never imports it."""

    def __init__(self, *args: Any, module: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._module = module

    def _found(self) -> dict[str, click.Command]:
        commands: dict[str, click.Command] = import_module(self._module).COMMANDS
        return commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._found())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._found().get(cmd_name)
