"""The command line. stdout is the answer, stderr is progress and hints; every import that costs is local."""

from __future__ import annotations

import errno
import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnfit import __version__, cli_doctor, cli_explain, cli_fleet, cli_free, cli_run
from attnfit.commands import LazyGroup, WithCommand, open_closed, say
from attnfit.engines.entry import entry_of
from attnfit.errors import AttnfitError, UsageError

if TYPE_CHECKING:
    from attnfit.kernel_check import Wanted

EXAMPLE = entry_of()  # the engine that is taken where none is named
EPILOG = "Exit codes: 0 passes, 1 refused or breaks, 2 usage or internal error, 3 unknown."


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@click.version_option(__version__, message="attnfit %(version)s")
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    envvar="ATTNFIT_COLOR",
    help="Default: auto.",
)
@click.pass_context
def cli(ctx: click.Context, color: str) -> None:
    """Says before any weight loads which attention backend will serve a model."""
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    ctx.color = {"always": True, "never": False}.get(color, False if plain else None)


_NOT_IN_BATCHES = {
    "--all": "every",
    "--strict": "strict",
    "--witness": "witness",
    "--kernels": "kernels",
    "--kernels-from": "kernels_from",
}
_FORMS = {"--json": "as_json", "--quiet": "quiet", "--fix": "fix"}


@cli.command(
    cls=WithCommand,
    epilog=EPILOG,
    help=f"Check a launch before it loads: attnfit check --gpu h200x8 -- {EXAMPLE.start} ...",
)
@click.argument("model", required=False)
@click.option("--gpu", envvar="ATTNFIT_GPU", help="Name, alias or compute capability; h200x8; auto reads NVML.")
@click.option("-n", "--count", type=click.IntRange(1, 4096), envvar="ATTNFIT_COUNT", help="How many GPUs.")
@click.option("--engine", envvar="ATTNFIT_ENGINE", help=f"For example {EXAMPLE.example}.")
@click.option("--env", "facts", multiple=True, metavar="FACT=yes|no", help="An environment fact that differs.")
@click.option("--witness", metavar="SOURCE", help="Answer from this engine source instead of the rule book.")
@click.option("--kernels", is_flag=True, help="Also compile the engine's Triton kernels (needs attnfit[kernels]).")
@click.option("--kernels-from", metavar="SOURCE", help="Like --kernels, of this engine source.")
@click.option("--offline", is_flag=True, help="Fetch nothing: no model files, no engine sources.")
@click.option("--json", "as_json", is_flag=True, help="The whole answer as JSON (docs/json.md).")
@click.option("--quiet", is_flag=True, help="Only the verdict line.")
@click.option("--fix", is_flag=True, help="Only the command to run instead.")
@click.option("--all", "every", is_flag=True, help="Also the reasons of backends not tried by themselves.")
@click.option("--strict", is_flag=True, help="A launch that may break (memory, kernels, known hazards) exits 1, not 0.")
@click.option("--batch", metavar="FILE", help="One JSON object a line, answered one a line; - reads stdin.")
@click.pass_context
def check(ctx: click.Context, /, model: str | None, batch: str | None, **options: Any) -> None:
    launch: tuple[str, ...] = ctx.meta.get("launch", ())
    facts = _facts(options["facts"])
    if options["offline"]:
        os.environ.update(ATTNFIT_OFFLINE="1", HF_HUB_OFFLINE="1")
    forms = [flag for flag, name in _FORMS.items() if options[name]]
    if len(forms) > 1:
        raise UsageError(f"{forms[0]} and {forms[1]} each say what to print; give one of them")
    if batch is not None:
        from attnfit.batch import run

        if model or launch:
            raise UsageError("--batch reads its launches from the file; leave MODEL and the command away")
        for flag, name in {**_FORMS, **_NOT_IN_BATCHES}.items():
            if options[name] and flag != "--json":
                raise UsageError(f"--batch answers every line whole, as JSON, from the rule books; leave {flag} away")
        gpu, count, engine = (options[name] for name in ("gpu", "count", "engine"))
        run(batch, sys.stdout.buffer, gpu=gpu, count=count, engine=engine, env=facts)
        return
    if not options["gpu"]:
        raise UsageError("no GPU: give --gpu NAME (attnfit gpus lists them), --gpu 12.0, or --gpu auto")
    gc.disable()  # one answer and gone: collecting would cost a tenth of it
    from attnfit.api import check as answer

    report = answer(
        launch,
        gpu=options["gpu"],
        count=options["count"],
        model=model,
        engine=options["engine"],
        env=facts,
        witness=options["witness"],
        planned=not options["quiet"],
        kernels=_kernels(options["kernels"], options["kernels_from"], options["witness"]),
    )
    if options["as_json"]:
        from attnfit.report.json import render as render_json

        say(render_json(report).decode())
    elif options["fix"]:
        from attnfit.report.planned import fix

        command, hint = fix(report)
        say(command) if command else None
        _hint(hint)
    else:
        from attnfit.report.text import render, verdict_line

        text = verdict_line(report) + "\n" if options["quiet"] else render(report, every=options["every"])
        say(text)
        if options["quiet"]:  # without a word a pass would seem to be one of the kernels too
            _hint("".join(f"kernels: {why}\n" for why in report.launch.kernels_unknown[:1]))
    ctx.exit(1 if options["strict"] and report.exit_code == 0 and report.may_break else report.exit_code)


