"""Who holds a GPU: NVML's processes and open device files together, and what cannot be seen is said."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attnfit.errors import UsageError
from attnfit.inputs import holders as holders_input
from attnfit.inputs.holders import Holders, read
from attnfit.inputs.processes import container_of, in_unit, read_process, unit_of
from attnfit.report import holders as report

ID = "0123456789abcdef" * 4


class Proc:
    """A /proc of a few processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "proc"
        self.folder.mkdir()
        (self.folder / "stat").write_text("cpu 1 2\nbtime 1700000000\n")

    def add(self, pid: int, name: str, *files: str, cgroup: str = "0::/", ticks: int = 100, **more: Any) -> None:
        one = self.folder / str(pid)
        (one / "fd").mkdir(parents=True)
        for number, file in enumerate(files):
            (one / "fd" / str(number)).symlink_to(file)
        session = more.get("session", pid)
        fields = [
            more.get("state", "S"),
            str(more.get("parent", 1)),
            str(session),
            str(session),
            *["0"] * 15,
            str(ticks),
        ]
        (one / "stat").write_text(f"{pid} ({name}) " + " ".join(fields) + " 0 0\n")
        (one / "cgroup").write_text(cgroup + "\n")
        (one / "environ").write_bytes(more.get("environ", b"PATH=/bin\0"))


class Nvml:
    """pynvml, of one GPU whose device file is /dev/nvidia3."""

    class NVMLError(Exception):
        value = 0

    def __init__(self, *sizes: tuple[int, int | None], used: int = 40 << 30) -> None:
        self.sizes, self.used = sizes, used

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetMinorNumber(self, handle: int) -> int:
        return 3

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return "GPU-1"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=self.used, total=141 << 30)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.sizes]


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def said(found: Holders) -> str:
    """What is printed, as one line."""
    return " ".join(report.render(found).split())


def no_nvml() -> Any:
    raise UsageError("none")


def test_both_sources_are_put_together_by_the_number_of_the_device_file(proc: Proc, tmp_path: Path) -> None:
    unit = "0::/system.slice/serve.service"
    proc.add(10, "VLLM::EngineCore", "/dev/nvidia3", "/dev/nvidia-uvm", "/dev/null", cgroup=unit)
    proc.add(11, "python (odd) name", "/dev/nvidia3", cgroup=f"0::/system.slice/docker-{ID}.scope")
    proc.add(12, "nvidia-persiste", "/dev/nvidiactl")
    proc.add(13, "bash", "/dev/null")
    found = read(proc.folder, lambda: Nvml((10, 30 << 30), (99, None)), tmp_path)
    [gpu] = found.gpus
    assert (gpu.number, gpu.name, gpu.used_mib) == (3, "NVIDIA H200", 40 << 10)
    assert [(h.pid, h.mib, h.by) for h in gpu.holders] == [
        (10, 30 << 10, ("NVML", "open file")),
        (11, None, ("open file",)),
        (99, None, ("NVML",)),
    ]
    first = gpu.holders[0].process
    assert first is not None
    assert (first.unit, first.started) == ("serve.service", 1700000000 + 100 / os.sysconf("SC_CLK_TCK"))
    assert [h.pid for h in found.others] == [12]
    text = said(found)
    assert "VLLM::EngineCore" in text
    assert "in serve.service, since 2023-11-14" in text
    assert "in docker 0123456789ab" in text
    assert "outside this container" in text
    assert all(len(line) <= 80 for line in report.render(found).splitlines())


def test_without_nvml_open_files_are_still_listed_and_the_lack_is_said(proc: Proc, tmp_path: Path) -> None:
    proc.add(10, "python", "/dev/nvidia0", "/dev/nvidiactl")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia1").touch()
    found = read(proc.folder, no_nvml, tmp_path / "dev")
    assert [(gpu.number, [h.pid for h in gpu.holders]) for gpu in found.gpus] == [(0, [10]), (1, [])]
    assert "NVML is not asked" in said(found)
    assert json.loads(report.render_json(found))["nvml"] == found.nvml


def test_processes_that_may_not_be_looked_into_are_counted_by_user(
    proc: Proc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc.add(10, "python", "/dev/nvidia0")
    proc.add(11, "python", "/dev/nvidia0")
    real = os.listdir

    def listdir(path: Any) -> list[str]:
        if str(path).endswith("11/fd"):
            raise PermissionError
        return real(path)

    monkeypatch.setattr(holders_input.os, "listdir", listdir)
    found = read(proc.folder, no_nvml, tmp_path)
    assert [unseen.count for unseen in found.unseen] == [1]
    assert "1 process of " in said(found)
    assert "run again as root" in said(found)


def test_memory_that_nobody_listed_holds_is_said(proc: Proc, tmp_path: Path) -> None:
    found = read(proc.folder, lambda: Nvml(used=9 << 30), tmp_path)
    assert "9.0 GiB are in use by nobody who is listed" in said(found)


def test_a_machine_with_nothing_says_so(proc: Proc, tmp_path: Path) -> None:
    found = read(proc.folder, no_nvml, tmp_path)
    assert "no NVIDIA GPU is seen here" in said(found)
    none = read(tmp_path / "none", no_nvml, tmp_path)
    assert "no /proc" in said(none)


def test_this_very_process_is_read(tmp_path: Path) -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("no /proc")
    found = read_process(os.getpid())
    assert found is not None
    assert (found.pid, found.uid, found.parent) == (os.getpid(), os.geteuid(), os.getppid())
    assert read_process(2**22 + 1) is None


@pytest.mark.parametrize(
    ("cgroup", "unit", "of_user", "container"),
    [
        ("/system.slice/a\\x2db.service", "a\\x2db.service", False, ""),
        ("/system.slice/system-vllm.slice/vllm@0.service/sub", "vllm@0.service", False, ""),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/x.service", "x.service", True, ""),
        ("/user.slice/user-1000.slice/session-3.scope", "session-3.scope", False, ""),
        ("/user.slice/user-1000.slice/user@1000.service/init.scope", "init.scope", True, ""),
        (f"/system.slice/docker-{ID}.scope", "", False, "docker 0123456789ab"),
        (f"/docker/{ID}", "", False, "docker 0123456789ab"),
        (f"/machine.slice/libpod-{ID}.scope/container", "", False, "podman 0123456789ab"),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podaa.slice/cri-containerd-{ID}.scope",
            "", False, "containerd 0123456789ab",
        ),
        (f"/kubepods/besteffort/pod12345678-1234-1234-1234-123456789012/{ID}", "", False, "container 0123456789ab"),
        ("/lxc.payload.box/init.scope", "init.scope", False, "lxc box"),
        ("/", "", False, ""),
    ],
)  # fmt: skip
def test_a_cgroup_says_the_unit_or_the_container(cgroup: str, unit: str, of_user: bool, container: str) -> None:
    assert unit_of(cgroup) == (unit, of_user)
    assert container_of(cgroup) == container


def test_a_unit_s_cgroup_is_told_from_others_with_part_of_its_name() -> None:
    assert in_unit("/system.slice/a.service/workers", "a.service", False)
    assert not in_unit("/system.slice/ba.service", "a.service", False)
    assert not in_unit("/user.slice/user@1.service/app.slice/a.service", "a.service", False)
    assert in_unit("/user.slice/user@1.service/app.slice/a.service", "a.service", True)
