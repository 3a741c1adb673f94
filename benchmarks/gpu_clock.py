"""Timing of short GPU calls with CUDA events, and what a GPU says of itself. Used by kernels.py."""

from __future__ import annotations

import ctypes
import shutil
import statistics
import subprocess
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Call = Callable[[], Any]
FLUSH = 2  # times the L2 cache, written before every timed call


class Timing(NamedTuple):
    """Microseconds of one call on the GPU."""

    median: float
    p10: float
    p90: float
    runs: int
    mode: str  # "graph" | "eager" | why there is no graph


class CudaClock:
    """Times a call between two events, with L2 flushed before each.

    The flush keeps the GPU busy while the host enqueues event, call and event, so that an eager call's host time is not
    measured unless it exceeds the flush; in a graph there is none.
    """

    def __init__(self, device: torch.device, runs: int = 50) -> None:
        self.runs = runs
        size = max(FLUSH * torch.cuda.get_device_properties(device).L2_cache_size, 64 << 20)
        self._waste = torch.empty(size, dtype=torch.uint8, device=device)

    def time(self, call: Call, *, graph: bool) -> Timing:
        """Warmed up, then `runs` times. Falls back to eager calls where the call cannot be captured, and says so."""
        mode = "eager"
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        if graph:
            try:
                call, mode = captured(call), "graph"
            except RuntimeError as why:
                torch.cuda.synchronize()
                mode = f"eager; no CUDA graph: {first_line(why)}"
        events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(self.runs)
        ]
        for begin, end in [*events[:3], *events]:  # the first three warm up
            self._waste.zero_()
            begin.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return spread([begin.elapsed_time(end) * 1e3 for begin, end in events], mode)

    def settle(self) -> None:
        """Waits. Raises RuntimeError where an earlier launch broke the context."""
        torch.cuda.synchronize()

    def free(self) -> None:
        """Gives memory that is no longer used back to the GPU."""
        torch.cuda.empty_cache()

    def floor(self) -> Timing:
        """What is measured of a call that does nothing."""
        return self.time(lambda: None, graph=False)

    def copy_gbs(self) -> float:
        """GB/s, read and written, of a copy of 1 GiB on the device: what this memory gives a plain kernel."""
        source = torch.empty(1 << 30, dtype=torch.uint8, device=self._waste.device)
        goal = torch.empty_like(source)
        took = self.time(lambda: goal.copy_(source), graph=False)
        return 2 * source.numel() / took.median / 1e3


class NoClock:
    """Runs a call once and times nothing: the self-test, where there is no GPU."""

    def time(self, call: Call, *, graph: bool) -> None:
        call()

    def settle(self) -> None:
        pass

    def free(self) -> None:
        pass


def captured(call: Call) -> Call:
    """The call as a CUDA graph. Raises RuntimeError where it cannot be captured."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def spread(times: list[float], mode: str) -> Timing:
    """Median and the deciles of microseconds."""
    deciles = statistics.quantiles(times, n=10) if len(times) > 1 else times * 9
    return Timing(round(statistics.median(times), 2), round(deciles[0], 2), round(deciles[-1], 2), len(times), mode)


def first_line(why: BaseException) -> str:
    """An exception in one short line."""
    lines = str(why).strip().splitlines()
    return f"{type(why).__name__}: {lines[0][:200] if lines else ''}"


def gpu_facts(device: torch.device) -> dict[str, Any]:
    """Name, capability, multiprocessors, cache, driver and memory bandwidth, as the GPU and its driver state them."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        "driver": driver_version(),
        "stated_bandwidth_gbs": stated_bandwidth(device.index or 0),
    }


def driver_version() -> str | None:
    """As nvidia-smi says it; None where that is missing."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else None


def stated_bandwidth(index: int) -> float | None:
    """GB/s: twice the memory clock times the bus width (CUDA driver API, device attributes 36, kHz, and 37, bits)."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    handle, clock, width = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(handle), index):
        return None
    for into, attribute in ((clock, 36), (width, 37)):
        if driver.cuDeviceGetAttribute(ctypes.byref(into), attribute, handle):
            return None
    return round(2 * clock.value * 1e3 * width.value / 8 / 1e9, 1) or None
