"""`attnfit explain` and `attnfit hazards`: what broke a launch, read from its log, and what is known to break one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from attnfit.commands import WithCommand, say
from attnfit.errors import UsageError, did_you_mean

_ID = re.compile(r"(?i)AF-?(\d{3})")


@click.command(
    cls=WithCommand,
    epilog="Exit codes: 0 cause found, or no failure; 2 usage or internal error; 3 no cause found.",
)
@click.argument("log")
@click.option("--gpu", help="The GPU, where the log does not name it, for checking the corrected commands.")
@click.option("-n", "count", type=int, help="How many GPUs.")
@click.option("--json", "as_json", is_flag=True, help="The whole answer as JSON (docs/json.md).")
@click.option("--quiet", is_flag=True, help="Only the line that begins `Cause`.")
@click.pass_context
def explain(ctx: click.Context, /, log: str, gpu: str | None, count: int | None, as_json: bool, quiet: bool) -> None:
    """Say what broke first, read from LOG: a file, gzip, or - for what is piped in. AF123 explains one hazard.

    The launch command, where the log does not hold it, goes behind --; the corrected one comes back.
    """
    if as_json and quiet:
        raise UsageError("--json and --quiet each say what to print; give one of them")
    launch: tuple[str, ...] = ctx.meta.get("launch", ())
    number = _ID.fullmatch(log)
    if number is not None and not Path(log).exists():
        if launch:
            raise UsageError(
                f"a hazard is explained without a command; to foresee it: attnfit check -- {launch[0]} ..."
            )
        _one(ctx, f"AF{number[1]}", as_json, quiet)
        return
    from attnfit.explain import explain as answer_of
    from attnfit.explain import follow, marks
    from attnfit.inputs.gpu import read_gpus
    from attnfit.inputs.log import Count, open_log, read_lines
    from attnfit.report import explain as report

    if gpu is not None:
        read_gpus(gpu, count)  # a name that is none is said before the log is read
    read = Count()
    with open_log(log) as file:
        stories = follow(read_lines(file, marks(), read), read)
    answer = answer_of(stories, launch, read.cut)
    if not quiet:
        from attnfit.remedied import checked

        answer = checked(answer, gpu, count)
    if as_json:
        text = report.render_json(answer)
    else:
        text = report.verdict_line(answer) + "\n" if quiet else report.render(answer)
    say(text)
    ctx.exit(answer.exit_code)


@click.command(epilog="attnfit explain AF123 prints one in full.")
@click.option("--engine", help="Only those of one engine, and those of none.")
@click.option("--kind", help="Only those of one kind.")
@click.option("--json", "as_json", is_flag=True, help="Whole records as JSON (docs/json.md).")
@click.pass_context
def hazards(ctx: click.Context, /, engine: str | None, kind: str | None, as_json: bool) -> None:
    """List what is known to break a launch after its backend was chosen, or before."""
    from attnfit.engines import ENGINES
    from attnfit.hazards import catalogue
    from attnfit.hazards.record import KINDS
    from attnfit.report import hazards as report

    if engine is not None and engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r}{did_you_mean(engine, ENGINES)}; valid: {', '.join(ENGINES)}")
    if kind is not None and kind not in KINDS:
        raise UsageError(f"unknown kind {kind!r}{did_you_mean(kind, KINDS)}; valid: {', '.join(KINDS)}")
    records = [
        record
        for record in catalogue().records
        if (kind is None or record.kind == kind) and (engine is None or record.engine in ("", engine))
    ]
    say(report.render_list_json(records) if as_json else report.render_list(records))


def _one(ctx: click.Context, id: str, as_json: bool, quiet: bool) -> None:
    from attnfit.hazards import find
    from attnfit.report import hazards as report

    record = find(id)
    text = report.render_json(record) if as_json else report.render(record)
    say(text.partition("\n")[0] + "\n" if quiet else text)


COMMANDS: dict[str, Any] = {"explain": explain, "hazards": hazards}
