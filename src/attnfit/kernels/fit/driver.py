"""A Triton driver for a GPU that is not there: it answers what the launch path and the loader ask of one.

Everything that decides stays Triton's: its launch path asks this driver for the target, and its loader (which raises
OutOfResources) asks for the device's shared memory and for what loading a binary would report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver as triton_driver

Load = Callable[[bytes], tuple[int, int, int]]  # cubin -> registers, spills, most threads


class NoGpuUtils:
    """The part of a driver that talks to CUDA."""

    def __init__(self, properties: dict[str, int], load: Load | None) -> None:
        self._properties, self._load = properties, load

    def get_device_properties(self, device: int) -> dict[str, int]:
        return dict(self._properties)

    def load_binary(self, name: str, cubin: bytes, shared: int, device: int) -> tuple[Any, ...]:
        """module, function, registers a thread, spills, most threads a block: as the driver reports them."""
        if self._load is None:
            raise RuntimeError("nothing is loaded while launches are recorded")
        return (None, None, *self._load(cubin))

    def unload_module(self, module: Any) -> None:
        """Nothing was loaded."""

    def set_printf_fifo_size(self, size: int) -> None:
        """Nobody prints."""


class NoGpuDriver:
    """Stands where Triton keeps its active driver. `device` is a fresh number, so that no cached kernel is met."""

    def __init__(self, capability: str, properties: dict[str, int], device: int, load: Load | None = None) -> None:
        major, minor = parse(capability)
        self.capability = (major, minor)
        self.target = GPUTarget("cuda", major * 10 + minor, 32)
        self.device = device
        self.utils = NoGpuUtils(properties, load)
        self.launcher_cls = lambda source, metadata: _no_launch

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return self.device

    def set_current_device(self, device: int) -> None:
        """There is one."""

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        return self.capability

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("meta")

    def get_benchmarker(self) -> Any:
        raise RuntimeError("nothing is measured without a GPU")

    @classmethod
    def is_active(cls) -> bool:
        return True


def _no_launch(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("nothing is launched without a GPU")


def parse(capability: str) -> tuple[int, int]:
    """ "12.0" -> (12, 0). Raises ValueError."""
    major, dot, minor = capability.partition(".")
    if not dot or not major.isdigit() or not minor.isdigit():
        raise ValueError(f"compute capability {capability!r}: write it as 12.0")
    return int(major), int(minor)


@contextmanager
def active(driver: NoGpuDriver) -> Iterator[NoGpuDriver]:
    """Makes `driver` Triton's active one, and puts back what was there."""
    before = dict(vars(triton_driver))
    triton_driver.set_active(driver)
    try:
        yield driver
    finally:
        vars(triton_driver).clear()
        vars(triton_driver).update(before)
