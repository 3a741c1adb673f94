"""What the commands on units say and ask on the way: the plan, the diff, the question, and how it went."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from attnfit.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from attnfit.core import Report
    from attnfit.deploy.systemctl import Systemd
    from attnfit.deploy.unitplan import Asked, Planned
    from attnfit.inputs.units.unit import Unit


def judged(command: Any) -> Any:
    """The options by which a launch is judged, as those of `check`."""
    from attnfit.engines.entry import entry_of

    gpu = click.option("--gpu", default="auto", show_default=True, envvar="ATTNFIT_GPU", help="As for check.")
    number = click.IntRange(1, 4096)
    count = click.option("-n", "--count", type=number, envvar="ATTNFIT_COUNT", help="How many GPUs.")
    engine = click.option("--engine", envvar="ATTNFIT_ENGINE", help=f"For example {entry_of().example}.")
    return gpu(count(engine(command)))


def read(name: str, *, user: bool = False, root: Path | None = None) -> Unit:
    """The unit, as systemd reads it; what systemd passes over in its files is said."""
    from attnfit.inputs.units import read_unit

    unit = read_unit(name, user=user, root=root)
    for note in unit.notes:
        hint(f"warning: {note}", unit)
    return unit


def plan(ctx: click.Context, unit: Unit, asked: Asked) -> tuple[Report, Planned | None]:
    """What `check` says, and the drop-in; None where none is needed or none is known: that was said then."""
    from attnfit.deploy import unitplan
    from attnfit.inputs.units.launch import server_of

    launch = server_of(unit)
    report = unitplan.judge(unit, asked, launch)
    given: tuple[str, ...] = ctx.meta.get("launch", ())
    if given:
        return report, unitplan.from_words(unit, given, asked)
    step = unitplan.step_of(report)
    if report.verdict == "passes" or step is None:
        answer(ctx, unit, report, launch.notes)
        passes = report.verdict == "passes"
        why = "it passes; nothing is to be changed" if passes else "no command is known that would pass"
        click.echo(f"{unit.name}: {why}", err=True)
        return report, None
    planned = unitplan.from_step(unit, report, step, asked)
    from attnfit.report.text import verdict_line

    hint(verdict_line(report), unit)
    if planned.after.verdict != "passes":
        hint("with the change: " + verdict_line(planned.after), unit)
        raise UsageError("the change does not make it pass after all; nothing is written; this is a fault of attnfit")
    return report, planned


def agreed(
    ctx: click.Context,
    unit: Unit,
    planned: Planned,
    *,
    yes: bool,
    dry_run: bool,
    systemd: Systemd | None = None,
) -> bool:
    """Shows the change; whether it is to be made. systemd: it would be restarted, too."""
    from attnfit.deploy.systemctl import Systemd
    from attnfit.deploy.unitplan import diff
    from attnfit.report.text import verdict_line

    text = diff(planned)
    if text:
        say(ctx, text, unit)
    else:
        click.echo(f"{planned.place.shown} has it already", err=True)
    hint(f"change: {planned.why}" + (f"; gives up: {planned.gives_up}" if planned.gives_up else ""), unit)
    for note in planned.notes:
        hint(f"note: {note}", unit)
    hint("then: " + verdict_line(planned.after), unit)
    complaints = (systemd or Systemd(user=unit.user)).complaints(unit, {planned.place.shown: planned.text})
    if complaints is None:
        click.echo("not looked over by systemd-analyze verify, which is not installed here", err=True)
    elif complaints:
        said = hidden("; ".join(complaints), unit)
        raise UsageError(f"systemd-analyze verify says of it: {said}; nothing is written")
    else:
        click.echo("systemd-analyze verify: nothing to say of it", err=True)
    more = f", restart {unit.name} and watch it" if systemd is not None else ""
    return not dry_run and confirmed(f"write {planned.place.path}{more}", yes)


def confirmed(what: str, yes: bool) -> bool:
    """Asks; with --yes it need not. Raises UsageError where nobody can be asked."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"to {what} give --yes; nothing was done")
    return click.confirm(f"{what[0].upper()}{what[1:]}?", err=True)


