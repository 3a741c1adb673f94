"""Who holds the GPUs, for people and as JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from attnfit.inputs.holders import Held, Holder, Holders
from attnfit.inputs.processes import Process
from attnfit.report.plain import printable, wrap

SCHEMA = 1


def render(found: Holders) -> str:
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Holders) -> Iterator[str]:
    if found.nvml:
        yield from wrap(f"{found.nvml}; what has a device file open is listed", "")
    if not found.proc:
        yield from wrap("this machine has no /proc: who has a device file open is not known", "")
    for gpu in found.gpus:
        yield from _gpu(gpu)
    if found.others:
        yield "files of the driver only, of no one GPU"
        for holder in found.others:
            yield from _holder(holder)
    if not found.gpus and not found.others:
        yield "no NVIDIA GPU is seen here, and nobody has a file of its driver open"
    for unseen in found.unseen:
        many = f"{unseen.count} process{'es' * (unseen.count != 1)}"
        yield from wrap(f"{many} of {unseen.user} may not be looked into; run again as root", "")


def _gpu(gpu: Held) -> Iterator[str]:
    memory = (
        ""
        if gpu.used_mib is None or gpu.total_mib is None
        else f", {_gib(gpu.used_mib)} of {_gib(gpu.total_mib)} GiB in use"
    )
    yield from wrap(f"{gpu.name or f'/dev/nvidia{gpu.number}'}{memory}", f"GPU {gpu.number}  ")
    for holder in gpu.holders:
        yield from _holder(holder)
    if not gpu.holders:
        yield "  nobody"
    if gpu.used_mib is not None and gpu.explained_mib is not None and gpu.used_mib - gpu.explained_mib > _SLACK_MIB:
        left = gpu.used_mib - gpu.explained_mib
        yield from wrap(f"{_gib(left)} GiB are in use by nobody who is listed: the driver, or another container", "  ")


_SLACK_MIB = 1024  # what the driver itself takes is hundreds of MiB


def _holder(holder: Holder) -> Iterator[str]:
    size = f"{_gib(holder.mib):>6} GiB" if holder.mib is not None else " " * 10
    if holder.process is None:
        yield from wrap(f"{size}  a process outside this container, or one that has just ended", f"  {holder.pid:>8}  ")
        return
    how = "" if holder.by == ("NVML", "open file") else f"; {' and '.join(holder.by)} only"
    yield from wrap(f"{size}  {who(holder.process)}{how}", f"  {holder.pid:>8}  ")


def who(process: Process) -> str:
    """ "python of llm in serve.service, since 2026-11-30 12:00:00"."""
    where = process.container or process.unit
    place = f" in {where}{' of their manager' if process.of_user and where == process.unit else ''}" if where else ""
    zombie = ", ended but not yet collected by its parent" if process.zombie else ""
    return f"{printable(process.name)} of {process.user}{place}, since {moment(process.started)}{zombie}"


def moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _gib(mib: int) -> str:
    return f"{mib / 1024:.1f}"


def render_json(found: Holders) -> str:
    body = {
        "schema": SCHEMA,
        "nvml": found.nvml or None,
        "gpus": [
            {
                "number": gpu.number,
                "name": gpu.name or None,
                "uuid": gpu.uuid or None,
                "used_mib": gpu.used_mib,
                "total_mib": gpu.total_mib,
                "holders": [_holder_dict(holder) for holder in gpu.holders],
            }
            for gpu in found.gpus
        ],
        "driver_files_only": [_holder_dict(holder) for holder in found.others],
        "not_read": [msgspec.structs.asdict(unseen) for unseen in found.unseen],
    }
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode() + "\n"


def _holder_dict(holder: Holder) -> dict[str, Any]:
    return {
        "pid": holder.pid,
        "mib": holder.mib,
        "files": list(holder.files),
        "by": list(holder.by),
        **(process_dict(holder.process) if holder.process is not None else {"name": None}),
    }


def process_dict(process: Process) -> dict[str, Any]:
    return {
        "name": process.name,
        "user": process.user,
        "since": moment(process.started),
        "started": process.started,
        "unit": process.unit or None,
        "container": process.container or None,
        "zombie": process.zombie,
    }


def table(processes: Sequence[Process]) -> str:
    """Processes that are to be ended, a line each."""
    lines: list[str] = []
    for process in processes:
        lines += wrap(who(process), f"  {process.pid:>8}  ")
    return "\n".join(lines) + "\n"
