"""`--gpu auto`: the machine's own GPUs. `read` asks the driver; `decide` says, purely, what a process would see.

The driver is asked through nvidia-ml-py (`pip install 'attnfit[gpu]'`), imported only here and only when needed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from attnfit import gpus as catalogue
from attnfit.core import Capability, Gpu
from attnfit.errors import UsageError

INSTEAD = "name the GPU instead, for example --gpu h200x8"


class Slice(msgspec.Struct, frozen=True):
    """One MIG instance of a GPU."""

    uuid: str
    memory_mib: int | None


class Device(msgspec.Struct, frozen=True):
    """One GPU as the driver reports it, in PCI order."""

    name: str
    uuid: str
    capability: Capability
    memory_mib: int | None = None  # None: the driver does not say (memory shared with the CPU)
    mig: bool = False
    slices: tuple[Slice, ...] = ()


def machine_gpus(environ: Mapping[str, str] | None = None) -> tuple[tuple[tuple[Gpu, int], ...], tuple[str, ...]]:
    """((GPU, how many) ..., notes) that a process started with `environ` (default: ours) would see.

    Raises UsageError, in one sentence, if there is no library, no driver or no visible GPU.
    """
    return decide(read(library()), os.environ if environ is None else environ)


def read(nvml: Any) -> tuple[Device, ...]:
    """Every GPU of the machine. `nvml` is the pynvml module, or anything with the same functions."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise UsageError(f"--gpu auto: {_why(nvml, error)}; {INSTEAD}") from None
    try:
        return tuple(_device(nvml, nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError as error:
        raise UsageError(f"--gpu auto: the NVIDIA driver answered {_text(str(error))!r}; {INSTEAD}") from None
    finally:
        _quietly(nvml, "nvmlShutdown")


def decide(
    devices: Sequence[Device], environ: Mapping[str, str]
) -> tuple[tuple[tuple[Gpu, int], ...], tuple[str, ...]]:
    """What CUDA shows a process with this environment, as (GPU, how many) in order, with notes."""
    if not devices:
        raise UsageError(f"--gpu auto: the NVIDIA driver is there but reports no GPU; {INSTEAD}")
    notes: list[str] = []
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        seen = _all(devices, notes)
    else:
        seen = _chosen(devices, visible, notes)
        notes.append(f"CUDA_VISIBLE_DEVICES={visible}: {len(seen)} of {len(devices)} GPUs")
        by_number = any(word.strip().isdecimal() for word in visible.split(","))
        if by_number and len({d.name for d in devices}) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
            notes.append("the GPUs differ and CUDA numbers the fastest first; set CUDA_DEVICE_ORDER=PCI_BUS_ID to "
                         "count as nvidia-smi does, as assumed here")  # fmt: skip
    if not seen:
        raise UsageError(
            f"--gpu auto: CUDA_VISIBLE_DEVICES={visible!r} leaves none of this machine's {len(devices)} GPUs visible; "
            f"unset it, or {INSTEAD}"
        )
    counts: dict[Gpu, int] = {}
    for device, memory in seen:
        match = catalogue.by_device_name(device.name, device.capability, memory)
        counts[match.gpu] = counts.get(match.gpu, 0) + 1
        if match.note and match.note not in notes:
            notes.append(match.note)
    return tuple(counts.items()), tuple(notes)


_Seen = list[tuple[Device, int | None]]  # a device, and the memory of it (or of its slice) that is visible


def _all(devices: Sequence[Device], notes: list[str]) -> _Seen:
    """Without CUDA_VISIBLE_DEVICES: every GPU, unless MIG is on, when CUDA shows a single instance."""
    if sliced := [d for d in devices if d.mig]:
        plain: _Seen = [(d, d.memory_mib) for d in devices if not d.mig]
        if plain:
            notes.append("MIG is on for some GPUs; only the others are counted")
            return plain
        with_slice = next((d for d in sliced if d.slices), None)
        if with_slice is None:
            raise UsageError(f"--gpu auto: MIG is on but no GPU has an instance; create one, or {INSTEAD}")
        notes.append("MIG is on: CUDA shows a process one instance, the first")
        return [(with_slice, with_slice.slices[0].memory_mib)]
    return [(d, d.memory_mib) for d in devices]


def _chosen(devices: Sequence[Device], visible: str, notes: list[str]) -> _Seen:
    """CUDA reads the list up to the first entry that names no GPU; a GPU named twice makes all of it invalid."""
    seen: _Seen = []
    taken: set[str] = set()
    for word in (w.strip() for w in visible.split(",")):
        if word.startswith("MIG-"):
            pair = next(((d, s) for d in devices for s in d.slices if s.uuid.startswith(word)), None)
            if pair is None:
                break
            notes.append("MIG: CUDA shows a process one instance, the first of the list")
            return [(pair[0], pair[1].memory_mib)]
        device = _device_of(devices, word)
        if device is None:
            break
        if device.uuid in taken:
            return []
        taken.add(device.uuid)
        if device.mig:
            if not device.slices:
                break
            notes.append("MIG is on: CUDA shows a process one instance, the first")
            return [(device, device.slices[0].memory_mib)]
        seen.append((device, device.memory_mib))
    return seen


def _device_of(devices: Sequence[Device], word: str) -> Device | None:
    if word.isascii() and word.isdecimal() and len(word) < 6:
        return devices[int(word)] if int(word) < len(devices) else None
    if word.startswith("GPU-") and len(word) > 4:
        found = [d for d in devices if d.uuid.startswith(word)]
        return found[0] if len(found) == 1 else None
    return None


def versions(nvml: Any) -> tuple[str, str]:
    """The driver ("580.65.06") and the newest CUDA that it serves ("13.0"); "" for what it does not say."""
    _quietly(nvml, "nvmlInit")
    try:
        driver = _quietly(nvml, "nvmlSystemGetDriverVersion")
        cuda = _quietly(nvml, "nvmlSystemGetCudaDriverVersion_v2") or _quietly(nvml, "nvmlSystemGetCudaDriverVersion")
    finally:
        _quietly(nvml, "nvmlShutdown")
    return _text(driver or ""), f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""


def used(nvml: Any) -> tuple[int, ...]:
    """MiB in use of each GPU, in PCI order; empty where there is no driver, or it does not say. Raises nothing."""
    _quietly(nvml, "nvmlInit")
    try:
        found = []
        for i in range(_quietly(nvml, "nvmlDeviceGetCount") or 0):
            handle = _quietly(nvml, "nvmlDeviceGetHandleByIndex", i)
            info = None if handle is None else _quietly(nvml, "nvmlDeviceGetMemoryInfo", handle)
            if info is None:
                return ()
            found.append(int(info.used) >> 20)
        return tuple(found)
    finally:
        _quietly(nvml, "nvmlShutdown")


def library() -> Any:
    """The pynvml module. Raises UsageError where nvidia-ml-py is not installed."""
    try:
        return importlib.import_module("pynvml")  # no stubs, so not by name
    except ImportError:
        raise UsageError(
            f"--gpu auto needs nvidia-ml-py, which is not installed: pip install 'attnfit[gpu]', or {INSTEAD}"
        ) from None


def _device(nvml: Any, handle: Any) -> Device:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    mode = _quietly(nvml, "nvmlDeviceGetMigMode", handle)
    mig = bool(mode and mode[0])
    slices: list[Slice] = []
    for i in range(_quietly(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0) if mig else ():
        part = _quietly(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, i)
        if part is not None:
            slices.append(Slice(_text(_quietly(nvml, "nvmlDeviceGetUUID", part) or ""), _memory(nvml, part)))
    return Device(
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        capability=Capability(int(major), int(minor)),
        memory_mib=_memory(nvml, handle),
        mig=mig,
        slices=tuple(slices),
    )


def _memory(nvml: Any, handle: Any) -> int | None:
    info = _quietly(nvml, "nvmlDeviceGetMemoryInfo", handle)
    return int(info.total) // 2**20 if info is not None else None


def _quietly(nvml: Any, function: str, *args: Any) -> Any:
    """None where this driver, or this library, does not support the question."""
    try:
        return getattr(nvml, function)(*args)
    except (nvml.NVMLError, AttributeError):
        return None


def _why(nvml: Any, error: Exception) -> str:
    causes = {
        "NVML_ERROR_LIBRARY_NOT_FOUND": "no NVIDIA driver on this machine (libnvidia-ml.so.1 is missing)",
        "NVML_ERROR_DRIVER_NOT_LOADED": "the NVIDIA driver is installed but not loaded",
        "NVML_ERROR_NO_PERMISSION": "the NVIDIA driver may not be read by this user",
        "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the NVIDIA driver was updated and needs a restart of the machine",
    }
    value = getattr(error, "value", None)
    for code, cause in causes.items():
        if value is not None and value == getattr(nvml, code, None):
            return cause
    return f"the NVIDIA driver answered {_text(str(error))!r}"


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
