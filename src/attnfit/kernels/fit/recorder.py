"""Records what host code launches: Triton's own launch path runs up to the compiler's door, and no further.

What a launch compiles depends on how it is called: which pointers and integers are divisible by 16, which are 1, the
constexprs, the options, what an autotuner sets. None of that is imitated here. `JITFunction.run` is Triton's; only the
function it calls to compile is replaced, by one that notes what it was handed and returns a kernel that does nothing.
An autotuner is made to try every configuration that its own pruning leaves, instead of measuring them.

Arguments should be meta tensors: they take no memory, give the shapes and strides of the real ones, and their
`data_ptr()` is the offset into a storage at address 0, so that a view is as aligned as it would be in a buffer that
CUDA allocated (which aligns to 256 bytes or more). CPU tensors work too, where host code reads values; torch aligns
those to 64 bytes, more than the 16 that Triton asks about.
"""

from __future__ import annotations

import itertools
import os
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import triton
import triton.compiler.compiler
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from attnfit.kernels.fit.driver import NoGpuDriver, active
from attnfit.kernels.fit.records import Launch, Tuned

_device_numbers = itertools.count(1000)
SKIPPED = (
    "OutOfResources",
    "CompileTimeAssertionFailure",
    "PTXASError",
)  # triton/runtime/autotuner.py, Autotuner._bench


@dataclass
class Handed:
    """What Triton's launch path handed to its compiler."""

    source: Any
    target: Any
    options: dict[str, Any]
    digest: str


class _Stub:
    """Stands for a compiled kernel on the way back through the launch path."""

    function = packed_metadata = None

    def __init__(self, handed: Handed) -> None:
        self.handed = handed
        self.grid: tuple[int, ...] | None = None

    def launch_metadata(self, *args: Any) -> None:
        return None

    def run(self, *args: Any, **kwargs: Any) -> None:
        self.grid = tuple(int(n) for n in args[:3])

    def result(self) -> _Stub:
        return self


class _Objection(Exception):
    """Triton objects to the kernel itself; the cause says how."""


@dataclass
class _Recorder:
    capability: str
    limit: int
    case: str = ""
    note: str = ""
    launches: list[Launch] = field(default_factory=list)
    tuned: Tuned | None = None
    number: int = -1  # of the launch

    def compile(self, source: Any, target: Any = None, options: Any = None, **kwargs: Any) -> _Stub:
        try:
            digest = source.hash()  # as compiling begins: finds what the kernel refers to, and may object to it
        except Exception as raised:
            raise _Objection from raised
        return _Stub(Handed(source, target, dict(options or {}), digest))

    def saw(
        self,
        fn: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        stub: _Stub | None,
        refusal: tuple[str, str] | None,
    ) -> None:
        given = {**dict(zip(fn.arg_names, args, strict=False)), **kwargs}
        source = stub.handed.source if stub else None
        self.launches.append(
            Launch(
                case=self.case,
                launch=self.number,
                capability=self.capability,
                limit=self.limit,
                kernel=fn.__name__,
                file=fn.fn.__code__.co_filename,
                line=fn.starting_line_number,
                grid=stub.grid if stub else None,
                tensors={k: _tensor(v) for k, v in given.items() if k in fn.arg_names and hasattr(v, "data_ptr")},
                constexprs=_constexprs(fn, source, given),
                tuned=self.tuned,
                note=self.note,
                refusal=refusal,
                source=stub.handed if stub else None,
            )
        )


def _tensor(value: Any) -> str:
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return f"{dtype}[{', '.join(str(n) for n in getattr(value, 'shape', ()))}]"


def _constexprs(fn: Any, source: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The constexpr arguments by name, as they were specialised."""
    found = {}
    for param in fn.params:
        if param.is_constexpr:
            value = given.get(param.name, param.default if param.has_default else None)
            if source is not None:
                value = source.constants.get((param.num,), value)
            found[param.name] = value if isinstance(value, (bool, int, float, str, type(None))) else str(value)
    return found


@contextmanager
def recording(
    capability: str,
    limit: int,
    *,
    case: str = "",
    note: str = "",
    properties: dict[str, int] | None = None,
) -> Iterator[list[Launch]]:
    """Everything launched within is recorded for that compute capability ("12.0") and not run.

    `limit` is what one block may have of shared memory, in bytes; `properties` are further device properties that
    host code asks Triton's driver for (multiprocessor_count, ...). Yields the list that fills. Not for threads.
    """
    if interpreted():
        raise RuntimeError("TRITON_INTERPRET is set: kernels are interpreted, and nothing can be compiled; unset it")
    recorder = _Recorder(capability, limit, case, note)
    driver = NoGpuDriver(capability, {"max_shared_mem": limit, **(properties or {})}, next(_device_numbers))
    with ExitStack() as stack:
        stack.enter_context(active(driver))
        for module in (triton.compiler, triton.compiler.compiler):
            stack.enter_context(mock.patch.object(module, "compile", recorder.compile))
        stack.enter_context(mock.patch.object(JITFunction, "run", _recorded(recorder, JITFunction.run)))
        for tuner in _with_subclasses(Autotuner):
            if "run" in vars(tuner):
                stack.enter_context(mock.patch.object(tuner, "run", _every_config(recorder)))
        yield recorder.launches


def interpreted() -> bool:
    """Whether `triton.jit` makes interpreted functions in this process."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y")


def _with_subclasses(kind: Any) -> list[Any]:
    found = [kind]
    for child in kind.__subclasses__():
        found += _with_subclasses(child)
    return found


def _recorded(recorder: _Recorder, run: Any) -> Any:
    def recorded(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        stub, refusal = None, None
        recorder.number += recorder.tuned is None
        try:
            stub = run(self, *args, grid=grid, warmup=warmup, **kwargs)
        except _Objection as objection:
            refusal = type(objection.__cause__).__name__, str(objection.__cause__)
        except Exception as raised:
            if not _by_backend(raised):
                raise
            refusal = type(raised).__name__, str(raised)
        recorder.saw(self, args, kwargs, stub, refusal)
        if stub is not None:
            stub.grid = None  # Triton keeps it for the next launch of the same kernel
        return stub

    return recorded


def _by_backend(raised: BaseException) -> bool:
    """Whether the GPU backend's own checks raised it (clusters below 9.0, warps that are no power of two)."""
    frames = traceback.extract_tb(raised.__traceback__)
    return bool(frames) and "/triton/backends/" in frames[-1].filename.replace("\\", "/")


def _every_config(recorder: _Recorder) -> Any:
    def every_config(self: Any, *args: Any, **kwargs: Any) -> None:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        configs = list(self.configs if len(self.configs) <= 1 else self.prune_configs(kwargs))
        recorder.number += len(self.configs) > 1
        for index, config in enumerate(configs):
            if both := kwargs.keys() & config.kwargs.keys():
                raise ValueError(f"meta-parameters given by the caller and by the autotuner: {', '.join(sorted(both))}")
            given = {**kwargs, **config.all_kwargs()}
            if config.pre_hook is not None:
                config.pre_hook({**self.nargs, **given})
            if len(self.configs) > 1:
                meta = {
                    k: v if isinstance(v, (bool, int, float, str)) else str(v) for k, v in config.all_kwargs().items()
                }
                recorder.tuned = Tuned(index, len(configs), len(self.configs), meta, SKIPPED)
            try:
                self.fn.run(*args, **given)
            finally:
                recorder.tuned = None
        self.nargs = None

    return every_config
