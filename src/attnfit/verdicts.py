"""What is found of one backend, and what an engine makes of a launch beside that. Plain frozen data, as in core.py."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Status(StrEnum):
    ACCEPTS = "accepts"
    REFUSES = "refuses"
    UNKNOWN = "unknown"


class Reason(msgspec.Struct, frozen=True, gc=False):
    """Why a backend refuses. `text` is the engine's own wording; the rest is ours."""

    code: str  # stable, e.g. "dtype", "compute_capability", "combination"
    text: str
    required: str = ""  # e.g. "float16, bfloat16"
    observed: str = ""  # e.g. "float32"
    where: str = ""  # engine source, "package/layers/backend.py:412"


class Verdict(msgspec.Struct, frozen=True, gc=False):
    backend: str
    status: Status
    reasons: tuple[Reason, ...] = ()
    unknown: str = ""  # what is missing, when status is UNKNOWN
    candidate: bool = False  # in the engine's automatic priority list for this question
    brought_by: str = ""  # not in the release: the package that brings it


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One thing a launch chooses by a flag, and what becomes of the launch with each of its values instead."""

    what: str  # "attention backend", "DSA decode kernel"
    flag: str  # "--attention-backend"
    chosen: tuple[str, ...] = ()  # what this launch ends up with
    verdicts: tuple[Verdict, ...] = ()  # every value the release takes, in its order


class Change(msgspec.Struct, frozen=True):
    """A setting that the engine changes by itself."""

    field: str
    given: Any  # by the user, else the engine's default
    resolved: Any
    said: str = ""  # what the engine says of it
    minor: bool = False  # a default filled in, of which nobody need know


class Hazard(msgspec.Struct, frozen=True):
    """Something in the engine that a user of this launch should know.

    `strength`: "breaks" (the launch cannot serve), "may break" (`needs` says what would make it sure), "" (it starts).
    """

    code: str  # stable: the number of a record ("AF223"), or a word ("inert-flag")
    text: str
    where: str = ""  # engine source
    flag: str = ""  # that does nothing here, and may go
    strength: str = ""
    needs: str = ""  # what is not known here, where it only may break
    kind: str = ""  # of the record: hazards/record.py lists the kinds
    stage: str = ""  # when it strikes, as records say it: "weight-load", "warmup", "runtime", ...
    remedies: tuple[str, ...] = ()  # the record's ways out, a line each

    @property
    def breaks(self) -> bool:
        return self.strength == "breaks"

    @property
    def may_break(self) -> bool:
        return self.strength == "may break"


class KernelFact(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel that the launch will start, compiled ahead of time for its GPU with the launch's own shapes.

    verdict: fits | does not fit | does not compile | unknown. "does not fit" of an autotuned kernel means that no
    configuration is left. `message` is Triton's own. `same_triton`: it was compiled with the Triton that the release
    brings; None: not known which it brings.
    """

    backend: str  # "TRITON_MLA", "GDN_ATTN", ...
    kernel: str
    case: str  # "decode", "prefill", ...
    verdict: str
    message: str = ""
    shared: int | None = None  # bytes of shared memory that the largest configuration needs
    limit: int | None = None  # bytes that one block may have
    configurations: int = 1
    left_out: int = 0  # of them, by an autotuner, because they do not fit
    where: str = ""  # the engine's source, "package/.../kernel.py:277"
    inputs: tuple[str, ...] = ()
    triton: str = ""
    brought: str = ""  # the Triton that the release brings
    same_triton: bool | None = None

    @property
    def breaks(self) -> bool:
        """The launch starts this kernel, and it cannot run: so says the Triton that the release brings."""
        return self.verdict in ("does not fit", "does not compile") and self.same_triton is True

    @property
    def may_break(self) -> bool:
        """The launch starts this kernel, and under a Triton that is not known to be the release's it cannot run."""
        return self.verdict in ("does not fit", "does not compile") and self.same_triton is not True