def catch_up(unit: Unit, systemd: Systemd, *, yes: bool, dry_run: bool) -> bool:
    """Whether a unit that passes is to be started again, because something else runs; says why."""
    from attnfit.deploy import service, unitfile

    if systemd.why_not():
        return False
    why = service.behind(systemd.state(unit.name), unitfile.place_of(unit))
    if not why:
        return False
    hint(f"{unit.name}: but this is not what runs now: {why}", unit)
    return not dry_run and confirmed(f"reload systemd, restart {unit.name} and watch it", yes)


def carry_out(unit: Unit, systemd: Systemd, planned: Planned | None, wait: float) -> int:
    """planned None: the unit is started as it is."""
    from attnfit.deploy import service, unitfile
    from attnfit.deploy.address import address_of
    from attnfit.deploy.command import Launch
    from attnfit.deploy.unitwatch import Target, output_of
    from attnfit.engines.serving import serving_of
    from attnfit.inputs.units.launch import server_of
    from attnfit.report.redact import masked

    server = planned.launch if planned is not None else server_of(unit)
    place = planned.place if planned is not None else unitfile.place_of(unit)
    launch = Launch(server.words, unit.variables.values)
    serving = serving_of(launch.engine)
    target = Target(
        unit=unit,
        serving=serving,
        address=address_of(launch, serving),
        in_container=launch.in_container,
        wait=wait,
        file=output_of(unit),
    )
    text = planned.text if planned is not None else None
    done = service.change(systemd, target, place, text, say=lambda text: hint(text, unit))
    if done.healthy and done.watched is not None:
        click.echo(f"{unit.name} serves, after {done.watched.seconds:.0f} s")
        return 0
    why = done.trouble or (done.watched.why if done.watched is not None else "")
    click.echo(f"{unit.name} does not serve: {why}")
    if done.watched is not None:
        for line in service.cause_of(done.watched, server.command.original):
            hint(masked(line), unit)
        if target.file is None:
            hint(f"its log: journalctl{' --user' if unit.user else ''} -u {unit.name}", unit)
    for line in done.back:
        click.echo(line)
    return 1


def state(unit: Unit) -> dict[str, str]:
    """What systemd says of it, in words; nothing where it cannot be asked, which is said."""
    if unit.root is not None:
        return {}
    from attnfit.deploy.systemctl import Refused, Systemd

    systemd = Systemd(user=unit.user)
    if why := systemd.why_not():
        click.echo(f"{why}; the unit is read from its files", err=True)
        return {}
    try:
        state = systemd.state(unit.name)
    except Refused as error:
        click.echo(f"{error}", err=True)
        return {}
    return {
        "active": f"{state.active} ({state.sub})",
        "result": "" if state.result in ("success", "") else f"result {state.result}",
        "restarts": f"{state.restarts} restarts" if state.restarts else "",
        "files": "its files changed since systemd read them: systemctl daemon-reload" if state.stale else "",
    }


def answer(
    ctx: click.Context,
    unit: Unit,
    report: Report,
    notes: tuple[str, ...],
    *,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    from attnfit.report import json as json_report
    from attnfit.report import unit as unit_report
    from attnfit.report.text import render, verdict_line

    if as_json:
        say_json(ctx, {**json_report.as_dict(report), "unit": unit_report.as_dict(unit, {})}, unit)
        return
    if quiet:
        say(ctx, verdict_line(report) + "\n", unit)
        return
    said = "".join(f"note: {note}\n" for note in notes)
    say(ctx, "\n".join(unit_report.head(unit)) + "\n\n" + render(report) + said, unit)


def hidden(text: str, unit: Unit) -> str:
    from attnfit.deploy.unitplan import concealed

    values = [f"{name}={value}" for name, value in unit.variables.values.items()]
    return concealed(text, sys.argv[1:], values, *([*values, *each.argv] for each in unit.execs))


def say(ctx: click.Context, text: str, unit: Unit) -> None:
    from attnfit.report.plain import styled

    click.echo(styled(hidden(text, unit)), nl=False, color=ctx.find_root().color)


def say_json(ctx: click.Context, body: dict[str, Any], unit: Unit) -> None:
    from attnfit.deploy.unitplan import in_each_text
    from attnfit.report.plain import styled
    from attnfit.report.unit import dump

    click.echo(styled(dump(in_each_text(body, lambda text: hidden(text, unit)))), nl=False, color=ctx.find_root().color)


def hint(text: str, unit: Unit) -> None:
    from attnfit.report.plain import styled

    click.echo(styled(hidden(text, unit)), err=True)
