"""Kinds of click commands: those that take a launch behind --, groups whose commands are imported when asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click


class WithCommand(click.Command):
    """Everything behind the first `--` is the user's launch command and is none of click's business."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta["launch"] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


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
