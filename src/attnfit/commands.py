"""Kinds of click commands (with a launch behind --, groups imported when asked for), and what they answer to."""

from __future__ import annotations

import contextlib
import os
import sys
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


def say(text: str) -> None:
    """The answer, with no key or token of the command line in it, coloured as the root command was told."""
    from attnfit.inputs.secrets import clean
    from attnfit.report.plain import styled

    ctx = click.get_current_context(silent=True)
    click.echo(styled(clean(text, sys.argv[1:])), nl=False, color=ctx.find_root().color if ctx else None)


def open_closed() -> None:
    """/dev/null in place of each of stdin, stdout and stderr that is closed (`>&-`): the next file or pipe to be opened
    would get its number, and what is printed would go there."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        with contextlib.suppress(OSError):
            os.fstat(number)
            continue
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free, which is this one
        setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
