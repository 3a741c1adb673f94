"""A release that keeps its answers: GPUs that it sees as one are asked about once, whatever asks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import msgspec

from attnfit.core import Fit, Gpu, Launch, Model, Question, Selection
from attnfit.engines import Circumstances, KernelAsk, Release, Weights
from attnfit.engines.traits import Traits

Measured = tuple[Callable[[Gpu], Fit | None], Hashable]  # who was asked about memory, and what of the answer decides


def decisive(fit: Fit | None) -> Hashable:
    """What of an answer a plan and a cell hang on: its figures only where it breaks, for they say what to change."""
    if fit is None:
        return None
    return fit if fit.verdict == "breaks" else (fit.verdict, fit.supposed, fit.gpus)


class Remembered:
    """See `attnfit.engines.Release`. For one model: it is no part of what an answer is kept by."""

    def __init__(self, release: Release) -> None:
        self._asked = release
        self.version, self.book, self.exact = release.version, release.book, release.exact
        self._launches: dict[Hashable, Launch] = {}
        self._fitters: dict[Hashable, Callable[[Gpu], Fit | None]] = {}
        self._given: deque[tuple[Launch, Hashable]] = deque(maxlen=16)  # copies, for `consider`
        self._considered: set[Hashable] = set()
        self.measured: list[Measured] = []  # what was asked about memory since somebody emptied it

    @property
    def said(self) -> tuple[str, ...]:
        return self._asked.said

    @property
    def dear(self) -> bool:
        return self._asked.dear

    def launch(self, circumstances: Circumstances) -> Launch:
        """A copy of the answer that is kept: who gets it writes into it."""
        key = self._key(circumstances)
        if key not in self._launches:
            self._launches[key] = self._asked.launch(circumstances)
        copy = msgspec.structs.replace(self._launches[key])
        self._given.append((copy, key))
        return copy

    def consider(self, launch: Launch) -> None:
        key = next((key for copy, key in self._given if copy is launch), None)
        if key is None:
            return
        kept = self._launches[key]
        if key not in self._considered:
            self._considered.add(key)
            self._asked.consider(kept)
        launch.choices, launch.hazards = kept.choices, kept.hazards

    def fitter(self, circumstances: Circumstances, weights: Weights) -> Callable[[Gpu], Fit | None]:
        key = (self._key(circumstances), id(weights.tensors), weights.why)
        if key not in self._fitters:
            self._fitters[key] = self._asked.fitter(circumstances, weights)
        found = self._fitters[key]

        def fit(gpu: Gpu) -> Fit | None:
            answer = found(gpu)
            self.measured.append((found, decisive(answer)))
            return answer

        return fit

    def _key(self, this: Circumstances) -> Hashable:
        rest = this._replace(model=None, gpu=None, argv=tuple(this.argv), variables=None, env=None)  # type: ignore[arg-type]
        return self.sees(this.gpu), rest, frozenset(this.variables.items()), frozenset((this.env or {}).items())

    def sees(self, gpu: Gpu) -> Hashable:
        return self._asked.sees(gpu)

    def facts(self) -> Mapping[str, bool]:
        return self._asked.facts()

    def backends(self) -> Sequence[tuple[str, str]]:
        return self._asked.backends()

    def question(self, config: dict[str, Any]) -> Question:
        return self._asked.question(config)

    def row(self, question: Question, selection: Selection) -> dict[str, Any]:
        return self._asked.row(question, selection)

    def select(self, question: Question, env: Mapping[str, bool] | None = None, *, explained: bool = True) -> Selection:
        return self._asked.select(question, env, explained=explained)

    def witnessed(self, source: str) -> Release:
        return Remembered(self._asked.witnessed(source))

    def installed_in(self, prefix: str) -> Release:
        return Remembered(self._asked.installed_in(prefix))

    def kernels(self, circumstances: Circumstances, launch: Launch) -> Sequence[KernelAsk]:
        return self._asked.kernels(circumstances, launch)

    def traits(self, model: Model) -> Traits:
        return self._asked.traits(model)
