"""Where answers come from: the release's own code, run by the witness, or the compact form that is shipped.

An *asker* answers one launch (a *case*, plain JSON) with one dict (`Answer`), both described below. Which asker is
taken, in this order:

1. the source the user names (`--witness`: a tree, a wheel, "installed", "sglang==X");
2. the SGLang installed where the command would run, if it is of the release asked for;
3. source files of the release in the user's cache (`attnfit learn sglang==X`, or an earlier run);
4. the compact form shipped for a few releases, as far as it knows the case;
5. source files fetched now from the user's package index, unless told to stay offline.

The witness's child process is kept open for the whole run: candidates and plans ask it many times.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from attnfit.errors import AttnfitError, UnknownAnswer

if TYPE_CHECKING:
    from attnfit.core import Gpu
    from attnfit.witness.cache import Source

COMPACT = "attnfit.engines.sglang.compact"  # releases() -> versions it has; answer(case, version) -> Answer
WITNESS = "attnfit.engines.sglang.witness"  # Child(source): ask(case) -> Answer, close()

Say = Callable[[str], None]

# Children that answer variations of a launch side by side, and the number of cases that is worth the start of one.
CHILDREN, WORTH_A_CHILD = 4, 12
_CAN_COUNT = hasattr(os, "sched_getaffinity")


class Case(TypedDict):
    """One launch, as plain JSON."""

    model: str  # the path or hub id as the server is given it
    config: dict[str, Any]  # config.json
    hf_quant: dict[str, Any] | None  # hf_quant_config.json
    files: list[str] | None  # names beside config.json; None: not known
    capability: str  # "12.0"
    gpu_name: str  # as NVML names it; "" where only a capability is known
    gpu_mem_gb: float  # GiB of each GPU
    gpus: int | None  # that the server sees; None: nobody said
    argv: list[str]  # the server's arguments, after `launch_server` or `serve`; the model among them
    variables: dict[str, str]  # environment variables the command sets
    facts: dict[str, bool]  # packages that are there (needs.py), where that differs from what the release brings


class Where(TypedDict):
    file: str  # below sglang/: "srt/server_args.py"
    line: int
    func: str


class Answer(TypedDict, total=False):
    """What a release makes of a case. `ok` None: not known, and `unknown` names what is missing."""

    ok: bool | None
    # where it ends: arg-parse | arg-resolve | arg-check | model-config | publish | model-runner-init | backend-init
    stage: str | None
    error_type: str | None
    message: str | None
    where: Where | None
    unknown: list[str]
    prefill: str | None
    decode: str | None
    resolved: dict[str, Any]  # field of ServerArgs -> value after resolution
    given: dict[str, Any]  # field of ServerArgs -> value as parsed
    warnings: list[list[str]]  # [level, text, logger], in the order they were logged
    linear_attn: dict[str, Any] | None
    backend_class: str | None
    full_attn_backend_class: str | None
    linear_attn_backend_class: str | None
    needs: list[str]  # packages that what was chosen imports (needs.py)
    notes: list[str]  # what should be known of how it was answered
    doubts: list[str]  # why a pass is not known to be one (doubts.py): the gates let it through
    traits: dict[str, Any]  # what its ModelConfig says of the model, as far as it came


class Asker(Protocol):
    """Answers launches for one release."""

    origin: str  # for people: "its own code, FILE"; "" where nobody answers

    def ask(self, case: Case) -> Answer:
        """One launch, with whatever it takes: source files are fetched for it."""

    def at_hand(self, cases: Sequence[Case]) -> list[Answer]:
        """Variations of a launch: from what is here already."""

    def sees(self, gpu: Gpu) -> Hashable:
        """What of a GPU an answer hangs on."""

    def close(self) -> None: ...


def to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def offline() -> bool:
    """Whether the user forbids fetching: `--offline`, or a variable that says so."""
    return any(os.environ.get(name, "").lower() in ("1", "true", "yes", "on") for name in _OFFLINE)


_OFFLINE = ("ATTNFIT_OFFLINE", "HF_HUB_OFFLINE")


def nothing(why: str) -> Answer:
    """No answer, and why."""
    return Answer(ok=None, stage=None, message=None, where=None, unknown=[why], resolved={}, given={}, warnings=[])


class Nobody:
    """Stands in where no source could be had: every answer is unknown, with the next action."""

    origin = ""

    def __init__(self, why: str) -> None:
        self.why = why

    def ask(self, case: Case) -> Answer:
        return nothing(self.why)

    def at_hand(self, cases: Sequence[Case]) -> list[Answer]:
        return [self.ask(case) for case in cases]

    def sees(self, gpu: Gpu) -> Hashable:
        return None

    def close(self) -> None:
        pass


class Witnessed:
    """Asks the release's own code in an isolated child; opens it at the first question, and again if it died."""

    def __init__(self, source: Source) -> None:
        self.origin, self.version = f"its own code, {source.origin}", source.version
        self._source = source
        self._child: Any = None
        self._helpers: list[Witnessed] = []

    def ask(self, case: Case) -> Answer:
        try:
            if self._child is None:
                self._child = import_module(WITNESS).Child(self._source)
            answer: Answer = self._child.ask(case)
            return answer
        except AttnfitError as error:  # the child died or ran out of its limits: this case is unknown, not the next
            self.close()
            return nothing(str(error))

    def at_hand(self, cases: Sequence[Case]) -> list[Answer]:
        """Many cases go to several children at once: a start costs as much as ten cases."""
        wanted = min(len(cases) // WORTH_A_CHILD, len(os.sched_getaffinity(0)), CHILDREN) if _CAN_COUNT else 1
        if wanted < 2:
            return [self.ask(case) for case in cases]
        from concurrent.futures import ThreadPoolExecutor

        while len(self._helpers) < wanted - 1:
            self._helpers.append(Witnessed(self._source))
        askers = [self, *self._helpers[: wanted - 1]]
        answers: list[Answer] = [nothing("not asked")] * len(cases)
        left = iter(range(len(cases)))  # one iterator for all: who is ready takes the next
        lock = Lock()

        def work(asker: Witnessed) -> None:
            while True:
                with lock:
                    index = next(left, None)
                if index is None:
                    return
                answers[index] = asker.ask(cases[index])

        with ThreadPoolExecutor(len(askers)) as pool:
            list(pool.map(work, askers))
        return answers

    def sees(self, gpu: Gpu) -> Hashable:
        return gpu  # its code may read name and memory

    def close(self) -> None:
        for helper in self._helpers:
            helper.close()
        child, self._child = self._child, None
        if child is not None:
            child.close()


class Compact:
    """The shipped form; what it does not know is asked of `further`, made at the first such case."""

    def __init__(self, version: str, further: Callable[[], Asker]) -> None:
        self.origin = "the compact form of its code that is shipped with attnfit"
        self._version, self._make = version, further
        self._further: Asker | None = None
        self._failed = False  # to have the source files; asked for once

    @property
    def quick(self) -> bool:
        """Nothing else has been asked."""
        return self._further is None

    def ask(self, case: Case) -> Answer:
        if self._further is None:
            answer = self._shipped(case)
            if not answer.get("unknown") or answer.get("stage") or self._failed:
                return answer
            further = self._make()
            if isinstance(further, Nobody):
                self._failed = True
                return answer
            self._further, self.origin = further, further.origin
        return self._further.ask(case)

    def at_hand(self, cases: Sequence[Case]) -> list[Answer]:
        if self._further is not None:
            return self._further.at_hand(cases)
        return [self._shipped(case) for case in cases]

    def sees(self, gpu: Gpu) -> Hashable:
        if self._further is not None:
            return self._further.sees(gpu)
        seen: Hashable = import_module(COMPACT).sees(gpu, self._version)
        return seen

    def _shipped(self, case: Case) -> Answer:
        answer: Answer = import_module(COMPACT).answer(case, self._version)
        if answer.get("unknown") and not answer.get("stage"):  # with a stage its own code was run, and ended there
            answer["unknown"] = [*answer["unknown"], f"`attnfit learn sglang=={self._version}` makes it known"]
        return answer

    def close(self) -> None:
        if self._further is not None:
            self._further.close()


def compact_only(version: str) -> Asker:
    """The shipped form of a release, and nobody behind it."""
    return Compact(version, lambda: Nobody(f"`attnfit learn sglang=={version}` makes it known"))


@lru_cache(maxsize=32)
def choose(version: str, source: str | None = None, say: Say = to_stderr) -> Asker:
    """The asker for a release, kept for the whole run. `source`: what the user named, or an environment's prefix.

    Raises InputError or UnknownAnswer for a source that was named and is none.
    """
    asker = _choose(version, source, say)
    atexit.register(asker.close)
    return asker


def _choose(version: str, source: str | None, say: Say) -> Asker:
    from attnfit.engines.sglang.distribution import DISTRIBUTION
    from attnfit.witness import cache, sources

    if source is not None and any(os.path.isdir(os.path.join(source, part)) for part in ("lib", "Lib")):
        return Witnessed(sources.installed(DISTRIBUTION, source))  # an environment
    if source is not None:
        return Witnessed(sources.find(DISTRIBUTION, source, offline=offline(), say=say))
    kept = cache.kept(DISTRIBUTION, f"{DISTRIBUTION.name}-{version}")
    if kept is not None:
        return Witnessed(kept)

    def fetched() -> Asker:
        try:
            return Witnessed(sources.find(DISTRIBUTION, f"sglang=={version}", offline=offline(), say=say))
        except UnknownAnswer as error:
            why = "" if offline() else f" ({error})"
            learn = f"`attnfit learn sglang=={version}`"
            return Nobody(f"the source files of sglang {version} are not here; {learn} fetches them{why}")

    if version in shipped():
        return Compact(version, fetched)
    return fetched()


def shipped() -> tuple[str, ...]:
    """Releases that are answered without any source files."""
    return tuple(import_module(COMPACT).releases()) if _have(COMPACT) else ()


def _have(module: str) -> bool:
    return find_spec(module) is not None
