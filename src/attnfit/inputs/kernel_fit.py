"""Asks whether Triton kernels fit GPUs: in a child process, under a Python that has torch and Triton.

The child is `attnfit/kernels/fit/__main__.py`, started as a file, so that the Python of an engine's own environment can
be used although attnfit is not installed in it. It needs no GPU and compiles for the capabilities it is given.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from attnfit import gpus
from attnfit.core import Capability
from attnfit.errors import AttnfitError, UnknownAnswer, UsageError
from attnfit.inputs.kernel_rows import Answer
from attnfit.inputs.scratch import scratch, unwinding
from attnfit.witness.cache import cache_dir

CHILD = Path(gpus.__file__).parent.parent / "kernels" / "fit" / "__main__.py"
OURS = "attnfit.kernels.fit.ours"
FLA = "attnfit.kernels.fit.fla"
LINEAR_SIZES = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")  # of a gated delta rule
VARIABLE = "ATTNFIT_KERNELS_PYTHON"
CAPABILITIES = ("8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1")  # what our kernels are made for
NEEDED = (3, 11)  # of the Python asked under
Progress = Callable[[int, int], None]


def chosen_python(given: str | None) -> str:
    """The Python to ask under: `given`, else ATTNFIT_KERNELS_PYTHON, else this one. Raises UsageError."""
    python = given or os.environ.get(VARIABLE) or sys.executable
    found = shutil.which(os.path.expanduser(python))
    if found is None:
        whence = "--python" if given else VARIABLE
        raise UsageError(
            f"{whence} {python}: there is no such program; give the path of a Python, as in .venv/bin/python"
        )
    return found


def limit_of(capability: str) -> int:
    """Bytes of shared memory one block may have there (catalog.json). Raises UsageError for an unknown capability."""
    try:
        gpu = gpus.by_capability(Capability.parse(capability))
    except ValueError:
        raise UsageError(f"{capability!r} is no compute capability; write one as 12.0") from None
    assert gpu.smem_per_block_kib is not None
    return int(gpu.smem_per_block_kib * 1024)


def ask(
    capabilities: Iterable[str],
    *,
    module: str = OURS,
    about: Mapping[str, Any] | None = None,
    wanted: str = "",
    properties: Mapping[str, Mapping[str, int]] | None = None,
    python: str | None = None,
    cache: bool = True,
    progress: Progress | None = None,
) -> Answer:
    """Compiles every launch of `module` (its `cases(about, capability)`) for each capability, in a child process.

    `wanted` is a part of the names of the cases to try; `properties` are what else host code asks of a device, for each
    capability, as Triton names it (multiprocessor_count: without it, a case that asks is unknown); `cache` keeps
    results below attnfit's cache folder. Raises UsageError for a capability or a Python that is none, UnknownAnswer
    where torch or Triton is missing or the child cannot answer.
    """
    capabilities = list(capabilities)
    limits = {capability: limit_of(capability) for capability in capabilities}
    job = {"capabilities": capabilities, "limits": limits, "module": module, "ask": dict(about or {}), "wanted": wanted}
    job["properties"] = {capability: dict(known) for capability, known in (properties or {}).items()}
    if cache:
        job["cache"] = str(cache_dir() / "kernel-fit")
    python = chosen_python(python)
    with unwinding(), scratch() as folder:
        answer = {**_talk(python, job, progress, folder), "python": python}
    try:
        return msgspec.convert(answer, Answer, strict=False)
    except msgspec.ValidationError as error:
        raise AttnfitError(f"the answer of {CHILD.name} is not understood ({error}); report this") from error


def _talk(python: str, job: dict[str, Any], progress: Progress | None, folder: str) -> dict[str, Any]:
    """Starts the child, gives it the job, hears it out. What it and its own children leave behind is in `folder`."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment.update(TMPDIR=folder, TRITON_HOME=folder, TRITON_CACHE_DIR=folder)
    reading, writing = os.pipe()  # the child sees its end when we are gone (kernels/fit/lifeline.py)
    try:
        child = subprocess.Popen(
            [python, str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            pass_fds=(reading,),
            start_new_session=True,
        )
    except OSError as error:
        os.close(writing)
        raise UsageError(f"{python} cannot be started ({error.strerror}); give the path of a Python") from error
    finally:
        os.close(reading)
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    said: list[bytes] = []
    last: dict[str, Any] = {}
    try:
        from threading import Thread

        stderr = child.stderr
        listener = Thread(target=lambda: said.extend(line for line in stderr if line.strip()), daemon=True)
        listener.start()
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps({**job, "lifeline": reading, "scratch": folder}).encode())
            child.stdin.close()
        for line in child.stdout:
            last = _message(line)
            if "progress" in last and progress is not None:
                progress(*last["progress"])
        child.wait()
        listener.join(1)
    finally:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        os.close(writing)
    return _checked(last, python, child.returncode, said)


def _message(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _checked(answer: dict[str, Any], python: str, status: int, said: list[bytes]) -> dict[str, Any]:
    """The answer, or what stands in its way as one sentence."""
    if "error" in answer:
        kind, message = answer["error"]["kind"], answer["error"]["message"]
        if kind == "python":
            raise _too_old(python, message)
        if kind == "missing":
            raise UnknownAnswer(
                f"kernels are compiled with torch and Triton, and {python} has no {message}: pip install "
                f"'attnfit[kernels]' there, or name a Python that has both in {VARIABLE}"
            )
        raise UnknownAnswer(f"the kernels cannot be tried with {python}: {kind}: {message}")
    if "rows" not in answer:
        if (version := _version(python)) is not None and version < NEEDED:
            raise _too_old(python, ".".join(map(str, version)))
        tail = said[-1].decode("utf-8", "replace").strip()[:300] if said else f"status {status}"
        raise UnknownAnswer(f"the process that compiles ended without an answer ({python}): {tail}")
    return answer


def _version(python: str) -> tuple[int, ...] | None:
    """Of a Python that may be too old to read the child at all; None where it does not say."""
    code = "import sys; sys.stdout.write('%d.%d' % sys.version_info[:2])"
    try:
        said = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=20, check=False).stdout
        major, _, minor = said.partition(".")
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _too_old(python: str, version: str) -> UsageError:
    needed = ".".join(map(str, NEEDED))
    return UsageError(
        f"{python} is Python {version}, and kernels are compiled under {needed} or newer; name one that has torch and "
        f"Triton in {VARIABLE}"
    )
