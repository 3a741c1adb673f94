"""A launch that was read once: what any release makes of it, on any GPUs, as often as it is asked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from attnfit import engines
from attnfit.core import Gpu, Launch, Model, Plan, Report, Step
from attnfit.decide import Request, decide, measure, verdict
from attnfit.errors import UsageError
from attnfit.plan import plan

if TYPE_CHECKING:
    from attnfit.inputs.command import Command
    from attnfit.inputs.gguf.sets import GgufFiles
    from attnfit.inputs.gpu import GpuInput
    from attnfit.inputs.hub_ref import HubSettings
    from attnfit.inputs.model import ModelFiles
    from attnfit.kernel_check import Wanted


class Subject(NamedTuple):
    """What is launched; on which GPUs and in which release is said when it is asked."""

    engine: engines.Engine
    files: ModelFiles
    path: str  # the model, as it was named
    command: Command | None  # None: the plainest launch of the model, on the GPUs it is asked for
    model: Callable[[], Model]  # this and the weights' headers are read when first asked for
    weights: Callable[[], engines.Weights]
    said: tuple[str, ...]  # what was assumed in reading


class Where(NamedTuple):
    """One release, with the facts of the environment it was found in."""

    release: engines.Release
    facts: Mapping[str, bool] = {}
    prefix: str | None = None  # that environment
    said: tuple[str, ...] = ()  # how it was chosen


def read(engine: engines.Engine, command: Command | None, model: str | None) -> Subject:
    """Reads the model. Raises an AttnfitError where there is none, or two."""
    from attnfit.inputs.agree import agreed_model
    from attnfit.inputs.model import read_model

    shown = command.env.get("CUDA_VISIBLE_DEVICES") if command else None
    if command and shown is not None and command.gpu_count == 0:
        raise UsageError(
            f"no GPU is visible to the server: the command sets CUDA_VISIBLE_DEVICES={shown!r}; drop it, or name GPUs"
        )
    path, stands = agreed_model(model, command)
    if path is None:
        if command and command.files_here and (missing := _missing_config(command)):
            raise UsageError(f"--config {missing}: no such file, and nothing else in the command names a model")
        raise UsageError(
            "the command names no model: add one to it, a directory with config.json or a hub id"
            if command
            else "no model: name a directory with config.json or a hub id, or give the launch command behind --"
        )
    files = read_model(path, lambda: _hub(command, engine.name))
    if command and command.model == path and files.engine_path != path and files.commit:
        better = "the file itself, downloaded" if files.gguf is not None else " ".join(files.served_as)
        raise UsageError(f"the engine does not read the model from {path}; give it {better}")
    notes = command.notes if command else ()
    said = (*stands, *files.notes, *notes)
    return Subject(engine, files, path, command, cache(files.model), cache(lambda: _weights(files)), said)


def _missing_config(command: Command) -> str:
    """The file that --config names, where there is none; every engine has that flag."""
    from pathlib import Path

    for word, behind in itertools.zip_longest(command.argv, command.argv[1:], fillvalue=""):
        name = word.removeprefix("--config=") if word.startswith("--config=") else behind if word == "--config" else ""
        if name and not Path(name).exists():
            return name
    return ""


def ask(
    subject: Subject,
    where: Where,
    on: GpuInput,
    *,
    env: Mapping[str, bool] | None = None,
    planned: bool = True,
    far: bool = True,
    considered: Callable[[Launch], bool],
    kernels: Wanted | None = None,
) -> Report:
    """The whole answer; see `api.check`. `considered`: whether every other candidate is asked about, too. `far`: a plan
    may take another release, engine or GPU."""
    from attnfit.inputs.command import parse_command
    from attnfit.inputs.environment import facts_named
    from attnfit.inputs.secrets import hide

    engine, files, command, weights = subject.engine, subject.files, subject.command, subject.weights
    said = [*on.notes]
    if not on.counted:
        said.append("no number of GPUs given (-n): whether they are enough is not checked")
    said += [*where.said, *subject.said]
    if command is None:
        default = engine.default_command(files.served_as, sum(n for _, n in on.gpus), files.config)
        command = parse_command(default)
        said.append(f"no command given: taken as `{' '.join(default)}`")
    parsed = command
    request = Request(
        release=where.release,
        model=subject.model(),
        gpus=on.gpus,
        argv=tuple(parsed.argv),
        form=parsed.form,
        files_here=parsed.files_here,
        counted=_counted(on.gpus, parsed) if on.counted else None,
        variables=dict(parsed.env),
        env={**where.facts, **facts_named(parsed), **(env or {})},
        stated=dict(env or {}),
        driver=on.driver,
    )
    launch = decide(request)
    if considered(launch):
        request.release.consider(launch)

    def render(move: engines.Move) -> tuple[str, ...] | None:
        from attnfit.inputs.rewrite import rewrite
        from attnfit.inputs.throwaway import takes_packages

        packages = move.installs.split() if takes_packages(parsed) else ()
        plain = not (move.variables or move.release or packages)
        words = (
            parsed.render(move.argv) if plain else rewrite(parsed, move.argv, move.variables, move.release, packages)
        )
        return None if words is None else tuple(hide(words))

    def at_hand() -> engines.Weights:  # no headers are fetched for a launch that is refused
        return weights() if files.commit is None else engines.Weights(None, "not fetched")

    if launch.ok:
        launch.fit = measure(request, weights())
    known = weights if launch.ok else at_hand
    found = Plan()
    if planned:
        found = plan(engine, request, launch, render, known, fit=launch.fit, far=far, command=parsed)
    steps: tuple[Step, ...] = found.steps
    if kernels is not None and launch.ok:
        from attnfit.kernel_check import foresee, way_out

        foresee(engine.name, request, launch, kernels, prefix=where.prefix)
        if planned and not steps and verdict(launch) == "breaks":
            steps = way_out(engine, request, launch, kernels, render, prefix=where.prefix)
    return Report(
        verdict=verdict(launch),
        launch=launch,
        engine=engine.name,
        release=request.release.version,
        exact=request.release.exact,
        model=subject.path,
        gpus=on.gpus,
        said=(*said, *request.release.said),
        steps=steps,
        plan=found,
        command=tuple(hide(parsed.render(parsed.argv))),
    )


def _weights(files: ModelFiles) -> engines.Weights:
    """The checkpoint's tensors, from the headers of its files, or why they are not known."""
    if files.gguf is not None:
        return _gguf_weights(files.gguf.files)
    from attnfit.inputs.weights import examine

    found = examine(files)
    if found.checkpoint is None:
        return engines.Weights(None, found.why, found.broken, found.doubt)
    tensors = {name: (t.dtype, t.shape, t.nbytes) for name, t in found.checkpoint.tensors.items()}
    return engines.Weights(tensors, doubt=found.doubt)


def _gguf_weights(files: GgufFiles) -> engines.Weights:
    if files.missing:
        why = f"parts of the GGUF set are missing: {', '.join(files.missing[:3])}"
        return engines.Weights(None, why, doubt=f"{why}; download them")
    if files.broken:
        return engines.Weights(None, files.broken, broken=files.broken)
    if any(tensor.nbytes is None for tensor in files.tensors):
        return engines.Weights(None, "the GGUF file has tensors of a type that is not known")
    from attnfit.inputs.gguf.tensor_types import name_of

    # the format names the contiguous dimension first, the engine last
    return engines.Weights({t.name: (name_of(t.type), t.shape[::-1], t.nbytes or 0) for t in files.tensors})


def _hub(command: Command | None, engine: str) -> HubSettings:
    """How the launch reaches the hub; only for what is no path here."""
    from attnfit.inputs.hub_ref import hub_settings

    return hub_settings(command, engine=engine)


def _counted(gpus: Sequence[tuple[Gpu, int]], command: Command) -> int:
    """How many of the GPUs the command's process will see."""
    total = sum(count for _, count in gpus)
    if command.visible_gpus is not None:
        total = min(total, len(command.visible_gpus))
    return total if command.gpu_count is None else min(total, command.gpu_count)
