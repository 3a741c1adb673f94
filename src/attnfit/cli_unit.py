"""`attnfit unit show|check|write|fix|undo NAME`: a systemd service that starts an engine, read and put right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnfit import cli_unit_talk as talk
from attnfit.commands import WithCommand
from attnfit.errors import UsageError

if TYPE_CHECKING:
    from attnfit.deploy.unitplan import Asked

_CODES = "Exit codes: 0 passes, 1 refused or breaks, 2 usage or internal error, 3 unknown."
_WAIT = 3600.0  # seconds; each stage of a start has a patience of its own besides


def _common(command: Any) -> Any:
    root = click.option("--root", type=click.Path(path_type=Path), help="Read the files of the image under DIR.")
    user = click.option("--user", is_flag=True, help="A unit of your own manager (systemctl --user).")
    return click.argument("name")(user(root(command)))


@click.command(epilog="Exit codes: 0 shown, 2 usage or internal error.")
@_common
@click.option("--json", "as_json", is_flag=True, help="As JSON (docs/json.md).")
@click.pass_context
def show(ctx: click.Context, /, name: str, user: bool, root: Path | None, as_json: bool) -> None:
    """Show a unit's files and drop-ins, its variables, and what it starts, as systemd reads them."""
    from attnfit.report import unit as report

    unit = talk.read(name, user=user, root=root)
    state = talk.state(unit)
    if as_json:
        talk.say_json(ctx, report.as_dict(unit, state), unit)
    else:
        talk.say(ctx, report.render(unit, state), unit)


@click.command(epilog=_CODES)
@_common
@talk.judged
@click.option("--json", "as_json", is_flag=True, help="The whole answer as JSON (docs/json.md).")
@click.option("--quiet", is_flag=True, help="Only the verdict line.")
@click.pass_context
def check(
    ctx: click.Context, /, name: str, user: bool, root: Path | None, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Check what a unit starts, as `attnfit check` does."""
    from attnfit.deploy.unitplan import judge
    from attnfit.inputs.units.launch import server_of

    if as_json and quiet:
        raise UsageError("--json and --quiet each say what to print; give one of them")
    unit = talk.read(name, user=user, root=root)
    launch = server_of(unit)
    report = judge(unit, _asked(options), launch)
    talk.answer(ctx, unit, report, launch.notes, as_json=as_json, quiet=quiet)
    ctx.exit(report.exit_code)


@click.command(cls=WithCommand, epilog=_CODES)
@_common
@talk.judged
@click.option("--stdout", is_flag=True, help="Print the drop-in; write nothing. Works without systemd.")
@click.option("--yes", is_flag=True, help="Write without asking.")
@click.option("--dry-run", is_flag=True, help="Show what would be written.")
@click.pass_context
def write(
    ctx: click.Context, /, name: str, user: bool, root: Path | None, stdout: bool, yes: bool, **options: Any
) -> None:
    """Write a drop-in with the command that would start, or with the one given behind --. Restarts nothing."""
    from attnfit.deploy import unitfile

    unit = talk.read(name, user=user, root=root)
    report, planned = talk.plan(ctx, unit, _asked(options))
    if planned is None:
        ctx.exit(report.exit_code)
    if stdout:
        _print(planned.text)
        ctx.exit(0)
    if not talk.agreed(ctx, unit, planned, yes=yes, dry_run=options["dry_run"]):
        ctx.exit(0)
    unitfile.put(planned.place, planned.text, unit.name)
    scope = " --user" if user else ""
    click.echo(f"written: {planned.place.path}", err=True)
    if root is None:
        click.echo(f"next: systemctl{scope} daemon-reload && systemctl{scope} restart {unit.name}", err=True)


@click.command(
    cls=WithCommand, epilog="Exit codes: 0 serves now, 1 it does not, and all is as it was, 2 usage error, 3 unknown."
)
@_common
@talk.judged
@click.option("--yes", is_flag=True, help="Write and restart without asking.")
@click.option("--dry-run", is_flag=True, help="Show what would be done.")
@click.option("--wait", type=click.FloatRange(min=1), default=_WAIT, show_default=True, help="Seconds until it serves.")
@click.pass_context
def fix(
    ctx: click.Context, /, name: str, user: bool, root: Path | None, yes: bool, wait: float, **options: Any
) -> None:
    """Check a unit, write the drop-in that makes it start, restart it, watch it; take all back if it does not serve."""
    from attnfit.deploy.systemctl import Systemd

    if root is not None:
        raise UsageError("an image's unit cannot be restarted; attnfit unit write --root DIR writes its drop-in")
    unit = talk.read(name, user=user)
    systemd = Systemd(user=user)
    report, planned = talk.plan(ctx, unit, _asked(options))
    dry = bool(options["dry_run"])
    if planned is None:
        if report.exit_code or not talk.catch_up(unit, systemd, yes=yes, dry_run=dry):
            ctx.exit(report.exit_code)
        ctx.exit(talk.carry_out(unit, systemd, None, wait))
    if not dry and (why := systemd.why_not()):
        raise UsageError(f"{why}; attnfit unit write {unit.name} --stdout prints the drop-in, for where it runs")
    if not talk.agreed(ctx, unit, planned, yes=yes, dry_run=dry, systemd=systemd):
        ctx.exit(0)
    ctx.exit(talk.carry_out(unit, systemd, planned, wait))


@click.command(epilog="Exit codes: 0 undone, 2 usage error.")
@_common
@click.option("--yes", is_flag=True, help="Without asking.")
@click.option("--dry-run", is_flag=True, help="Show what would be removed.")
@click.pass_context
def undo(ctx: click.Context, /, name: str, user: bool, root: Path | None, yes: bool, dry_run: bool) -> None:
    """Put back what stood there before attnfit's drop-in. Restarts nothing."""
    from attnfit.deploy import unitfile
    from attnfit.deploy.dropin import secrets_in
    from attnfit.deploy.unitplan import shown

    unit = talk.read(name, user=user, root=root)
    place = unitfile.place_of(unit)
    unitfile.undoable(place)
    if place.before is not None:
        gone = "".join(f"-{each}\n" for each in place.before.splitlines())
        talk.say(ctx, shown(gone, hidden=secrets_in(place.before)), unit)
    if dry_run or not talk.confirmed(f"put back what stood at {place.path}", yes):
        ctx.exit(0)
    before = unitfile.undo(place)
    scope = " --user" if user else ""
    click.echo(f"{place.path}: {'as it was' if before is not None else 'removed'}", err=True)
    if root is None:
        click.echo(f"next: systemctl{scope} daemon-reload && systemctl{scope} restart {unit.name}", err=True)


def _print(text: str) -> None:
    """The drop-in as a file. Raises UsageError where a key stands in it: it would be printed, or be wrong."""
    from attnfit.deploy.dropin import holds_key

    if holds_key(text):
        raise UsageError(
            "the command holds a key in clear, which is not printed; move it into an EnvironmentFile= of the unit and "
            "name it there as ${NAME}, or let attnfit unit write write the file, readable by its owner alone"
        )
    click.echo(text, nl=False)


def _asked(options: dict[str, Any]) -> Asked:
    from attnfit.deploy.unitplan import Asked

    return Asked(gpu=options["gpu"], count=options["count"], engine=options["engine"])


COMMANDS: dict[str, Any] = {"show": show, "check": check, "write": write, "fix": fix, "undo": undo}
