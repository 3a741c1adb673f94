"""`attnfit gpus --holders` and `attnfit free`: who holds the GPUs, and an end to what an engine left behind."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from attnfit.commands import say
from attnfit.errors import UsageError

if TYPE_CHECKING:
    from attnfit.deploy.left import Left
    from attnfit.inputs.processes import Process

WATCHER_S = 10.0  # until who watched a run has noted its end


def holders(ctx: click.Context, *, as_json: bool) -> None:
    from attnfit.inputs.holders import read
    from attnfit.report import holders as report

    found = read()
    say(report.render_json(found) if as_json else report.render(found))


@click.command(epilog="Exit codes: 0 nothing is left, 1 something could not be ended, 2 usage or internal error.")
@click.option("--run", "run_id", metavar="ID", help="Of this run of `attnfit run`, also while it serves.")
@click.option("--unit", metavar="NAME", help="Of this systemd unit, which must not be running.")
@click.option("--user", is_flag=True, help="The unit is one of your own manager.")
@click.option("--yes", is_flag=True, help="End them without asking.")
@click.option("--dry-run", is_flag=True, help="Only show them.")
@click.option(
    "--grace", type=click.FloatRange(min=0), default=15.0, show_default=True, help="Seconds from TERM to KILL."
)
@click.pass_context
def free(ctx: click.Context, /, run_id: str | None, unit: str | None, yes: bool, dry_run: bool, **options: Any) -> None:
    """End what an engine left behind: of runs that attnfit recorded, or of one unit. Shows them first."""
    from attnfit.deploy import records
    from attnfit.report.holders import table

    if not sys.platform.startswith("linux"):
        raise UsageError("processes are told apart by /proc, which this machine has not; attnfit free is for Linux")
    if run_id == "" or unit == "":
        raise UsageError("--run and --unit each name what is to be ended; an empty name is none")
    if run_id and unit:
        raise UsageError("--run and --unit each name what is to be ended; give one of them")
    found = [_of_unit(unit, options["user"])] if unit else _of_runs(run_id)
    found = [each for each in found if each.processes or (run_id and each.attnfit)]
    if not found:
        what = unit or (f"run {run_id}" if run_id else "the runs that attnfit recorded")
        click.echo(f"nothing is left of {what}")
        return
    for each in found:
        say(f"{each.origin}\n" + table(_all_of(each)))
    everyone = [process for each in found for process in _all_of(each)]
    strangers = sorted({process.user for process in everyone if process.uid != os.geteuid()})
    if strangers:
        click.echo(f"some are not yours, but of: {', '.join(strangers)}", err=True)
    if dry_run:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("to end them give --yes; nothing was done")
        many = f"these {len(everyone)} processes" if len(everyone) > 1 else "this process"
        if not click.confirm(f"End {many}?", err=True):
            click.echo("nothing was done", err=True)
            ctx.exit(1)
    run = records.find(run_id) if run_id else None
    if run is not None:
        records.tell(run)
    processes = [process for each in found for process in each.processes]
    code = _end(processes, options["grace"], lambda: _look_again(found, unit, options["user"]))
    if run is not None and not records.unwatched(run, WATCHER_S):
        click.echo(f"attnfit, which watches it, does not end: {run.attnfit[0]}")
        code = 1
    ctx.exit(code)


def _all_of(left: Left) -> list[Process]:
    """With the attnfit that watches them and has them started again: it ends first."""
    return [*([left.attnfit] if left.attnfit is not None else []), *left.processes]


def _of_unit(name: str, user: bool) -> Left:
    """Raises UsageError while the unit runs: systemd ends that, and may start it again."""
    from attnfit.deploy.left import of_unit
    from attnfit.deploy.systemctl import Systemd
    from attnfit.inputs.units.paths import unit_name

    name, cgroup = unit_name(name), ""
    systemd = Systemd(user=user)
    if why := systemd.why_not():
        click.echo(f"{why}; what is in its cgroup is taken as left behind", err=True)
    else:
        state = systemd.state(name)
        if state.on:
            end = f"systemctl{' --user' if user else ''} stop {name}"
            raise UsageError(f"{name} is {state.active}; {end} ends it, and free what is then left of it")
        cgroup = state.cgroup
    return of_unit(name, user=user, cgroup=cgroup)


def _of_runs(run_id: str | None) -> list[Left]:
    """Of one run whatever is there; of all of them what nobody watches and what was not left running on purpose."""
    from attnfit.deploy import records
    from attnfit.deploy.left import of_run

    if run_id:
        return [of_run(records.find(run_id))]
    found = []
    for run in records.read_all():
        each = of_run(run)
        detached = run.detached and run.alive
        if each.processes and each.attnfit is None and not detached:
            found.append(each)
        elif each.processes:
            why = "is watched by attnfit" if each.attnfit is not None else "was detached"
            click.echo(f"{each.origin} {why} and stays; attnfit free --run {run.id} ends it", err=True)
    return found


def _look_again(found: list[Left], unit: str | None, user: bool) -> list[Process]:
    from attnfit.deploy import records
    from attnfit.deploy.left import of_run

    if unit:
        return list(_of_unit(unit, user).processes)
    ids = {each.origin.removeprefix("run ") for each in found}
    return [process for run in records.read_all() if run.id in ids for process in of_run(run).processes]


def _end(everyone: list[Process], grace: float, again: Any) -> int:
    from attnfit.deploy.free import end
    from attnfit.deploy.memory import used
    from attnfit.report.holders import who

    before = used()
    done = end(everyone, grace=grace, again=again)
    for how, what in (("term", "ended"), ("kill", "killed"), ("gone", "had ended already")):
        if count := sum(each.how == how for each in done):
            click.echo(f"{what}: {count}")
    for each in done:
        if each.how == "refused":
            click.echo(f"not yours to end: {each.process.pid} {who(each.process)}; run again as root")
        elif each.how == "stuck":
            click.echo(f"not to be ended, it waits in a driver: {each.process.pid} {who(each.process)}")
    for number, (then, now) in enumerate(zip(before.mib, used().mib, strict=False)):
        if then - now > 1:
            click.echo(f"GPU {number}: {(then - now) / 1024:.1f} GiB free again")
    return 0 if all(each.over for each in done) else 1


COMMANDS: dict[str, Any] = {"free": free}
