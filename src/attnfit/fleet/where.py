"""On which GPUs a launch starts, and on how many of them: `check`, asked of each."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

import msgspec

from attnfit.core import Gpu, Report, Step
from attnfit.engines import divisor
from attnfit.fleet.cell import ANSWERS, AS_IS, NO, TOO_SMALL, UNKNOWN, WITH_A_CHANGE, Cell, again, cell
from attnfit.fleet.remembered import Measured, Remembered, decisive
from attnfit.inputs.gpu import GpuInput
from attnfit.subject import Subject, Where, ask

COUNTS = (1, 2, 4, 8, 16)  # asked in this order, as far as more can tell more


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU: a cell for each number of them that was asked about."""

    gpu: Gpu
    cells: tuple[Cell, ...]

    @property
    def answer(self) -> str:
        """ "as is" before "with a change", on a number of GPUs whose memory is not too small; "too small" where none
        is; else "no", else "unknown"."""
        starting = [each.answer for each in self.cells if each.starts and each.memory != TOO_SMALL]
        if starting:
            return min(starting, key=ANSWERS.index)
        if any(each.memory == TOO_SMALL for each in self.cells):
            return TOO_SMALL
        return NO if any(each.answer == NO for each in self.cells) else UNKNOWN

    @property
    def told(self) -> tuple[Cell, ...]:
        """The cells that say so."""
        if self.answer == TOO_SMALL:
            return tuple(each for each in self.cells if each.memory == TOO_SMALL)
        return tuple(each for each in self.cells if each.answer == self.answer and each.memory != TOO_SMALL)

    def fewest(self, memory: str) -> int | None:
        """The least number with which it starts, its memory being so."""
        return next((each.count for each in self.told if each.starts and each.memory == memory), None)


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Every GPU asked about, and who answered."""

    engine: str
    release: str
    exact: bool
    model: str
    rows: tuple[Row, ...]
    said: tuple[str, ...] = ()
    launched: tuple[str, ...] = ()  # the command; where none was given, the plainest on the most GPUs
    divided: int = 0  # these; 0: a command was given
    weights_from: str = ""  # where the weights' sizes come from; "": no memory was measured

    @property
    def exit_code(self) -> int:
        return 0 if self.exact and any(row.answer != UNKNOWN for row in self.rows) else 3


def where(subject: Subject, asked: Where, gpus: Iterable[tuple[Gpu, Sequence[int]]]) -> Fleet:
    """A row for each GPU, in their order; beside it the numbers of them to ask about, ascending."""
    walk = _Walk(subject, asked)
    rows = tuple(Row(gpu=gpu, cells=tuple(walk.cells(gpu, counts))) for gpu, counts in gpus)
    every = [each for row in rows for each in row.cells]
    most = max(every, key=lambda each: each.count, default=None)
    return Fleet(
        engine=subject.engine.name,
        release=asked.release.version,
        exact=asked.release.exact,
        model=subject.path,
        rows=rows,
        said=(*asked.said, *subject.said, *asked.release.said),
        launched=most.asked if most is not None else (),
        divided=most.count if most is not None and subject.command is None else 0,
        weights_from=walk.weights_from,
    )


def sensible(subject: Subject, single: bool) -> tuple[int, ...]:
    """Numbers of GPUs worth asking about. single: no machine has two of them.

    Without a command those that the plainest launch would use whole: the attention heads can be divided among them.
    """
    if single:
        return COUNTS[:1]
    if subject.command is not None:
        return COUNTS
    return tuple(n for n in COUNTS if divisor(n, subject.files.config) == n)


_Told = tuple[Cell, int | None]


def _refused(found: Cell) -> bool:
    """As it is and with every change, and not for its memory."""
    return found.answer == NO and found.memory != TOO_SMALL


class _Walk:
    def __init__(self, subject: Subject, asked: Where) -> None:
        self._subject, self._release = subject, Remembered(asked.release)
        self._asked = asked._replace(release=self._release)
        self._kept: dict[Hashable, list[tuple[list[Measured], _Told]]] = {}
        self.weights_from = ""

    def cells(self, gpu: Gpu, counts: Sequence[int]) -> Iterator[Cell]:
        settled = ""  # the words of a refusal of which more GPUs tell nothing new
        for count in counts:
            if settled and self._cell(gpu, count, planned=False)[0].why == settled:
                continue
            found, uses = self._cell(gpu, count)
            yield found
            if gpu.capability is None:
                return
            settled = found.why if self._settled(found, gpu, counts[-1]) else ""
            if found.answer == AS_IS and found.memory in ("fits", ""):
                return  # more of them leave more room
            if found.answer == AS_IS and self._subject.command is not None and uses is not None and uses <= count:
                return  # the command uses no more of them

    def _settled(self, found: Cell, gpu: Gpu, most: int) -> bool:
        """Refused, and helped by a change for sure; or by none, on the most of them either: two GPUs may allow a change
        that one does not."""
        if found.answer == WITH_A_CHANGE:
            return found.memory in ("fits", "")
        return _refused(found) and _refused(last := self._cell(gpu, most)[0]) and last.why == found.why

    def _cell(self, gpu: Gpu, count: int, *, planned: bool = True) -> _Told:
        """A cell, and how many GPUs the launch uses, where that is known.

        GPUs that a release sees as one get one answer, if whatever was asked about memory on the way is answered alike.
        """
        key = (self._release.sees(gpu), gpu.capability is None, gpu.memory_gib is None, count, planned)
        for measured, told in self._kept.setdefault(key, []):
            if all(decisive(fit(gpu)) == decided for fit, decided in measured):
                return told
        self._release.measured = []
        on = GpuInput(((gpu, count),))
        report = ask(
            self._subject,
            self._asked,
            on,
            planned=planned,
            far=False,
            considered=lambda launch: planned and launch.ok is False,
        )
        fits = [report.launch.fit]

        def changed(step: Step) -> Report | None:
            after = again(self._subject, self._asked, on, step)
            fits.append(after.launch.fit if after is not None else None)
            return after

        answer = cell(report, changed)
        told = answer, fits[0].gpus if fits[0] is not None else None
        self._kept[key].append((self._release.measured, told))
        self.weights_from = self.weights_from or next((fit.weights_from for fit in fits if fit is not None), "")
        return told
