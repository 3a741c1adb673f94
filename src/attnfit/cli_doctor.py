"""`attnfit doctor`: what of this machine is ready to serve, and what to run where it is not."""

from __future__ import annotations

import sys
from typing import Any

import click

from attnfit.errors import UsageError


@click.command(epilog="Exit codes: 0 all ready or unknown, 1 something to mend, 2 usage or internal error.")
@click.option("--prefix", metavar="DIR", help="The environment of the engine. Default: where a command would find one.")
@click.option("--json", "as_json", is_flag=True, help="The areas as JSON (docs/json.md).")
@click.option("--quiet", is_flag=True, help="Only the last line.")
@click.pass_context
def doctor(ctx: click.Context, /, prefix: str | None, as_json: bool, quiet: bool) -> None:
    """Look at this machine and the engine installed on it: a line an area, and what to run."""
    if as_json and quiet:
        raise UsageError("--json and --quiet each say what to print; give one of them")
    from attnfit.doctor import examine, exit_code
    from attnfit.inputs.machine import read
    from attnfit.inputs.secrets import clean
    from attnfit.report import doctor as report
    from attnfit.report.plain import styled

    areas = examine(read(prefix=prefix))
    if as_json:
        text = report.render_json(areas)
    else:
        text = report.verdict_line(areas) + "\n" if quiet else report.render(areas)
    click.echo(styled(clean(text, sys.argv[1:])), nl=False, color=ctx.find_root().color)
    ctx.exit(exit_code(areas))


COMMANDS: dict[str, Any] = {"doctor": doctor}
