"""`attnfit where`, `which` and `diff`: one launch, asked of every GPU, of every release, of two of them."""

from __future__ import annotations

import gc
import os
from typing import Any

import click

from attnfit.commands import WithCommand, say
from attnfit.engines.entry import entry_of
from attnfit.errors import UsageError

EXAMPLE = entry_of()


@click.command(
    cls=WithCommand,
    epilog="Exit codes: 0 answered, 2 usage or internal error, 3 all unknown.",
    help="On which GPUs a launch starts, and on how many: attnfit where MODEL",
)
@click.argument("model", required=False)
@click.option("--gpu", "only", help="Only these: names, capabilities or kinds (workstation), with commas between.")
@click.option("-n", "--count", type=click.IntRange(1, 4096), help="How many GPUs. Default: 1, 2, 4, 8, 16 in turn.")
@click.option("--engine", envvar="ATTNFIT_ENGINE", help=f"For example {EXAMPLE.example}.")
@click.option("--offline", is_flag=True, help="Fetch nothing: no model files, no engine sources.")
@click.option("--all", "every", is_flag=True, help="Also the names of the GPUs on which it does not start.")
@click.option("--json", "as_json", is_flag=True, help="Every answer as JSON (docs/where.md).")
@click.option("--quiet", is_flag=True, help="Only the first line.")
@click.pass_context
def where(ctx: click.Context, /, model: str | None, **options: Any) -> None:
    from attnfit import api
    from attnfit.fleet.where import sensible
    from attnfit.fleet.where import where as walk
    from attnfit.gpus import catalogue, matching
    from attnfit.inputs.command import parse_command
    from attnfit.inputs.waiting import told
    from attnfit.report import where as report
    from attnfit.subject import read

    if options["as_json"] and options["quiet"]:
        raise UsageError("--json and --quiet each say what to print; give one of them")
    if options["offline"]:
        os.environ.update(ATTNFIT_OFFLINE="1", HF_HUB_OFFLINE="1")
    only, count = options["only"], options["count"]
    entries = matching(only) if only else catalogue()
    gc.disable()
    launch: tuple[str, ...] = ctx.meta.get("launch", ())
    command = parse_command(launch) if launch else None
    engine = api.engine_asked(options["engine"], command)
    release = api.release_asked(engine, options["engine"], command)
    subject = read(engine, command, model)
    asked = [(each.gpu, (count,) if count else sensible(subject, each.shared_memory)) for each in entries]
    with told(f"asking about {len(asked)} GPUs"):
        fleet = walk(subject, release, asked)
    if options["as_json"]:
        text = report.render_json(fleet)
    else:
        text = report.headline(fleet) + "\n" if options["quiet"] else report.render(fleet, every=options["every"])
    say(text)
    ctx.exit(fleet.exit_code)


@click.command(
    cls=WithCommand,
    epilog="Exit codes: 0 answered, 2 usage or internal error, 3 all unknown.",
    help="Which releases serve a launch, since when, until when: attnfit which MODEL --gpu h200x8",
)
@click.argument("model", required=False)
@click.option("--gpu", envvar="ATTNFIT_GPU", help="Name, alias or compute capability; h200x8; auto reads NVML.")
@click.option("-n", "--count", type=click.IntRange(1, 4096), envvar="ATTNFIT_COUNT", help="How many GPUs.")
@click.option("--engine", envvar="ATTNFIT_ENGINE", help="Only its releases; with ==X the nearest to X is looked for.")
@click.option("--fetch", is_flag=True, help="Also fetch engine sources of releases that answer by their own code.")
@click.option("--offline", is_flag=True, help="Fetch no model files either.")
@click.option("--json", "as_json", is_flag=True, help="Every answer as JSON (docs/where.md).")
@click.option("--quiet", is_flag=True, help="Only one line for each engine.")
@click.pass_context
def which(ctx: click.Context, /, model: str | None, gpu: str | None, count: int | None, **options: Any) -> None:
    from attnfit import api, engines
    from attnfit.fleet.which import which as walk
    from attnfit.inputs.command import parse_command
    from attnfit.inputs.gpu import read_gpus
    from attnfit.inputs.waiting import told
    from attnfit.report import which as report
    from attnfit.subject import read

    if options["as_json"] and options["quiet"]:
        raise UsageError("--json and --quiet each say what to print; give one of them")
    if options["fetch"] and options["offline"]:
        raise UsageError("--fetch and --offline contradict each other; leave one of them away")
    if not gpu:
        raise UsageError("no GPU: give --gpu NAME (attnfit gpus lists them), --gpu 12.0, or --gpu auto")
    on = read_gpus(gpu, count)
    if not options["fetch"]:  # so many releases would be fetched; of the model what decides is
        os.environ["ATTNFIT_OFFLINE"] = "1"
    if options["offline"]:
        os.environ["HF_HUB_OFFLINE"] = "1"
    gc.disable()
    launch: tuple[str, ...] = ctx.meta.get("launch", ())
    command = parse_command(launch) if launch else None
    named = options["engine"] or (command.engine if command else None)
    answers = []
    for name in [engines.split_spec(named)[0]] if named else engines.ENGINES:
        engine = api.engine_asked(named or name, command)
        asked = api.release_asked(engine, options["engine"], command, instead=True)
        subject = read(engine, command, model)
        with told(f"asking {len(engine.releases())} releases of {name}"):
            answers.append(walk(subject, asked.release.version, on))
    if options["as_json"]:
        text = report.render_json(answers, on)
    else:
        text = report.quiet(answers) if options["quiet"] else report.render(answers, on)
    say(text)
    ctx.exit(report.exit_code(answers))


DIFF = f"attnfit diff {EXAMPLE.engine} {' '.join(EXAMPLE.example_releases)} MODEL --gpu h200x8"


@click.command(
    cls=WithCommand,
    epilog="Exit codes: 0 passes, 1 refused or breaks, 2 usage or internal error, 3 unknown.",
    help=f"What changes for a launch between two releases: {DIFF}",
)
@click.argument("words", nargs=-1, metavar="ENGINE OLD NEW [MODEL]")
@click.option("--gpu", required=True, envvar="ATTNFIT_GPU")
@click.option("-n", "--count", type=click.IntRange(1, 4096))
@click.option("--json", "as_json", is_flag=True)
@click.pass_context
def diff(ctx: click.Context, /, words: tuple[str, ...], **options: Any) -> None:
    from attnfit.api import check as answer
    from attnfit.report import difference

    launch: tuple[str, ...] = ctx.meta.get("launch", ())
    engine, old, new, model = _two_releases(words)
    both = [
        answer(
            launch,
            gpu=options["gpu"],
            count=options["count"],
            model=model,
            engine=f"{engine}=={version}",
            planned=False,
            instead=True,
        )
        for version in (old, new)
    ]
    say(difference.render(both[0], both[1], as_json=options["as_json"]))
    ctx.exit(both[1].exit_code)


def _two_releases(words: tuple[str, ...]) -> tuple[str, str, str, str | None]:
    """`NAME OLD NEW [MODEL]`, or `NAME==OLD NAME==NEW [MODEL]`: engine, old, new, model."""
    if words and "==" in words[0]:
        words = (words[0].partition("==")[0], words[0].partition("==")[2], *words[1:])
    if not 3 <= len(words) <= 4:
        raise UsageError(f"give an engine, two releases and a model: {DIFF}")
    engine = words[0].strip()
    old, new = (word.removeprefix(f"{engine}==").strip() for word in words[1:3])
    return engine, old, new, words[3] if len(words) == 4 else None


COMMANDS: dict[str, Any] = {"where": where, "which": which, "diff": diff}
