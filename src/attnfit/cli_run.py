"""`attnfit run` and `attnfit runs`: start an engine, watch it until it serves, and find it again."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from attnfit.commands import WithCommand
from attnfit.engines.entry import entry_of
from attnfit.errors import UsageError, did_you_mean

EXAMPLE = entry_of()


@click.command(
    cls=WithCommand,
    epilog="Exit codes: 0 it served and was ended as asked, or, with --detach, serves; 1 it was refused or failed; "
    "2 usage or internal error; 129, 130 and 143 interrupted before it served, by SIGHUP, SIGINT and SIGTERM.",
    help=f"Start a launch and watch it until it serves: attnfit run -- {EXAMPLE.start} ...",
)
@click.option("--gpu", envvar="ATTNFIT_GPU", help="For the check before. Default: the GPUs of this machine.")
@click.option("-n", "--count", type=click.IntRange(1, 4096), envvar="ATTNFIT_COUNT", help="How many GPUs.")
@click.option("--engine", envvar="ATTNFIT_ENGINE", help=f"For example {EXAMPLE.example}.")
@click.option("--check/--no-check", default=True, show_default=True, help="Check the launch before it is started.")
@click.option(
    "--pivot/--no-pivot",
    default=None,
    help="Start another command where the check refuses this one; or none ever. Default: only after a known failure.",
)
@click.option("--attempts", type=click.IntRange(1, 100), default=3, show_default=True, help="Starts in all.")
@click.option(
    "--timeout",
    "timeouts",
    multiple=True,
    metavar="[STAGE=]SECONDS",
    help="Without progress in a stage; without a stage: in each. --dry-run lists them.",
)
@click.option(
    "--grace", type=click.FloatRange(0, 3600), default=30, show_default=True, help="Seconds from asking to killing."
)
@click.option("--keep-hung", is_flag=True, help="Say that it hangs, and leave it.")
@click.option("--detach", is_flag=True, help="Leave it alone once it serves; attnfit runs finds it.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and start nothing.")
@click.option("--json", "as_json", is_flag=True, help="Events as JSON lines on stdout; the engine's output on stderr.")
@click.pass_context
def run(ctx: click.Context, /, **options: Any) -> None:

    launch: tuple[str, ...] = ctx.meta.get("launch", ())
    if not launch:
        raise UsageError(f"no command: give the launch behind --, as in attnfit run -- {EXAMPLE.start} MODEL")
    from attnfit.deploy.checked import About
    from attnfit.deploy.pivot import Wishes
    from attnfit.deploy.pivot import run as start
    from attnfit.deploy.signals import Signals
    from attnfit.deploy.stream import Through
    from attnfit.deploy.watch import Settings
    from attnfit.report import run as report

    as_json = options["as_json"]
    color = ctx.find_root().color
    stream = sys.stdout if as_json else sys.stderr
    signals = Signals()
    through = Through(stream.fileno(), lambda: signals.count > 0)  # whoever reads it may not take anything any more

    def tell(event: Mapping[str, Any]) -> None:
        text = report.render_json(event) if as_json else report.render(event)
        if not (stream.isatty() if color is None else color):
            text = click.unstyle(text)
        through.write(text.encode("utf-8", "replace"))

    wishes = Wishes(
        about=About(check=options["check"], gpu=options["gpu"], count=options["count"], engine=options["engine"]),
        settings=Settings(
            patience=_patience(options["timeouts"], launch),
            grace=options["grace"],
            keep_hung=options["keep_hung"],
            out=2 if as_json else 1,
        ),
        pivot=options["pivot"],
        attempts=options["attempts"],
        detach=options["detach"],
        dry_run=options["dry_run"],
    )
    ctx.exit(start(launch, wishes, tell, signals=signals))


def _patience(words: tuple[str, ...], launch: tuple[str, ...]) -> dict[str, float]:
    from attnfit.deploy.stages import FIRST_REQUEST, SERVING
    from attnfit.engines.serving import serving_of
    from attnfit.inputs.command import parse_command

    found: dict[str, float] = {}
    for word in words:
        stage, equals, value = word.rpartition("=")
        try:
            seconds = float(value)
        except ValueError:
            raise UsageError(f"--timeout {word!r}: write SECONDS or STAGE=SECONDS") from None
        if not 0 < seconds < float("inf"):
            raise UsageError(f"--timeout {word!r}: give more than 0 seconds")
        known = [each.name for each in (*serving_of(parse_command(launch).engine).stages, FIRST_REQUEST, SERVING)]
        if equals and stage not in known:
            hint = did_you_mean(stage, known)
            raise UsageError(f"--timeout {word!r}: no stage {stage!r}{hint}; valid: {', '.join(known)}")
        found[stage] = seconds
    return found


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Whole records as JSON (docs/run.md).")
@click.pass_context
def runs(ctx: click.Context, /, as_json: bool) -> None:
    """List what was started with attnfit run, and what is still there."""

    if ctx.invoked_subcommand is None:
        from attnfit.deploy.records import read_all
        from attnfit.report import run as report

        found = read_all()
        click.echo(report.render_runs_json(found) if as_json else report.render_list(found), nl=False)


@runs.command()
@click.argument("run_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True)
def show(run_id: str, as_json: bool) -> None:
    """Show the attempts of one run, and why they ended."""
    from attnfit.deploy.records import find
    from attnfit.report import run as report

    found = find(run_id)
    click.echo(report.render_runs_json([found]) if as_json else report.render_run(found), nl=False)


@runs.command()
@click.argument("run_id", metavar="ID")
@click.option(
    "--grace", type=click.FloatRange(0, 3600), default=40, show_default=True, help="Seconds until it is killed."
)
@click.pass_context
def stop(ctx: click.Context, /, run_id: str, grace: float) -> None:
    """End what is there of a run: its own processes, known by number and time of start, never by name."""
    from attnfit.deploy.records import find
    from attnfit.deploy.records import stop as end

    found = find(run_id)
    if not found.alive:
        click.echo(f"nothing of run {found.id} is there ({found.state})", err=True)
        return
    left = list(end(found, grace))
    for each in left:
        click.echo(f"process {each.pid} could not be ended", err=True)
    if not left:
        click.echo(f"run {found.id} is ended", err=True)
    sys.stdout.flush()
    ctx.exit(1 if left else 0)


COMMANDS: dict[str, Any] = {"run": run, "runs": runs}
