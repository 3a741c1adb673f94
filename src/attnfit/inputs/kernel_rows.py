"""What the child that compiles kernels answers, and what follows from it for a launch. Plain data, no I/O."""

from __future__ import annotations

from typing import Any

import msgspec

FITS, TOO_LARGE, REFUSED, UNKNOWN = "fits", "does not fit", "does not compile", "unknown"


class Tuned(msgspec.Struct, frozen=True):
    """The place of a configuration among those an autotuner tries; on which exceptions it goes on to the next."""

    index: int
    of: int
    declared: int
    meta: dict[str, Any]
    skips: tuple[str, ...]


class Occupancy(msgspec.Struct, frozen=True):
    """An upper bound: blocks a multiprocessor holds at once, their warps, of the most it could hold."""

    blocks: int
    warps: int
    most: int
    limited_by: tuple[str, ...]


class Instructions(msgspec.Struct, frozen=True):
    """Counts in the program text (a loop's body once)."""

    total: int
    tensor: dict[str, int]  # opcodes of tensor cores
    global_loads: dict[str, int]
    local: dict[str, int]


class Row(msgspec.Struct, frozen=True):
    """One launch with one configuration on one capability. docs/json.md; a figure that is not known is None."""

    case: str
    launch: int
    capability: str
    limit: int
    kernel: str
    file: str
    line: int
    constexprs: dict[str, Any]
    tensors: dict[str, str]
    verdict: str  # fits | does not fit | does not compile | unknown
    grid: tuple[int, ...] | None = None
    tuned: Tuned | None = None
    note: str = ""
    exception: str = ""
    message: str = ""
    num_warps: int | None = None
    num_stages: int | None = None
    num_ctas: int | None = None
    threads: int | None = None
    shared: int | None = None
    tensor_memory: int | None = None
    registers: int | None = None
    stack: int | None = None
    spill_stores: int | None = None
    spill_loads: int | None = None
    instructions: Instructions | None = None
    occupancy: Occupancy | None = None
    key: str = ""
    seconds: float | None = None

    @property
    def skipped(self) -> bool:
        """Whether an autotuner meets this exception and goes on."""
        return self.tuned is not None and self.exception in self.tuned.skips


class Outcome(msgspec.Struct, frozen=True):
    """One launch: a single configuration, or all that an autotuner would try."""

    rows: tuple[Row, ...]

    @property
    def verdict(self) -> str:
        """fits: it runs, perhaps with some configurations left out; else the verdict of what stops it.

        An autotuner passes over a configuration that does not fit, and stops at an exception it does not expect; where
        no configuration is left, the launch raises OutOfResources.
        """
        if stopped := self.stopped_by:
            return stopped.verdict
        return UNKNOWN if any(row.verdict == UNKNOWN for row in self.rows) else FITS

    @property
    def stopped_by(self) -> Row | None:
        """The row whose exception the launch raises, or None."""
        failed = [row for row in self.rows if row.verdict in (TOO_LARGE, REFUSED)]
        fatal = next((row for row in failed if not row.skipped), None)
        return fatal or (failed[0] if failed and len(failed) == len(self.rows) else None)

    @property
    def shared(self) -> int | None:
        """Bytes of shared memory: the most that a configuration takes which fits; where none does, the least."""
        stopped = self.stopped_by
        if stopped is not None and not stopped.skipped:
            return stopped.shared
        if stopped is not None:
            wanted = (row.shared for row in self.rows if row.verdict == TOO_LARGE and row.shared is not None)
            return min(wanted, default=None)
        return max((row.shared for row in self.rows if row.verdict == FITS and row.shared is not None), default=None)


class Failure(msgspec.Struct, frozen=True):
    """A case that could not be tried whole, and why."""

    case: str
    capability: str
    message: str
    exception: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What the child found, and with what."""

    triton: str
    torch: str
    rows: tuple[Row, ...]
    failures: tuple[Failure, ...]
    seconds: float
    python: str = ""

    def outcomes(self) -> tuple[Outcome, ...]:
        """What becomes of each launch, its configurations taken together, in order."""
        found: dict[tuple[str, str, int], list[Row]] = {}
        for row in self.rows:
            found.setdefault((row.capability, row.case, row.launch), []).append(row)
        return tuple(Outcome(tuple(rows)) for rows in found.values())