@cli.command(epilog="Exit codes: 0 understood, 2 usage or internal error, 3 unknown, at least in part.")
@click.argument("model")
@click.option(
    "--engine", envvar="ATTNFIT_ENGINE", help=f"For example {EXAMPLE.example}. Default: the newest rule book."
)
@click.option("--headers/--no-headers", default=True, show_default=True, help="Read the headers of the weight files.")
@click.option("--json", "as_json", is_flag=True, help="Everything as JSON (docs/json.md).")
@click.pass_context
def model(ctx: click.Context, /, model: str, engine: str | None, headers: bool, as_json: bool) -> None:
    """Show what is understood of a model, and which key or file says so."""
    from attnfit.report import model as report
    from attnfit.understand import describe

    found = describe(model, engine=engine, headers=headers)
    say(report.render_json(found) if as_json else report.render(found))
    ctx.exit(found.exit_code)


@cli.command()
@click.option("--holders", is_flag=True, help="Instead, who holds each GPU of this machine.")
@click.option("--json", "as_json", is_flag=True)
@click.pass_context
def gpus(ctx: click.Context, /, holders: bool, as_json: bool) -> None:
    """List the GPUs of the catalogue."""
    from attnfit.report import lists

    if holders:
        cli_free.holders(ctx, as_json=as_json)
    else:
        click.echo(lists.gpus(as_json), nl=False)


@cli.command()
@click.option("--json", "as_json", is_flag=True)
def engines(as_json: bool) -> None:
    """List the engine releases that have a rule book."""
    from attnfit.report import lists

    click.echo(lists.engines(as_json), nl=False)


@cli.command()
@click.option("--engine", default=EXAMPLE.engine, envvar="ATTNFIT_ENGINE", show_default=True)
@click.option("--json", "as_json", is_flag=True)
def backends(engine: str, as_json: bool) -> None:
    """List the attention backends of a release and where each is defined."""
    from attnfit.report import lists

    click.echo(lists.backends(engine, as_json), nl=False)


@cli.command()
@click.argument("source")
@click.option(
    "--questions",
    type=click.IntRange(min=1000),
    default=20_000,
    show_default=True,
    help="Fresh random questions to replay, where a rule book is written.",
)
@click.option("--seed", default=None, type=int, help="Default: a new one each time.")
@click.option("--folder", type=click.Path(path_type=Path), help="Default: the user's own books.")
@click.option("--offline", is_flag=True, help="Only sources already fetched.")
def learn(source: str, questions: int, seed: int | None, folder: Path | None, offline: bool) -> None:
    """Make a release known: ENGINE==X, a wheel, an sdist, a source tree, or installed."""
    from attnfit.engines import engine_of_source

    engine = engine_of_source(source)
    click.echo(engine.learn(source, folder=folder, questions=questions, seed=seed, offline=offline))


