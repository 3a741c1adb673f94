"""Decide: everything explicit goes in, one `Launch` comes out. No I/O, nothing remembered."""

from __future__ import annotations

import msgspec

from attnfit.core import Fit, Gpu, Launch, Model
from attnfit.engines import Circumstances, Given, Move, Release, Weights
from attnfit.fit.mixed import combine


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A launch with every input read: what `decide` and `plan` need to know, and nothing else."""

    release: Release
    model: Model
    gpus: tuple[tuple[Gpu, int], ...]
    argv: tuple[str, ...]  # the server's arguments
    form: str = "auto"  # which of the engine's parsers reads them
    files_here: bool = True  # False: files that the arguments name lie in a container or on another machine
    counted: int | None = None  # GPUs there are; None: nobody said, so their number is not checked
    variables: dict[str, str]  # environment variables set for the server
    env: dict[str, bool] | None = None  # environment facts; None: what the release installs by default
    stated: dict[str, bool] = {}  # those of them that somebody stated; the others were found where it runs
    tried: bool = False  # a change of a launch that was answered before
    driver: str = ""  # NVIDIA's, of the machine it is to run on: "580.65.06"; "": not known

    def on(self, gpu: Gpu) -> Circumstances:
        """What decides the launch on one of the GPUs."""
        return Circumstances(
            model=self.model,
            gpu=gpu,
            argv=self.argv,
            gpus=self.counted,
            form=self.form,
            files_here=self.files_here,
            variables=self.variables,
            env=self.env,
            tried=self.tried,
            driver=self.driver,
        )

    def given(self) -> Given:
        """What an engine needs to know of it to propose a change."""
        total = sum(count for _, count in self.gpus)
        return Given(
            self.argv, self.form, self.release.book, self.variables, self.counted, total,
            release=self.release.version, env=self.env or {}, config=self.model.config,
        )  # fmt: skip

    def after(self, move: Move) -> Request:
        """The same launch with one change made."""
        merged = {**self.variables, **move.variables}
        variables = {name: value for name, value in merged.items() if value is not None}
        counted = self.counted if move.gpus is None or self.counted is None else move.gpus
        env = {**(self.env or {}), **move.env} if move.env else self.env
        return msgspec.structs.replace(self, argv=move.argv, variables=variables, counted=counted, env=env, tried=True)


def decide(request: Request) -> Launch:
    """The launch on the GPUs given. Every rank must start, so mixed GPUs pass only if each kind does."""
    answer: Launch | None = None
    for gpu, _ in request.gpus:
        this = _on(gpu, request)
        if len(request.gpus) > 1:
            this.notes = (*this.notes, f"mixed GPUs: this is the answer of {gpu.name}")
        if answer is None or (answer.ok, this.ok) in ((True, False), (True, None), (None, False)):
            answer = this
    assert answer is not None, "a request names at least one GPU"
    return answer


def measure(request: Request, weights: Weights) -> Fit | None:
    """Whether a launch that passes fits into memory, on mixed GPUs as `fit.mixed` says. None: not measured."""
    kinds: list[tuple[str, int, Fit]] = []
    for gpu, count in request.gpus:
        this = request.release.fitter(request.on(gpu), weights)(gpu) if gpu.capability is not None else None
        if this is not None:
            kinds.append((gpu.name, count, this))
    return combine(kinds) if kinds else None


def verdict(launch: Launch) -> str:
    if launch.ok and launch.fit is not None and launch.fit.verdict == "breaks":
        return "breaks"
    if launch.ok and any(kernel.breaks for kernel in launch.kernels):
        return "breaks"
    if launch.ok and any(hazard.breaks for hazard in launch.hazards):
        return "breaks"
    return {True: "passes", False: "refused", None: "unknown"}[launch.ok]


def _on(gpu: Gpu, request: Request) -> Launch:
    if gpu.capability is None:
        missing = f"{gpu.name} is not covered yet; attnfit knows NVIDIA GPUs (attnfit gpus lists them)"
        return Launch(ok=None, stage="selector", unknown=(missing,))
    launch = request.release.launch(request.on(gpu))
    named = gpu.memory_gib is not None  # a GPU of the catalogue or of NVML, not a bare compute capability
    if launch.error:  # of a bare compute capability only the maker is known
        launch.error = launch.error.replace("{device}", gpu.name if named else "NVIDIA")
    launch.unknown = tuple(text.replace("{device}", gpu.name if named else "this GPU") for text in launch.unknown)
    return launch
