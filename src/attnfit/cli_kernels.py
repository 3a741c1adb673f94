"""`attnfit kernels ...`: whether Triton kernels fit a GPU, asked of a child process that has torch and Triton."""

from __future__ import annotations

import sys
from typing import Any

import click
from click.core import ParameterSource

from attnfit.commands import WithCommand
from attnfit.errors import UnknownAnswer, UsageError
from attnfit.inputs import kernel_fit


@click.command(
    cls=WithCommand,
    epilog="Exit codes: 0 all fit, 1 one does not, 2 usage or internal error, 3 unknown (torch or Triton missing).",
)
@click.argument("model", required=False)
@click.option("--engine", envvar="ATTNFIT_ENGINE", help="Of a launch: NAME==VERSION, if its command does not say.")
@click.option("--source", help="Of a launch: a tree or wheel of the engine. Default: as installed or published.")
@click.option("--fla", metavar="DIR", help="Of a MODEL: the kernels of flash-linear-attention, unpacked there.")
@click.option("--gpu", envvar="ATTNFIT_GPU", help="Name, alias or compute capability; auto reads NVML.")
@click.option("--cc", "capabilities", multiple=True, metavar="X.Y", help="A compute capability; may be repeated.")
@click.option("--python", help=f"The Python that has torch and Triton. Default: {kernel_fit.VARIABLE}, else this one.")
@click.option("--json", "as_json", is_flag=True, help="The whole answer as JSON (docs/json.md).")
@click.option("--quiet", is_flag=True, help="Only the verdict line.")
@click.option("--all", "every", is_flag=True, help="Every combination, a line each; takes minutes the first time.")
@click.pass_context
def fit(
    ctx: click.Context, /, model: str | None, gpu: str | None, capabilities: tuple[str, ...], **options: Any
) -> None:
    """Compile Triton kernels for a GPU that need not be here.

    attnfit's own; without --gpu and --cc: for every compute capability they are made for. With a MODEL, or a launch
    command behind --: those of the engine's own that the launch starts, on that --gpu.
    """
    from attnfit.report import kernels as report

    if options["as_json"] and options["quiet"]:
        raise UsageError("--json and --quiet each say what to print; give one of them")
    if gpu and capabilities:
        if ctx.get_parameter_source("gpu") is ParameterSource.COMMANDLINE:
            raise UsageError("--gpu and --cc both say which GPU; give one of them")
        gpu = None
    launch: tuple[str, ...] = ctx.meta.get("launch", ())
    about: dict[str, Any] = {"every": options["every"]}
    module = kernel_fit.OURS
    if options["fla"]:
        module, about = kernel_fit.FLA, _linear_attention(model, options["fla"])
    elif model or launch:
        _fit_of_launch(ctx, launch, model, gpu or ",".join(capabilities), options)
        return
    if options["source"]:
        raise UsageError("--source is the engine's of a launch; name a MODEL, or give the launch command behind --")
    if options["engine"] and ctx.get_parameter_source("engine") is ParameterSource.COMMANDLINE and not options["fla"]:
        raise UsageError("--engine asks about a launch's kernels; give MODEL, or the launch command behind --")
    wanted = _of_gpus(gpu) if gpu else list(dict.fromkeys(capabilities)) or list(kernel_fit.CAPABILITIES)
    answer = kernel_fit.ask(wanted, module=module, about=about, python=options["python"], progress=progress_on_stderr())
    if options["as_json"]:
        text = report.render_json(answer, wanted)
    elif options["quiet"]:
        text = report.verdict_line(answer) + "\n"
    else:
        text = report.render(answer, wanted, every=options["every"])
    from attnfit.report.plain import styled

    click.echo(styled(text), nl=False, color=ctx.find_root().color)
    ctx.exit(report.exit_code(answer))


def _linear_attention(model: str | None, folder: str) -> dict[str, Any]:
    """What is asked of flash-linear-attention in `folder`: the linear attention of a model, on one GPU."""
    from pathlib import Path

    from attnfit.inputs.model import read_model

    if model is None:
        raise UsageError("--fla needs a MODEL whose linear attention is asked about")
    if not (Path(folder) / "fla" / "ops").is_dir():
        raise UsageError(f"{folder} holds no fla/ops; give the folder that fla-core was unpacked or installed into")
    config = read_model(model).config
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else config
    about = {f"linear_{name}": text.get(f"linear_{name}") for name in kernel_fit.LINEAR_SIZES}
    if missing := [name for name, value in about.items() if not isinstance(value, int)]:
        raise UnknownAnswer(f"{model} has no {missing[0]}: it has no gated delta rule that is known")
    dtype = str(text.get("dtype") or text.get("torch_dtype") or "bfloat16")
    state = text.get("mamba_ssm_dtype") or "float32"
    return {"root": str(Path(folder).resolve()), "dtype": dtype, "state_dtype": state, **about}


def _fit_of_launch(
    ctx: click.Context, launch: tuple[str, ...], model: str | None, gpu: str, options: dict[str, Any]
) -> None:
    """The engine's own kernels, as a launch starts them."""
    from attnfit.api import check
    from attnfit.kernel_check import Wanted
    from attnfit.report import launch_kernels
    from attnfit.report.plain import styled

    if not gpu:
        raise UsageError("no GPU: give --gpu NAME (attnfit gpus lists them) or --cc 12.0")
    report = check(
        launch,
        gpu=gpu,
        model=model,
        engine=options["engine"],
        planned=False,
        kernels=Wanted(source=options["source"], python=options["python"], progress=progress_on_stderr()),
    )
    if options["as_json"]:
        text = launch_kernels.render_json(report)
    else:
        text = launch_kernels.render(report, options["every"], quiet=options["quiet"])
    click.echo(styled(text), nl=False, color=ctx.find_root().color)
    ctx.exit(launch_kernels.exit_code(report))


def _of_gpus(spec: str) -> list[str]:
    """The compute capabilities of the GPUs named, each once."""
    from attnfit.inputs.gpu import read_gpus

    found = []
    for gpu, _ in read_gpus(spec).gpus:
        if gpu.capability is None:
            raise UnknownAnswer(f"{gpu.name} has no CUDA compute capability that is known; Triton's answer is unknown")
        found.append(str(gpu.capability))
    return list(dict.fromkeys(found))


def progress_on_stderr() -> kernel_fit.Progress | None:
    """A line that counts, on a terminal, from the first second on."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    from time import monotonic

    started = monotonic()

    def tell(done: int, of: int) -> None:
        if monotonic() - started > 1:
            ending = "\r\x1b[K" if done == of else ""
            click.echo(f"\rcompiling {done} of {of} ...{ending}", err=True, nl=False)

    return tell


COMMANDS = {"fit": fit}
