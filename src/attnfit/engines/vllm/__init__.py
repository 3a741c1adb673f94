"""vLLM: rule books per release, and the way from config.json and flags to selector questions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnfit.core import Fit, Gpu, Launch, Model, Question, Selection
from attnfit.engines import Circumstances, Common, Cost, Given, KernelAsk, Move, Piece, Weights, divisor
from attnfit.engines.traits import Traits
from attnfit.engines.vllm import ours

if TYPE_CHECKING:
    from pathlib import Path

    from attnfit.engines.vllm.launch import Case


class Release:
    """One vLLM release; see `attnfit.engines.Release`."""

    dear = False

    def __init__(self, version: str | None) -> None:
        from attnfit.engines.vllm import releases

        found = releases.resolve(version or releases.newest())
        self._book = found.book
        self._select: Callable[..., Selection] = found.book.select
        self.version = (version or found.book.version).removeprefix("v")
        self.book = found.book.version
        self.exact = found.exact
        self.said: tuple[str, ...] = (found.note,) if found.note else ()

    def facts(self) -> Mapping[str, bool]:
        minor = int(self.book.split(".")[1])
        beside = {"gguf_plugin": False} if minor >= 24 else {}  # before, it reads GGUF by itself (launch/gguf.py)
        if minor < 20:  # from then on the wheel brings it (foreseen/packages.py)
            beside["deep_gemm"] = False
        compiles = {"nvcc": True, "ninja": True}  # FlashInfer needs them in every release, the selector in newer ones
        return {**compiles, **self._book.environment, **beside, ours.FACT: False}

    def backends(self) -> Sequence[tuple[str, str]]:
        from attnfit.engines.vllm import ours

        own = [(name, str(entry["path"])) for name, entry in self._book.written.backends.items()]
        return [*own, *ours.listed(self.version)]

    def question(self, config: dict[str, Any]) -> Question:
        from attnfit.engines.vllm.row import question_of

        return question_of(config)

    def row(self, question: Question, selection: Selection) -> dict[str, Any]:
        from attnfit.engines.vllm.row import row

        return row(question, selection)

    def select(self, question: Question, env: Mapping[str, bool] | None = None, *, explained: bool = True) -> Selection:
        return self._select(question, env, explained=explained)

    def witnessed(self, source: str) -> Release:
        from attnfit.engines.vllm.witnessed import selector

        other = Release(self.version)
        other._select, note = selector(source, self.version, self._book)
        other.said, other.dear = (*self.said, note), True
        return other

    def installed_in(self, prefix: str) -> Release:
        return self  # the book answers; what is installed beside it are facts

    def launch(self, circumstances: Circumstances) -> Launch:
        from attnfit.engines.vllm.launch import borrowed, run

        case = self._case(circumstances)
        answer = run(case)
        return answer if self.exact and case.release == self.book else borrowed(answer, case.release, self.version)

    def consider(self, launch: Launch) -> None:
        pass  # every backend has its verdict in the answer

    def sees(self, gpu: Gpu) -> Hashable:
        return gpu.capability

    def fitter(self, circumstances: Circumstances, weights: Weights) -> Callable[[Gpu], Fit | None]:
        from attnfit.engines.vllm.fit.answer import fitter

        case = self._case(circumstances)
        known = self.exact and case.release == self.book
        return fitter(case, weights) if known else lambda gpu: None

    def kernels(self, circumstances: Circumstances, launch: Launch) -> Sequence[KernelAsk]:
        from attnfit.engines.vllm.kernels import asks

        return asks(self._case(circumstances), launch)

    def _case(self, this: Circumstances) -> Case:
        from attnfit.engines.vllm.launch import Case
        from attnfit.engines.vllm.releases import walked_as

        plugin, written = ours.of(self.version, this.env, this.variables), self._book.written
        return Case(
            model=this.model,
            capability=this.capability,
            argv=this.argv,
            release=walked_as(self.book),
            gpus=this.gpus,
            form=this.form,
            files_here=this.files_here,
            variables=this.variables,
            env=this.env or {},
            select=ours.selected(
                lambda question: self.select(question, _with_variable(question, this.env)),
                plugin, written.selector, written.messages["explicit"],
            ),
            plugin=plugin,
            driver=this.driver,
        )  # fmt: skip

    def traits(self, model: Model) -> Traits:
        from attnfit.engines.vllm.launch.traits import traits
        from attnfit.engines.vllm.releases import walked_as

        return traits(model, walked_as(self.book))


def _with_variable(question: Question, env: Mapping[str, bool] | None) -> Mapping[str, bool] | None:
    """In a launch the variable that sets `use_batch_invariant` is also read by the FlashAttention version function."""
    return {**(env or {}), "VLLM_BATCH_INVARIANT": True} if question.use_batch_invariant else env


class Vllm:
    """See `attnfit.engines.Engine`."""

    name = "vllm"
    apart = False

    def default_command(self, model: Sequence[str], gpus: int, config: dict[str, Any]) -> Sequence[str]:
        size = divisor(gpus, config)
        return ("vllm", "serve", *model, *(("--tensor-parallel-size", str(size)) if size > 1 else ()))

    def moves(self, given: Given, launch: Launch) -> Iterator[Move]:
        from attnfit.engines.vllm.moves import moves

        return moves(given, launch)

    def pieces(self, given: Given) -> Sequence[Piece]:
        from attnfit.engines.vllm.moves_flags import Flags

        return Flags(given).pieces()

    def price(self, flag: str) -> Cost:
        from attnfit.engines.vllm.moves_costs import price

        return price(flag)

    def common(self, given: Given) -> Common:
        from attnfit.engines.vllm.common import common

        return common(given)

    def translated(self, common: Common) -> Sequence[str]:
        from attnfit.engines.vllm.common import translated

        return translated(common)

    def at_hand(self) -> Sequence[str]:
        return self.releases()

    def shipped(self, version: str) -> Release:
        return Release(version)

    def room(self, given: Given, fit: Fit) -> Iterator[Move]:
        from attnfit.engines.vllm.moves import room

        return room(given, fit)

    def releases(self) -> Sequence[str]:
        from attnfit.engines.vllm import releases

        return releases.known()

    def release(self, version: str | None) -> Release:
        return Release(version)

    def learn(self, source: str, *, folder: Path | None, questions: int, seed: int | None, offline: bool) -> str:
        from attnfit.engines.vllm.learn.learn import run

        return str(run(source, folder=folder, questions=questions, seed=seed, offline=offline))


ENGINE = Vllm()
