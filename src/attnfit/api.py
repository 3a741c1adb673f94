"""The public verbs. `check` is what the command line, the batch reader and Python users all call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from attnfit import engines
from attnfit.core import Question, Report, Selection
from attnfit.errors import UsageError, did_you_mean
from attnfit.subject import Where, ask, read

if TYPE_CHECKING:
    from attnfit.inputs.command import Command
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
    far: bool = True,
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
    far: False looks for one in the command only: no other release, checkpoint, engine or GPU.
    instead: `engine` is asked in place of the release that the command names; else the two must agree.
    kernels: also compile the engine's own Triton kernels for this launch, in a child process that has torch and Triton.

    Raises an AttnfitError (UsageError, InputError, UnknownAnswer) whose text says what to do.
    """
    from attnfit.inputs.command import parse_command
    from attnfit.inputs.gpu import read_gpus

    on = read_gpus(gpu, count)
    parsed = parse_command(command) if command else None
    chosen = engine_asked(engine, parsed)
    where = release_asked(chosen, engine, parsed, witness=witness, instead=instead)
    check_facts(env or {}, where.release)
    subject = read(chosen, parsed, model)
    if witness is not None:
        where = where._replace(release=where.release.witnessed(witness))
    return ask(
        subject,
        where,
        on,
        env=env,
        planned=planned,
        far=far,
        considered=lambda launch: planned or instead,
        kernels=kernels,
    )


def engine_asked(engine: str | None, command: Command | None) -> engines.Engine:
    """The engine that `--engine` or the command names, else the first. Raises UsageError where they name two."""
    name = engines.split_spec(engine)[0] if engine else None
    if command and name and command.engine != name:
        raise UsageError(f"--engine says {name}, but the command starts {command.engine}; make the two agree")
    return engines.engine(name or (command.engine if command else engines.ENGINES[0]))


def release_asked(
    chosen: engines.Engine,
    engine: str | None,
    command: Command | None,
    *,
    witness: str | None = None,
    instead: bool = False,
) -> Where:
    """The release that `--engine` names, else the command's image or requirement, else the one installed where the
    command would run, else the newest rule book."""
    from attnfit.inputs.agree import agreed_release
    from attnfit.inputs.environment import env_facts, installed

    version = engines.split_spec(engine)[1] if engine else None
    if version:
        if command and not instead:
            agreed_release(version, command)
        return Where(chosen.release(version), said=("release given by --engine",))
    if command and command.image_release:
        said = f"release from the image tag {command.image}"
        return Where(chosen.release(command.image_release), said=(said,))
    if command and command.required_release:
        said = "release from the command's own requirement"
        return Where(chosen.release(command.required_release), said=(said,))
    if command and (found := installed(command)) is not None:
        release = chosen.release(found.version)
        said = f"installed in {found.prefix}; its optional packages were read there"
        if witness is None:
            release = release.installed_in(found.prefix)
        return Where(release, env_facts(found), found.prefix, (said,))
    said = "no release given and none installed here: the newest rule book"
    return Where(chosen.release(None), said=(said,))


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
