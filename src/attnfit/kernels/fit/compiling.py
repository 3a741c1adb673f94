"""One kernel, compiled for one GPU and read: runs in a worker process, which a crash of the compiler ends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import triton
import triton.compiler

from attnfit.kernels.fit import cubin, occupancy
from attnfit.kernels.fit.driver import NoGpuDriver, active
from attnfit.kernels.fit.recorder import Handed
from attnfit.kernels.fit.records import FITS, REFUSED, TOO_LARGE, UNKNOWN

READER = 2  # raise it when the figures change for the same kernel: kept results are keyed by it
_OURS = (OSError, MemoryError)  # a full disk, no memory, a tool that is missing: nothing about the kernel
_MOST = 1500  # characters of a message


def outcome(handed: Handed, capability: str, limit: int, log: Path) -> dict[str, Any]:
    """Compiles and reads; `log` is the file that this process's output goes to. The fields of `Compiled`."""
    started = time.monotonic()
    asked = {name: handed.options.get(name) for name in ("num_warps", "num_stages", "num_ctas")}
    try:
        kernel = triton.compiler.compile(handed.source, target=handed.target, options=handed.options)
    except _OURS as raised:
        message = f"compiling failed on this machine: {raised}"
        return {**asked, "verdict": UNKNOWN, "exception": type(raised).__name__, "message": message}
    except Exception as raised:
        return {**asked, **refused(raised, log.read_text("utf-8", "replace"))}
    seconds = round(time.monotonic() - started, 2)
    return {**_read(kernel, capability, limit, log), "seconds": seconds}


def refused(raised: BaseException, log: str) -> dict[str, Any]:
    """The compiler's own reason; where the exception has none, the first error it printed."""
    message = str(raised).strip()
    if isinstance(raised.__cause__, Exception) and str(raised.__cause__) not in message:
        message = f"{message}\n{raised.__cause__}"
    if "PassManager::run failed" in message:
        errors = [line.partition("error:")[2].strip() for line in log.splitlines() if "error:" in line]
        message = "\n".join([message, *dict.fromkeys(errors)])
    verdict = UNKNOWN if "error code -9" in message else REFUSED  # ptxas was killed: no memory, not a reason
    return {"verdict": verdict, "exception": type(raised).__name__, "message": message[:_MOST]}


def _read(kernel: Any, capability: str, limit: int, log: Path) -> dict[str, Any]:
    """The figures, and what Triton's own loader says of them."""
    binary = cubin.written(kernel.asm["cubin"])
    try:
        used = cubin.resources(binary, capability)
        mix = _mix(binary)
    finally:
        binary.unlink()
    metadata = kernel.metadata
    threads = metadata.num_warps * occupancy.WARP
    columns = getattr(metadata, "tmem_size", None) or 0
    shared = metadata.shared + used.static_shared
    spilled = cubin.spills(log.read_text("utf-8", "replace"))
    found: dict[str, Any] = {
        "verdict": FITS,
        "num_warps": metadata.num_warps,
        "num_stages": metadata.num_stages,
        "num_ctas": metadata.num_ctas,
        "threads": threads,
        "shared": shared,
        "tensor_memory": columns or None,
        "registers": used.registers,
        "stack": used.stack,
        "spill_stores": spilled[0] if spilled else None,
        "spill_loads": spilled[1] if spilled else None,
        "instructions": mix,
        "occupancy": occupancy.plain(occupancy.estimate(capability, threads, used.registers, shared, columns)),
    }
    loaded = used.registers, used.stack // 4, occupancy.most_threads(used.registers)
    driver = NoGpuDriver(capability, {"max_shared_mem": limit}, device=0, load=lambda _: loaded)
    with active(driver):
        try:
            kernel._init_handles()
        except triton.runtime.errors.OutOfResources as raised:
            found.update(verdict=TOO_LARGE, exception="OutOfResources", message=str(raised), occupancy=None)
        kernel.module = None
    return found


def _mix(binary: Path) -> dict[str, Any] | None:
    """None where the disassembler does not know the GPU (below 7.5); the verdict does not hang on it."""
    try:
        return cubin.mix(binary)
    except RuntimeError:
        return None
