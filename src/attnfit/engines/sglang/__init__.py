"""SGLang: a launch is answered by the release's own argument resolution, run by the witness (answers.py)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnfit.core import Fit, Gpu, Launch, Model, Question, Selection
from attnfit.engines import Circumstances, Common, Cost, Given, KernelAsk, Move, Piece, Weights, divisor
from attnfit.engines.traits import Traits
from attnfit.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from attnfit.engines.sglang.answers import Answer, Asker, Case
    from attnfit.engines.sglang.launch import Asked

_KEPT = 512  # answers of one release: more than one report asks

_NO_QUESTIONS = "SGLang has no backend selector that could be asked one question; give a launch: a command, or flags"


class Release:
    """One SGLang release; see `attnfit.engines.Release`."""

    def __init__(self, version: str | None, source: str | None = None, asker: Asker | None = None) -> None:
        from attnfit.engines.sglang import releases

        self.version, self.exact, note = releases.resolve(version)
        self.book = self.version
        self._source, self._given = source, asker
        self._answers: dict[bytes, Answer] = {}
        self._recent: deque[tuple[Launch, Asked]] = deque(maxlen=16)  # for `consider`
        self._note, self._asked = note, False

    @property
    def said(self) -> tuple[str, ...]:
        """What is to be said of the release, and once it was asked, who answered."""
        note = (self._note,) if self._note else ()
        origin = self.asker.origin if self._asked else ""
        return (*note, f"answered by {origin}") if origin else note

    @property
    def asker(self) -> Asker:
        from attnfit.engines.sglang.answers import choose

        return self._given or choose(self.version, self._source)

    @property
    def dear(self) -> bool:
        """Whether its own code answers, in a child."""
        return not getattr(self.asker, "quick", False)

    def facts(self) -> Mapping[str, bool]:
        from attnfit.engines.sglang import needs, releases

        return needs.brought(releases.entry(self.version))

    def backends(self) -> Sequence[tuple[str, str]]:
        from attnfit.engines.sglang import releases

        values = releases.entry(self.version).choices["attention_backend"]
        return [(name, f"sglang/{values.where}") for name in values.names]

    def question(self, config: dict[str, Any]) -> Question:
        raise UsageError(_NO_QUESTIONS)

    def row(self, question: Question, selection: Selection) -> dict[str, Any]:
        raise UsageError(_NO_QUESTIONS)

    def select(self, question: Question, env: Mapping[str, bool] | None = None, *, explained: bool = True) -> Selection:
        raise UsageError(_NO_QUESTIONS)

    def witnessed(self, source: str) -> Release:
        other = Release(self.version, source)
        found = getattr(other.asker, "version", self.version)
        if found not in (self.version, "unknown"):
            raise UsageError(f"{source} is sglang {found}, and {self.version} was asked; give --engine sglang=={found}")
        return other

    def installed_in(self, prefix: str) -> Release:
        return Release(self.version, prefix)

    def launch(self, circumstances: Circumstances) -> Launch:
        from attnfit.engines.sglang.case import case_of
        from attnfit.engines.sglang.launch import Asked, launch_of

        this, stated = circumstances, circumstances.env or {}
        facts = {**self.facts(), **stated}
        case = case_of(this.model, this.gpu, this.argv, gpus=this.gpus, variables=this.variables, facts=facts)
        ask = (lambda case: self._at_hand([case])[0]) if this.tried else self._ask
        asked = Asked(self.version, ask, self._at_hand, case, this.form, files_here=this.files_here, stated=stated)
        launch = launch_of(asked)
        self._recent.append((launch, asked))
        return launch

    def consider(self, launch: Launch) -> None:
        from attnfit.engines.sglang.choices import choices
        from attnfit.inputs.waiting import told

        for mine, asked in self._recent:
            if mine is launch:
                with told(f"asking sglang {self.version} for every other backend"):
                    found, known = choices(asked)
                launch.choices, launch.hazards = found, (*known, *launch.hazards)

    def sees(self, gpu: Gpu) -> Hashable:
        return self.asker.sees(gpu)

    def fitter(self, circumstances: Circumstances, weights: Weights) -> Callable[[Gpu], Fit | None]:
        return lambda gpu: None

    def kernels(self, circumstances: Circumstances, launch: Launch) -> Sequence[KernelAsk]:
        from attnfit.engines.sglang.kernels import asks

        mine = next((asked for answered, asked in self._recent if answered is launch), None)
        return asks(circumstances, mine.answer) if mine is not None else []

    def traits(self, model: Model) -> Traits:
        from attnfit.engines.sglang.traits import traits

        return traits(self.version, model, self._ask)

    def _ask(self, case: Case) -> Answer:
        """One case, asked once: candidates and plans ask the same again."""
        if len(self._answers) >= _KEPT:
            self._answers.clear()
        key = _key(case)
        if key not in self._answers:
            self._answers[key] = self.asker.ask(case)
            self._asked = True
        return self._answers[key]

    def _at_hand(self, cases: Sequence[Case]) -> list[Answer]:
        """Variations of a launch, each asked once; nothing is fetched for them."""
        keys = [_key(case) for case in cases]
        fresh = {key: case for key, case in zip(keys, cases, strict=True) if key not in self._answers}
        found = dict(zip(fresh, self.asker.at_hand(list(fresh.values())), strict=True))
        self._asked = self._asked or bool(fresh)
        self._answers.update({key: answer for key, answer in found.items() if answer.get("ok") is not None})
        return [found[key] if key in found else self._answers[key] for key in keys]


def _key(case: Case) -> bytes:
    import msgspec

    return msgspec.json.encode({name: value for name, value in case.items() if name != "config"})


class Sglang:
    """See `attnfit.engines.Engine`."""

    name = "sglang"
    apart = True

    def default_command(self, model: Sequence[str], gpus: int, config: dict[str, Any]) -> Sequence[str]:
        size = divisor(gpus, config)
        start = ("python", "-m", "sglang.launch_server", "--model-path", *model)
        return (*start, *(("--tp", str(size)) if size > 1 else ()))

    def moves(self, given: Given, launch: Launch) -> Iterator[Move]:
        from attnfit.engines.sglang.moves import moves

        return moves(given, launch)

    def pieces(self, given: Given) -> Sequence[Piece]:
        from attnfit.engines.sglang.moves_spelling import pieces

        return pieces(given.argv, given.book)

    def price(self, flag: str) -> Cost:
        from attnfit.engines.sglang.moves_costs import price

        return price(flag)

    def common(self, given: Given) -> Common:
        from attnfit.engines.sglang.common import common

        return common(given)

    def translated(self, common: Common) -> Sequence[str]:
        from attnfit.engines.sglang.common import translated

        return translated(common)

    def at_hand(self) -> Sequence[str]:
        from attnfit.engines.sglang.answers import shipped

        known = shipped()
        return [version for version in self.releases() if version in known]

    def shipped(self, version: str) -> Release:
        from attnfit.engines.sglang.answers import compact_only

        return Release(version, asker=compact_only(version))

    def room(self, given: Given, fit: Fit) -> Iterator[Move]:
        return iter(())

    def releases(self) -> Sequence[str]:
        from attnfit.engines.sglang import releases

        return releases.known()

    def release(self, version: str | None) -> Release:
        return Release(version)

    def learn(self, source: str, *, folder: Path | None, questions: int, seed: int | None, offline: bool) -> str:
        from attnfit.engines.sglang.distribution import DISTRIBUTION
        from attnfit.witness.sources import find

        if folder is not None:
            raise UsageError("SGLang has no rule books to write into --folder; leave it away: sources go to the cache")
        from attnfit.engines.sglang.answers import offline as forbidden

        return find(DISTRIBUTION, source, offline=offline or forbidden()).root


ENGINE = Sglang()
