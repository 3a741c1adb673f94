"""The public verbs. `check` is what the command line, the batch reader and Python users all call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from attnfit import engines
from attnfit.core import Gpu, Question, Report, Selection
from attnfit.decide import Request, decide, measure, verdict
from attnfit.errors import UsageError, did_you_mean
from attnfit.plan import past_hazards, plan, room

if TYPE_CHECKING:
    from attnfit.inputs.command import Command
    from attnfit.inputs.gguf.sets import GgufFiles
    from attnfit.inputs.hub_ref import HubSettings
    from attnfit.inputs.model import ModelFiles
    from attnfit.kernel_check import Wanted

Select = Callable[[Question], Selection]


def check(
    command: Sequence[str] | str = (),
    *,
    gpu: str,
    count: int | None = None,
    model: str | None = None,
    engine: str | None = None,
    env: Mapping[str, bool] | None = None,
    witness: str | None = None,
    planned: bool = True,
    instead: bool = False,
    kernels: Wanted | None = None,
) -> Report:
    """Will this launch find an attention backend, and pass every other gate we know?

    command: the launch command, as a list of words or as one string; empty: the plainest one for `model`.
    gpu, count: as on the command line ("h200x8", "12.0", "auto"; `-n`).
    model: a directory with config.json, or a hub id; needed only if the command names none that can be read here.
    engine: "NAME==VERSION", "NAME", or None: what the command's environment has, else the newest rule book.
    env: environment facts that differ from what is found or what the release installs by default.
    witness: an engine source (tree, wheel, "installed"): answer from the engine's own code, not from the book.
    planned: False leaves out the search for a next step.
    instead: `engine` is asked in place of the release that the command names; else the two must agree.
    kernels: also compile the engine's own Triton kernels for this launch, in a child process that has torch and Triton.

    Raises an AttnfitError (UsageError, InputError, UnknownAnswer) whose text says what to do.
    """
    from attnfit.inputs.agree import agreed_model, agreed_release
    from attnfit.inputs.command import parse_command
    from attnfit.inputs.environment import env_facts, installed
    from attnfit.inputs.gpu import read_gpus
    from attnfit.inputs.model import read_model
    from attnfit.inputs.secrets import hide

    gpu_input = read_gpus(gpu, count)
    gpus = gpu_input.gpus
    parsed = parse_command(command) if command else None
    name, version = engines.split_spec(engine) if engine else (None, None)
    if parsed and name and parsed.engine != name:
        raise UsageError(f"--engine says {name}, but the command starts {parsed.engine}; make the two agree")
    chosen = engines.engine(name or (parsed.engine if parsed else engines.ENGINES[0]))
    said = list(gpu_input.notes)
    if not gpu_input.counted:
        said.append("no number of GPUs given (-n): whether they are enough is not checked")
    facts: dict[str, bool] = {}
    prefix: str | None = None
    if version:
        if parsed and not instead:
            agreed_release(version, parsed)
        said.append("release given by --engine")
    elif parsed and parsed.image_release:
        version = parsed.image_release
        said.append(f"release from the image tag {parsed.image}")
    elif parsed and parsed.required_release:
        version = parsed.required_release
        said.append("release from the command's own requirement")
    elif parsed and (found := installed(parsed)) is not None:
        version, facts, prefix = found.version, env_facts(found), found.prefix
        said.append(f"installed in {found.prefix}; its optional packages were read there")
    release = chosen.release(version)
    if prefix is not None and witness is None:
        release = release.installed_in(prefix)
    check_facts(env or {}, release)
    if version is None:
        said.append("no release given and none installed here: the newest rule book")
    path, stands = agreed_model(model, parsed)
    if path is None:
        raise UsageError(
            "no model: name a directory with config.json or a hub id, or give the launch command behind --"
        )
    files = read_model(path, lambda: _hub(parsed, chosen.name))
    if parsed and parsed.model == path and files.engine_path != path and files.commit:
        better = "the file itself, downloaded" if files.gguf is not None else " ".join(files.served_as)
        raise UsageError(f"the engine does not read the model from {path}; give it {better}")
    said += [*stands, *files.notes]
    said += parsed.notes if parsed else ()
    if parsed is None:
        total = sum(n for _, n in gpus)
        default = chosen.default_command(files.served_as, total, files.config)
        parsed = parse_command(default)
        said.append(f"no command given: taken as `{' '.join(default)}`")
    request = Request(
        release=release if witness is None else release.witnessed(witness),
        model=files.model(),
        gpus=gpus,
        argv=tuple(parsed.argv),
        form=parsed.form,
        files_here=parsed.files_here,
        counted=_counted(gpus, parsed) if gpu_input.counted else None,
        variables=dict(parsed.env),
        env={**facts, **(env or {})},
        driver=gpu_input.driver,
    )
    launch = decide(request)
    if planned or instead:
        request.release.consider(launch)

    def render(move: engines.Move) -> tuple[str, ...] | None:
        from attnfit.inputs.rewrite import rewrite

        words = rewrite(parsed, move.argv, move.variables) if move.variables else parsed.render(move.argv)
        return None if words is None else tuple(hide(words))

    weights = cache(lambda: _weights(files))

    def at_hand() -> engines.Weights:  # no headers are fetched for a launch that is refused
        return weights() if files.commit is None else engines.Weights(None, "not fetched")

    steps = plan(chosen, request, launch, render, at_hand) if planned else ()
    if launch.ok:
        launch.fit = measure(request, weights())
        if planned and launch.fit is not None and launch.fit.verdict == "breaks" and not launch.fit.files:
            steps = room(chosen, request, launch.fit, weights(), render)
    if planned and not steps:
        steps = past_hazards(chosen, request, launch, render)
    if kernels is not None and launch.ok:
        from attnfit.kernel_check import foresee, way_out

        foresee(chosen.name, request, launch, kernels, prefix=prefix)
        if planned and not steps and verdict(launch) == "breaks":
            steps = way_out(chosen, request, launch, kernels, render, prefix=prefix)
    return Report(
        verdict=verdict(launch),
        launch=launch,
        engine=chosen.name,
        release=release.version,
        exact=release.exact,
        model=path,
        gpus=gpus,
        said=(*said, *request.release.said),
        steps=steps,
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


def select(question: Question, *, engine: str, env: Mapping[str, bool] | None = None) -> Selection:
    """Answer one ready selector question, for example `select(Question(...), engine="NAME==VERSION")`."""
    name, version = engines.split_spec(engine)
    return engines.engine(name).release(version).select(question, env)


def check_facts(env: Mapping[str, object], release: engines.Release) -> None:
    """Raises UsageError for an environment fact that the release does not ask for, or that is not true or false."""
    known = release.facts()
    for name, value in env.items():
        if name not in known:
            valid = ", ".join(sorted(known))
            raise UsageError(
                f"unknown environment fact {name!r}{did_you_mean(name, known)}; {release.version} asks: {valid}"
            )
        if not isinstance(value, bool):
            raise UsageError(f"environment fact {name} is {value!r}; say true or false")


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
