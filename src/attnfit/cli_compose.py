"""`attnfit compose check|fix FILE [SERVICE]`: a service of a compose file, checked, and its corrected form."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnfit.cli_unit_talk import judged
from attnfit.errors import UsageError

if TYPE_CHECKING:
    from attnfit.core import Report
    from attnfit.inputs.compose import Service

_CODES = "Exit codes: 0 passes, 1 refused or breaks, 2 usage or internal error, 3 unknown."


def _common(command: Any) -> Any:
    name = click.argument("service", required=False)
    model = click.option("--model", help="The model here, where the container's path is no mounted one.")
    return click.argument("file", type=click.Path(path_type=Path))(name(model(judged(command))))


@click.command(epilog=_CODES)
@_common
@click.option("--json", "as_json", is_flag=True, help="The whole answer as JSON (docs/json.md).")
@click.option("--quiet", is_flag=True, help="Only the verdict line.")
@click.pass_context
def check(ctx: click.Context, /, file: Path, service: str | None, as_json: bool, quiet: bool, **options: Any) -> None:
    """Check what a service starts, as `attnfit check` does of the docker run it stands for."""
    from attnfit.inputs.compose import read_service
    from attnfit.report.text import render, verdict_line

    if as_json and quiet:
        raise UsageError("--json and --quiet each say what to print; give one of them")
    read = read_service(file, service)
    report = _report(read, options)
    if as_json:
        _say_json(ctx, report, read)
    else:
        _say(ctx, verdict_line(report) + "\n" if quiet else render(report), read)
    for note in read.notes:
        click.echo(f"note: {note}", err=True)
    ctx.exit(report.exit_code)


@click.command(epilog=_CODES + " After --yes, of the file as it is then.")
@_common
@click.option("--yes", is_flag=True, help="Write the file.")
@click.option("--dry-run", is_flag=True, help="Show the change. This is what happens without --yes.")
@click.pass_context
def fix(ctx: click.Context, /, file: Path, service: str | None, yes: bool, dry_run: bool, **options: Any) -> None:
    """Show the file with the command that would start, as a diff; write it with --yes."""
    from attnfit.deploy.composefile import edited
    from attnfit.deploy.unitplan import difference, step_of
    from attnfit.inputs.compose import read_service
    from attnfit.report.text import verdict_line

    read = read_service(file, service)
    report = _report(read, options)
    step = step_of(report)
    _hint(verdict_line(report), read)
    if report.verdict == "passes" or step is None:
        passes = report.verdict == "passes"
        click.echo("nothing is to be changed" if passes else "no command is known that would pass", err=True)
        ctx.exit(report.exit_code)
    command, variables = _wanted(read, step.argv or ())
    text = edited(read, command, variables)
    _say(ctx, difference(read.text, text, str(file), str(file)), read)
    _hint(f"change: {step.text}" + (f"; gives up: {step.gives_up}" if step.gives_up else ""), read)
    if dry_run or not yes:
        click.echo("nothing was written; --yes writes it", err=True)
        ctx.exit(report.exit_code)
    _write(file, read.text, text)
    after = _report(read_service(file, read.name), options)
    _hint(verdict_line(after), read)
    click.echo(f"next: docker compose -f {file} up -d {read.name}", err=True)
    ctx.exit(after.exit_code)


def _report(read: Service, options: dict[str, Any]) -> Report:
    from attnfit.api import check as answer
    from attnfit.inputs.command import parse_command

    named = parse_command(read.words).model
    model = options["model"] or (read.here(named) if named else None)
    return answer(read.words, gpu=options["gpu"], count=options["count"], model=model, engine=options["engine"])


def _wanted(read: Service, step: tuple[str, ...]) -> tuple[list[str], dict[str, str | None]]:
    """(the service's command, variables that change) of the docker run that `check` offers."""
    from attnfit.deploy.command import restored

    words = list(restored(step, read.words) or ())
    image = read.words[read.image_at]
    fixed = list(read.words[read.image_at : len(read.words) - read.own])
    at = words.index(image) if image in words else -1
    if at < 0 or words[at : at + len(fixed)] != fixed:
        raise UsageError("the way out changes more than the service's command; attnfit compose check shows it")
    given = [word for flag, word in pairwise(words[:at]) if flag == "-e"]
    found = dict(word.split("=", 1) for word in given if "=" in word)
    changed: dict[str, str | None] = {name: v for name, v in found.items() if read.variables.get(name) != v}
    return words[at + len(fixed) :], changed | dict.fromkeys(read.variables.keys() - found.keys())


def _write(file: Path, before: str, text: str) -> None:
    """The file, whole, its owner's as it was. Raises UsageError where it was changed meanwhile or may not be
    written."""
    from attnfit.deploy.files import read_plain, rights_of, write_whole

    try:
        if file.is_symlink() or read_plain(file) != before.encode():
            raise UsageError(f"{file} is a link or was changed meanwhile; nothing was written")
        write_whole(file, text.encode(), rights_of(file))
    except OSError as error:
        raise UsageError(f"{file} cannot be written ({error.strerror or error}); nothing was changed") from None


def _hidden(text: str, read: Service) -> str:
    from attnfit.deploy.unitplan import shown

    written = [word.replace("$", "$$") for word in read.words]  # as compose has it in the file
    return shown(text, sys.argv[1:], read.words, written)


def _say_json(ctx: click.Context, report: Report, read: Service) -> None:
    from attnfit.deploy.unitplan import in_each_text
    from attnfit.report.json import as_dict
    from attnfit.report.plain import styled
    from attnfit.report.unit import dump

    body = in_each_text(as_dict(report), lambda text: _hidden(text, read))
    click.echo(styled(dump(body)), nl=False, color=ctx.find_root().color)


def _say(ctx: click.Context, text: str, read: Service) -> None:
    from attnfit.report.plain import styled

    click.echo(styled(_hidden(text, read)), nl=False, color=ctx.find_root().color)


def _hint(text: str, read: Service) -> None:
    from attnfit.report.plain import styled

    click.echo(styled(_hidden(text, read)), err=True)


COMMANDS: dict[str, Any] = {"check": check, "fix": fix}
