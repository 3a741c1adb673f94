"""The nouns of the fit machine, as plain data: a case to try, a launch that was seen, what came of compiling it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

FITS = "fits"
TOO_LARGE = "does not fit"  # compiles, and the launcher refuses it: OutOfResources
REFUSED = "does not compile"  # the compiler gives a reason
UNKNOWN = "unknown"  # the compiler died, took too long, or we failed: no statement about the kernel


class Unknown(Exception):
    """Raised by a case (or an adapter) for what it cannot say; the message names what is missing."""


@dataclass(frozen=True)
class Case:
    """One thing to try: `call` runs host code that launches Triton kernels, as the program would on that GPU."""

    name: str
    call: Callable[[], Any]
    note: str = ""


@dataclass(frozen=True)
class Tuned:
    """The place of a configuration among those an autotuner would measure, and what it sets."""

    index: int
    of: int  # after the kernel's own early prune
    declared: int  # before it
    meta: dict[str, Any]
    skips: tuple[str, ...]  # exceptions on which this Triton's autotuner goes on to the next configuration


@dataclass(frozen=True)
class Launch:
    """One kernel launch with one configuration, as Triton's own launch path specialised it."""

    case: str
    launch: int  # which launch of the case, from 0; an autotuned one has several configurations
    capability: str  # "12.0"
    limit: int  # bytes of shared memory one block may have
    kernel: str
    file: str
    line: int
    grid: tuple[int, ...] | None
    tensors: dict[str, str]  # argument -> "fp16[8, 16, 576]"
    constexprs: dict[str, Any]
    tuned: Tuned | None = None
    note: str = ""
    refusal: tuple[str, str] | None = None  # exception and message, where Triton refused before compiling
    source: Any = field(default=None, repr=False, compare=False)  # what Triton handed to its compiler (`Handed`)


@dataclass(frozen=True)
class Compiled:
    """What came of compiling one launch for one GPU. A figure that could not be read is None.

    verdict: fits | does not fit | does not compile | unknown. `exception` and `message` are Triton's own, as the
    launch would raise them. Sizes are bytes; `registers` and `stack` are for each thread.
    """

    case: str
    launch: int
    capability: str
    limit: int
    kernel: str
    file: str
    line: int
    grid: tuple[int, ...] | None
    tensors: dict[str, str]
    constexprs: dict[str, Any]
    tuned: dict[str, Any] | None
    note: str
    verdict: str
    exception: str = ""
    message: str = ""
    num_warps: int | None = None
    num_stages: int | None = None
    num_ctas: int | None = None
    threads: int | None = None
    shared: int | None = None
    tensor_memory: int | None = None  # columns of 512; capability 10.x and 11.0 only
    registers: int | None = None
    stack: int | None = None
    spill_stores: int | None = None
    spill_loads: int | None = None
    instructions: dict[str, Any] | None = None  # see `cubin.mix`
    occupancy: dict[str, Any] | None = None  # see `occupancy.estimate`
    key: str = ""  # the same for launches that are one compiled kernel
    seconds: float | None = None  # spent compiling, when it was

    def plain(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)

    @property
    def spills(self) -> bool:
        """Whether registers are spilled to memory."""
        return bool(self.spill_stores or self.spill_loads)


def joined(launch: Launch, result: dict[str, Any]) -> Compiled:
    """A launch and the outcome of its kernel, which other launches may share."""
    launch = replace(launch, source=None)
    seen = {k: v for k, v in launch.__dict__.items() if k not in ("source", "refusal", "tuned")}
    return Compiled(**seen, tuned=asdict(launch.tuned) if launch.tuned else None, **result)