@cli.group(cls=LazyGroup, module="attnfit.cli_kernels")
def kernels() -> None:
    """Whether Triton kernels fit a GPU (needs attnfit[kernels], no GPU)."""


@cli.group(cls=LazyGroup, module="attnfit.cli_unit")
def unit() -> None:
    """A systemd service that starts an engine: look at it, check it, put it right."""


@cli.group(cls=LazyGroup, module="attnfit.cli_compose")
def compose() -> None:
    """A service of a compose file that starts an engine: check it, put it right."""


for _name, _command in {
    **cli_explain.COMMANDS,
    **cli_doctor.COMMANDS,
    **cli_fleet.COMMANDS,
    **cli_run.COMMANDS,
    **cli_free.COMMANDS,
}.items():
    cli.add_command(_command, _name)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell, to be sourced."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(cli, {}, "attnfit", "_ATTNFIT_COMPLETE").source())


def _kernels(asked: bool, source: str | None, witness: str | None) -> Wanted | None:
    """Whether and how `check` asks about kernels: of `source`, else of the witness's, else of the release itself."""
    if not (asked or source):
        return None
    from attnfit.cli_kernels import progress_on_stderr
    from attnfit.kernel_check import Wanted

    return Wanted(source=source or witness, progress=progress_on_stderr())


def _facts(words: tuple[str, ...]) -> dict[str, bool]:
    facts: dict[str, bool] = {}
    for word in words:
        for item in word.split(","):
            name, equals, value = item.partition("=")
            if not name or value.lower() not in ("yes", "no", "true", "false", "1", "0") or not equals:
                raise UsageError(f"--env {item!r}: write FACT=yes or FACT=no, for example flashinfer=no")
            said = value.lower() in ("yes", "true", "1")
            if facts.setdefault(name.strip(), said) != said:
                raise UsageError(f"--env says both yes and no of {name.strip()}; give one of them")
    return facts


def main() -> None:
    """Entry point: every failure is one sentence and an exit code, never a traceback."""
    open_closed()
    try:
        from attnfit.settings import defaults

        code = cli.main(prog_name="attnfit", standalone_mode=False, default_map=defaults())
        sys.exit(code or 0)
    except AttnfitError as error:
        _fail(str(error), error.exit_code)
    except click.exceptions.Abort:
        _fail("interrupted", 130)
    except click.ClickException as error:
        _show(error)
        if isinstance(error, click.NoSuchOption) and "--" not in sys.argv:
            click.echo(
                f"hint: the launch command goes behind --, as in: attnfit check --gpu h200 -- {EXAMPLE.start} ...",
                err=True,
            )
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except Exception as error:
        if os.environ.get("ATTNFIT_DEBUG"):
            raise
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF):
            _fail(f"the answer cannot be written ({error.strerror}); give it a place with room", 2)
        _fail(
            f"internal error, {type(error).__name__}: {error}; this is a fault of attnfit: run again with "
            "ATTNFIT_DEBUG=1 and report what it prints",
            2,
        )


def _show(error: click.ClickException) -> None:
    """click's own words for a wrong option, which repeat it."""
    from io import StringIO

    from attnfit.inputs.secrets import clean
    from attnfit.report.plain import printable

    said = StringIO()
    error.show(said)
    click.echo(printable(clean(said.getvalue(), sys.argv[1:])), err=True, nl=False)


def _hint(text: str) -> None:
    from attnfit.inputs.secrets import clean
    from attnfit.report.plain import printable

    click.echo(printable(clean(text, sys.argv[1:])), err=True, nl=False)


def _fail(message: str, code: int) -> None:
    from attnfit.inputs.secrets import clean
    from attnfit.report.plain import printable

    click.echo(click.style("error: ", fg="red", bold=True) + printable(clean(message, sys.argv[1:])), err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
