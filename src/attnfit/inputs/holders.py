"""Who holds the GPUs of this machine: what NVML says of processes and memory, and who has a device file open.

Each sees what the other does not: NVML a process in another container, open files one that holds the device and no
memory yet, or that holds it where no NVML answers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from attnfit.errors import AttnfitError
from attnfit.inputs import nvml
from attnfit.inputs.nvml import _quietly, _text, _why
from attnfit.inputs.processes import PROC, Process, pids, read_process, user_name

_DEVICE = re.compile(r"(/dev/nvidia[\w-]*(?:/[\w-]+)?)(?: \(deleted\))?")
_KINDS = ("Compute", "Graphics", "MPSCompute")  # NVML lists them apart


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A process, and what it holds."""

    process: Process | None  # None: NVML names it, and /proc has none of that number: it is outside this container
    pid: int
    mib: int | None = None  # of this GPU's memory; None: NVML does not say
    files: tuple[str, ...] = ()  # device files it has open
    by: tuple[str, ...] = ()  # "NVML", "open file"


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU."""

    number: int  # of its device file
    name: str
    uuid: str = ""
    used_mib: int | None = None
    total_mib: int | None = None
    holders: tuple[Holder, ...] = ()

    @property
    def explained_mib(self) -> int | None:
        """What the holders hold together; None: of one it is not known."""
        sizes = [holder.mib for holder in self.holders]
        return None if None in sizes else sum(size or 0 for size in sizes)


class Unseen(msgspec.Struct, frozen=True):
    """Processes of another user whose open files may not be read."""

    user: str
    count: int


class Holders(msgspec.Struct, frozen=True, kw_only=True):
    gpus: tuple[Held, ...]
    others: tuple[Holder, ...]  # they have only files that belong to no one GPU: nvidiactl, nvidia-uvm
    nvml: str  # why NVML was not asked; "": it was
    unseen: tuple[Unseen, ...]
    proc: bool  # False: this machine has no /proc, and open files are not known


def read(proc: Path = PROC, library: Callable[[], Any] = nvml.library, dev: Path = Path("/dev")) -> Holders:
    """Raises nothing: what cannot be read is said in the answer."""
    files, unseen = _open_files(proc)
    gpus, why = _asked(library)
    numbers = {found for names in files.values() for name in names if (found := _number(name)) is not None}
    numbers |= {int(m[1]) for entry in _names(dev) if (m := re.fullmatch(r"nvidia(\d+)", entry))}
    known = {gpu.number for gpu, _ in gpus}
    gpus += [(Held(number=number, name=""), {}) for number in sorted(numbers - known)]
    held: list[Held] = []
    for gpu, sizes in gpus:
        opened = {pid for pid, names in files.items() if gpu.number in map(_number, names)}
        holders = [
            Holder(
                process=read_process(pid, proc),
                pid=pid,
                mib=sizes.get(pid),
                files=tuple(sorted(files.get(pid, ()))),
                by=(*(("NVML",) if pid in sizes else ()), *(("open file",) if pid in opened else ())),
            )
            for pid in sorted(opened | sizes.keys())
        ]
        held.append(msgspec.structs.replace(gpu, holders=tuple(holders)))
    placed = {holder.pid for gpu in held for holder in gpu.holders}
    others = [
        Holder(process=read_process(pid, proc), pid=pid, files=tuple(sorted(names)), by=("open file",))
        for pid, names in sorted(files.items())
        if pid not in placed
    ]
    return Holders(gpus=tuple(held), others=tuple(others), nvml=why, unseen=unseen, proc=proc.is_dir())


def _number(name: str) -> int | None:
    found = re.fullmatch(r"/dev/nvidia(\d+)", name)
    return int(found[1]) if found else None


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _open_files(proc: Path) -> tuple[dict[int, set[str]], tuple[Unseen, ...]]:
    """pid -> NVIDIA device files it has open."""
    found: dict[int, set[str]] = {}
    refused: dict[str, int] = {}
    for pid in pids(proc):
        folder = proc / str(pid) / "fd"
        try:
            entries = os.listdir(folder)
        except PermissionError:
            try:
                user = user_name((proc / str(pid)).stat().st_uid)
            except OSError:
                continue
            refused[user] = refused.get(user, 0) + 1
            continue
        except OSError:
            continue  # it has ended
        for entry in entries:
            try:
                target = os.readlink(folder / entry)
            except OSError:
                continue
            if match := _DEVICE.fullmatch(target):
                found.setdefault(pid, set()).add(match[1])
    return found, tuple(Unseen(user, count) for user, count in sorted(refused.items()))


def _asked(library: Callable[[], Any]) -> tuple[list[tuple[Held, dict[int, int | None]]], str]:
    """Every GPU that NVML knows, with the memory of each process on it; or why NVML says nothing."""
    try:
        asked = library()
    except AttnfitError:
        return [], "nvidia-ml-py is not installed (pip install 'attnfit[gpu]'), so NVML is not asked"
    try:
        asked.nvmlInit()
    except asked.NVMLError as error:
        return [], _why(asked, error)
    try:
        handles = [_quietly(asked, "nvmlDeviceGetHandleByIndex", i) for i in range(asked.nvmlDeviceGetCount())]
        return [_gpu(asked, handle, index) for index, handle in enumerate(handles) if handle is not None], ""
    except asked.NVMLError as error:
        return [], _why(asked, error)
    finally:
        _quietly(asked, "nvmlShutdown")


def _gpu(asked: Any, handle: Any, index: int) -> tuple[Held, dict[int, int | None]]:
    memory = _quietly(asked, "nvmlDeviceGetMemoryInfo", handle)
    minor = _quietly(asked, "nvmlDeviceGetMinorNumber", handle)
    parts = [_quietly(asked, "nvmlDeviceGetMigDeviceHandleByIndex", handle, i)
             for i in range(_quietly(asked, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0)]  # fmt: skip
    sizes: dict[int, int | None] = {}
    for each in (handle, *(part for part in parts if part is not None)):
        for kind in _KINDS:
            for found in _quietly(asked, f"nvmlDeviceGet{kind}RunningProcesses", each) or ():
                mib = None if found.usedGpuMemory is None else int(found.usedGpuMemory) >> 20
                before = sizes.get(int(found.pid))
                sizes[int(found.pid)] = mib if before is None else max(before, mib or 0)
    gpu = Held(
        number=index if minor is None else int(minor),
        name=_text(_quietly(asked, "nvmlDeviceGetName", handle) or ""),
        uuid=_text(_quietly(asked, "nvmlDeviceGetUUID", handle) or ""),
        used_mib=None if memory is None else int(memory.used) >> 20,
        total_mib=None if memory is None else int(memory.total) >> 20,
    )
    return gpu, sizes
