"""The only judge of a change: `decide`, `measure` and the hazards. Counts what it was asked, and asks nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from attnfit.core import Fit, Hazard, Launch
from attnfit.decide import Request, decide, measure
from attnfit.engines import Weights

TOO_LARGE = "if the weights are those that config.json tells"


class Outcome(NamedTuple):
    launch: Launch
    fit: Fit | None

    @property
    def starts(self) -> bool:
        """It passes every gate, meets no hazard that stops it for sure, and can fit."""
        return bool(self.launch.ok) and not self.breaking and not self.too_large

    @property
    def breaking(self) -> list[Hazard]:
        return [hazard for hazard in self.launch.hazards if hazard.breaks]

    @property
    def too_large(self) -> bool:
        return self.fit is not None and self.fit.verdict == "breaks"

    @property
    def tight(self) -> bool:
        """Only the GPU can tell whether its memory does."""
        return self.fit is not None and self.fit.verdict == "may break"

    @property
    def inert(self) -> tuple[str, ...]:
        """Flags and variables that do nothing."""
        return tuple(hazard.flag for hazard in self.launch.hazards if hazard.flag)

    @property
    def doubts(self) -> list[str]:
        """What keeps a launch that starts from being sure."""
        found = []
        if self.tight:
            large = self.fit is not None and self.fit.supposed
            found = [f"it runs out of memory {TOO_LARGE}" if large else "it may run out of memory"]
        if self.launch.ok and (self.fit is None or self.fit.verdict == "unknown"):
            found = ["it may run out of memory: not known whether it fits"]
        return found + [f"it may break: {hazard.text}" for hazard in self.launch.hazards if hazard.may_break]

    @property
    def refusal(self) -> tuple[object, ...]:
        """The same for launches that stop for the same reasons."""
        asked = () if self.launch.hypothetical else self.launch.layers  # what it never came to stops nothing
        reasons = tuple(
            (v.backend, tuple(r.text for r in v.reasons)) for layer in asked for v in layer.selection.verdicts
        )
        broken = tuple(hazard.code for hazard in self.breaking)
        return (self.launch.stage, self.launch.error, reasons, broken, self.too_large, self.inert)


class Judge:
    def __init__(self, weights: Callable[[], Weights], most: int) -> None:
        self.weights, self.left, self.tried = weights, most, 0
        self._known: dict[tuple[object, ...], Outcome] = {}
        self.tolerated: frozenset[str] = frozenset()  # what does nothing and cannot be taken out of the command

    def ask(self, request: Request) -> Outcome:
        key = _key(request)
        if key not in self._known:
            self.tried += 1
            self.left -= 1
            launch = decide(request)
            self._known[key] = Outcome(launch, measure(request, self.weights()) if launch.ok else None)
        return self._known[key]

    def told(self, request: Request, launch: Launch, fit: Fit | None) -> Outcome:
        """The answer to the launch as it was given, which is known already."""
        self._known[_key(request)] = found = Outcome(launch, fit)
        return found

    def clean(self, outcome: Outcome) -> bool:
        return outcome.starts and not set(outcome.inert) - self.tolerated

    def enough(self) -> bool:
        return self.left <= 0


def _key(request: Request) -> tuple[object, ...]:
    gpus: Sequence[object] = [(gpu.name, count) for gpu, count in request.gpus]
    return (
        request.release.version, request.argv, request.form, tuple(sorted(request.variables.items())),
        tuple(sorted((request.env or {}).items())), request.counted, *gpus, id(request.model.config),
    )  # fmt: skip
