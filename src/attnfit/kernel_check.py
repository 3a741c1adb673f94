"""`check --kernels`: will the engine's own Triton kernels run there, with this launch's shapes? Asked of a child.

The engine says which kernels a launch starts; their source files are found as the witness finds them; the child loads
them, lets the engine's own code launch them without a GPU, and compiles what was launched (kernels/fit).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from attnfit import engines, gpus
from attnfit.core import Gpu, Hazard, KernelFact, Launch, Step
from attnfit.decide import Request, decide
from attnfit.errors import UnknownAnswer, UsageError
from attnfit.gpus.driver import CUDA_OF_TORCH
from attnfit.gpus.ptxas import TRITON_OF
from attnfit.inputs import kernel_fit
from attnfit.inputs.kernel_rows import FITS, TOO_LARGE, Answer, Outcome
from attnfit.plan import Render, ends_as

MOST_MOVES, MOST_COMPILED = 60, 4  # changes that are looked at; of them, those whose kernels are compiled
NOTE, NONE = "kernels: ", "none of"  # how every note begins, and then where there is nothing to ask about
OFFLINE = ("ATTNFIT_OFFLINE", "HF_HUB_OFFLINE")
_TORCH = re.compile(r"^Requires-Dist: *torch *\(?==([0-9]+\.[0-9]+)", re.MULTILINE)
_TORCH_OF_A_TREE = re.compile(r"^ *[\"']?torch==([0-9]+\.[0-9]+)", re.MULTILINE)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """How kernels are asked about. `source`: as `witness.sources.find` takes it; None: the release as installed or
    published. `python`: one that has torch and Triton."""

    source: str | None = None
    python: str | None = None
    progress: Any = None


class Asked(msgspec.Struct, frozen=True):
    """One question to the child, and what it said."""

    ask: engines.KernelAsk
    answer: Answer


def foresee(
    engine: str, request: Request, launch: Launch, wanted: Wanted, *, prefix: str | None = None
) -> tuple[Asked, ...]:
    """Adds to a launch that passes what becomes of its kernels: facts, hazards, and a note for what is unknown."""
    if not launch.ok:
        return ()
    found: list[Asked] = []
    for gpu, _ in request.gpus:
        asks = request.release.kernels(request.on(gpu), launch)
        if not asks:
            launch.notes = (*launch.notes, f"kernels: {NONE} {engine}'s Triton kernels that are asked about start here")
            continue
        try:
            found += _of_gpu(engine, request, gpu, asks, launch, wanted, prefix)
        except UnknownAnswer as missing:
            _unknown(launch, f"not known whether they run on {gpu.name}: {missing}")
    launch.hazards = (*launch.hazards, *_hazards(launch.kernels))
    launch.notes = (*launch.notes, *_other_triton(launch.kernels, found))
    return tuple(found)


def _unknown(launch: Launch, why: str) -> None:
    if why not in launch.kernels_unknown:
        launch.kernels_unknown = (*launch.kernels_unknown, why)
        launch.notes = (*launch.notes, NOTE + why)


def _other_triton(kernels: Sequence[KernelFact], asked: Sequence[Asked]) -> Iterator[str]:
    """Where a kernel cannot run with this Triton: how to ask with the one that the release brings."""
    python = next((each.answer.python for each in asked if each.answer.python), "python")
    for brought in dict.fromkeys(fact.brought for fact in kernels if fact.may_break and fact.brought):
        yield (
            f"{NOTE}the release brings Triton {brought}; to ask with it: {python} -m pip install 'triton=={brought}.*'"
        )


def way_out(
    engine: engines.Engine, request: Request, launch: Launch, wanted: Wanted, render: Render, *, prefix: str | None
) -> tuple[Step, ...]:
    """A change with which the launch passes and its kernels run; where none is found, that."""
    seen: set[tuple[object, ...]] = {ends_as(launch)}
    for move in sorted(islice(engine.moves(request.given(), launch), MOST_MOVES), key=lambda move: move.cost):
        changed = request.after(move)
        after = decide(changed)
        if not after.ok or ends_as(after) in seen or (argv := render(move)) is None:
            continue
        seen.add(ends_as(after))
        foresee(engine.name, changed, after, wanted, prefix=prefix)
        asked = bool(after.kernels) or any(note.startswith(NOTE + NONE) for note in after.notes)
        if asked and not any(kernel.breaks for kernel in after.kernels):
            names = ", ".join(dict.fromkeys(name for each in after.layers if (name := each.selection.chosen)))
            return (Step(f"{move.text}; then {names}'s kernels run" if names else move.text, argv, move.gives_up),)
        if len(seen) > MOST_COMPILED:
            break
    return (Step("no change found with which its kernels run; another GPU, or a release with other kernels"),)


def _of_gpu(
    engine: str,
    request: Request,
    gpu: Gpu,
    asks: Sequence[engines.KernelAsk],
    launch: Launch,
    wanted: Wanted,
    prefix: str | None,
) -> Iterator[Asked]:
    distribution = engines.distribution_of(engine)
    source = _source(distribution, request.release.version, wanted.source, prefix)
    torch = pinned_torch(Path(source.root), distribution.stem)
    sms = _multiprocessors(gpu)
    surroundings = {
        "root": source.root,
        "env": {**source.env, **(request.env or {})},
        "variables": dict(request.variables),
        "sms": sms,
        "cuda_major": CUDA_OF_TORCH.get(torch),
        "device_name": gpu.name,
    }
    for ask in asks:
        if ask.unknown:
            _unknown(launch, f"{ask.backend} is not asked about: {ask.unknown}")
            continue
        answer = kernel_fit.ask(
            [str(gpu.capability)],
            module=f"attnfit.engines.{engine}.triton_kernels",
            about={**surroundings, **ask.about},
            python=wanted.python,
            progress=wanted.progress,
            properties={str(gpu.capability): {"multiprocessor_count": sms}} if sms else {},
        )
        launch.kernels = (*launch.kernels, *facts(ask, answer, gpu, torch, source.origin))
        for message in dict.fromkeys(failure.message for failure in answer.failures):
            cases = dict.fromkeys(each.case for each in answer.failures if each.case and each.message == message)
            of = f"{ask.backend}, {' and '.join(cases)}" if cases else ask.backend
            _unknown(launch, f"{of} on {gpu.name}: unknown: {message}")
        yield Asked(ask, answer)


def _source(distribution: Any, version: str, given: str | None, prefix: str | None) -> Any:
    from attnfit.witness import sources

    if given is None and prefix is not None:
        return sources.installed(distribution, prefix)
    offline = any(os.environ.get(name, "").lower() in ("1", "true", "yes", "on") for name in OFFLINE)
    found = sources.find(distribution, given or f"{distribution.name}=={version}", offline=offline)
    if found.version not in (version, "unknown"):
        raise UsageError(f"{given} is {distribution.name} {found.version}, the launch is for {version}; let both agree")
    return found


def _multiprocessors(gpu: Gpu) -> int | None:
    """Of that GPU; of a bare compute capability, the most that any GPU of it has."""
    known = [(entry.name, entry.sms) for entry in gpus.catalogue() if entry.sms and entry.capability == gpu.capability]
    return next((sms for name, sms in known if name == gpu.name), max((sms for _, sms in known), default=None))


def pinned_torch(root: Path, stem: str) -> str:
    """The minor release of torch that the release at `root` requires exactly; "" where none is stated."""
    for pattern, files in (
        (_TORCH, [*root.glob(f"{stem}-*.dist-info/METADATA"), root / "PKG-INFO"]),
        (_TORCH_OF_A_TREE, [root / "requirements" / "cuda.txt", root / "pyproject.toml"]),
    ):
        for file in files:
            if file.is_file() and (match := pattern.search(file.read_text("utf-8", "replace"))):
                return match[1]
    return ""


def facts(ask: engines.KernelAsk, answer: Answer, gpu: Gpu, torch: str, origin: str) -> Iterator[KernelFact]:
    """One for each kernel that a case launches."""
    brought = TRITON_OF.get(torch, "")
    same = _minor(answer.triton) == brought if brought else None
    where = gpu.name if str(gpu.capability) in gpu.name else f"{gpu.name}, compute capability {gpu.capability}"
    inputs = (*ask.inputs, where, f"kernels of {origin}")
    for outcome in answer.outcomes():
        row = outcome.stopped_by or max(outcome.rows, key=lambda row: row.shared or 0)
        message = f"{row.exception}: {row.message}" if row.exception and row.message else row.message
        yield KernelFact(
            backend=ask.backend,
            kernel=row.kernel,
            case=row.case,
            verdict=outcome.verdict,
            message=message if outcome.verdict != FITS else "",
            shared=outcome.shared,
            limit=row.limit,
            configurations=len(outcome.rows),
            left_out=_left_out(outcome),
            where=f"{row.file}:{row.line}",
            inputs=inputs,
            triton=answer.triton,
            brought=brought,
            same_triton=same,
        )


def _left_out(outcome: Outcome) -> int:
    return sum(row.verdict == TOO_LARGE and row.skipped for row in outcome.rows)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _hazards(kernels: Sequence[KernelFact]) -> Iterator[Hazard]:
    for fact in kernels:
        if fact.verdict in ("does not fit", "does not compile"):
            code = "kernel-out-of-resources" if fact.verdict == "does not fit" else "kernel-does-not-compile"
            yield Hazard(code, sentence(fact), fact.where)


def sentence(fact: KernelFact) -> str:
    """What becomes of a kernel that cannot run, with what it was compiled with."""
    brings = ""
    if fact.same_triton is False:
        brings = f", and the release brings {fact.brought}: there it may be otherwise"
    elif fact.same_triton is None:
        brings = "; which Triton the release brings is not known"
    every = f" with any of its {fact.configurations} configurations" if fact.configurations > 1 else ""
    what = f"{fact.backend}'s {fact.kernel} ({fact.case}) cannot run{every}"
    return f"{what}: {fact.message} (Triton {fact.triton}{brings})"
