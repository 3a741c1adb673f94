"""On which GPUs a launch starts, and on how many of them: `check`, asked of each."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import msgspec

from attnfit.core import Gpu, Report
from attnfit.engines import divisor
from attnfit.errors import UsageError
from attnfit.fleet.cell import ANSWERS, AS_IS, UNKNOWN, Cell, cell
from attnfit.fleet.remembered import Remembered
from attnfit.inputs.gpu import GpuInput
from attnfit.subject import Subject, Where, ask

COUNTS = (1, 2, 4, 8, 16)  # asked in this order, as far as more can tell more


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU: a cell for each number of them that was asked about."""

    gpu: Gpu
    cells: tuple[Cell, ...]

    @property
    def answer(self) -> str:
        """The best of them."""
        return min((each.answer for each in self.cells), key=ANSWERS.index)

    @property
    def told(self) -> tuple[Cell, ...]:
        """Those that have that answer."""
        return tuple(each for each in self.cells if each.answer == self.answer)

    def fewest(self, memory: str) -> int | None:
        """The least number with which it starts, its memory being so."""
        return next((each.count for each in self.told if each.starts and each.memory == memory), None)


def where(subject: Subject, asked: Where, gpus: Iterable[tuple[Gpu, Sequence[int]]]) -> list[Row]:
    """A row for each GPU, in their order; beside it the numbers of them to ask about, ascending."""
    release = Remembered(asked.release)
    walk = _Walk(subject, asked._replace(release=release), release)
    return [Row(gpu=gpu, cells=tuple(walk.cells(gpu, counts))) for gpu, counts in gpus]


def sensible(subject: Subject, single: bool) -> tuple[int, ...]:
    """Numbers of GPUs worth asking about. single: no machine has two of them.

    Without a command those that the plainest launch would use whole: the attention heads can be divided among them.
    """
    if single:
        return COUNTS[:1]
    if subject.command is not None:
        return COUNTS
    return tuple(n for n in COUNTS if divisor(n, subject.files.config) == n)


class _Walk:
    def __init__(self, subject: Subject, asked: Where, release: Remembered) -> None:
        self._subject, self._asked, self._release = subject, asked, release
        self._kept: dict[Hashable, tuple[Cell, int | None]] = {}

    def cells(self, gpu: Gpu, counts: Sequence[int]) -> Iterable[Cell]:
        for count in counts:
            found, uses = self._cell(gpu, count)
            yield found
            if found.answer == UNKNOWN and gpu.capability is None:
                return
            if found.answer == AS_IS and found.memory in ("fits", ""):
                return  # more of them leave more room
            if found.answer == AS_IS and uses is not None and self._subject.command is not None and uses <= count:
                return  # the command uses no more of them

    def _cell(self, gpu: Gpu, count: int) -> tuple[Cell, int | None]:
        """A cell, and how many GPUs the launch uses, where that is known. GPUs that are alike are asked about once."""
        plain, whole = ((self._release.sees(gpu, memory=memory), _named(gpu), count) for memory in (False, True))
        for key in (plain, whole):
            if key in self._kept:
                return self._kept[key]
        self._release.measured = False
        report = self._ask(self._subject, gpu, count)
        fit = report.launch.fit
        found = cell(report, lambda words: self._again(words, gpu, count)), fit.gpus if fit is not None else None
        self._kept[whole if self._release.measured else plain] = found
        return found

    def _ask(self, subject: Subject, gpu: Gpu, count: int, *, planned: bool = True) -> Report:
        on = GpuInput(((gpu, count),))
        return ask(subject, self._asked, on, planned=planned, considered=lambda launch: planned and launch.ok is False)

    def _again(self, words: tuple[str, ...], gpu: Gpu, count: int) -> Report | None:
        from attnfit.inputs.command import parse_command

        try:
            command = parse_command(words)
        except UsageError:
            return None
        return self._ask(self._subject._replace(command=command), gpu, count, planned=False)


def _named(gpu: Gpu) -> tuple[bool, bool]:
    """What `decide` asks of a GPU before any release is."""
    return gpu.capability is None, gpu.memory_gib is None
