"""`attnfit doctor`: what is ready, what wants attention and what to run, on machines that are not here."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from attnfit import cli
from attnfit.core import Capability
from attnfit.doctor import AREAS, ATTENTION, READY, UNKNOWN, Area, examine, exit_code
from attnfit.engines import ENGINES
from attnfit.errors import UsageError
from attnfit.inputs import machine
from attnfit.inputs.machine import Engine, Machine, read
from attnfit.report.doctor import render, render_json, verdict_line

H100, GB10, TURING = Capability(9, 0), Capability(12, 1), Capability(7, 5)
GIB = 1 << 30
ENGINE = Engine(
    name="vllm", version="0.16.0", prefix="/opt/venv", python="3.12", requires_python="<3.14,>=3.10",
    packages={"torch": "2.9.1+cu128", "triton": "3.5.1", "flashinfer-python": "0.6.3", "deep-gemm": "2.1"},
    pins={"torch": "2.9.1", "flashinfer-python": "0.6.3"}, torch_cuda="12.8", torch_triton="3.5.1",
    facts={"attnfit": True},
)  # fmt: skip
READY_MACHINE = Machine(
    python="3.12.3", driver="570.86.15", driver_cuda="12.8", gpus=(("NVIDIA H100 80GB HBM3", H100),) * 2,
    nvcc="/usr/local/cuda/bin/nvcc", nvcc_cuda="12.8", ninja=True, compiler=True, engine=ENGINE,
    cache="/data/hub", cache_free=900 * GIB, token="HF_TOKEN", shm=16 * GIB,
)  # fmt: skip


def areas(**changes: Any) -> dict[str, Area]:
    return {area.name: area for area in examine(msgspec.structs.replace(READY_MACHINE, **changes))}


def engine(**changes: Any) -> Engine:
    return msgspec.structs.replace(ENGINE, **changes)


def test_a_machine_that_lacks_nothing_is_ready_in_every_area() -> None:
    found = areas()
    assert {name: area.state for name, area in found.items()} == dict.fromkeys(found, READY)
    assert len(found) == len(AREAS) == 13
    assert exit_code(list(found.values())) == 0


def test_a_machine_of_which_nothing_is_known_wants_nothing_mended() -> None:
    found = examine(Machine(python="3.11.7", gpus_why="no NVIDIA driver on this machine"))
    assert {area.state for area in found} == {READY, UNKNOWN}
    assert exit_code(found) == 0


@pytest.mark.parametrize(("name", "seen", "run", "changes"), [
    ("NVIDIA driver", "needs 580 or newer", "cuda-compat", {"engine": engine(torch_cuda="13.0")}),
    ("GPUs", "judges all by the first", "CUDA_VISIBLE_DEVICES", {"gpus": (("RTX 2080 Ti", TURING), ("H100", H100))}),
    ("Engine", "no rule book of its own", "attnfit learn vllm==0.16.7", {"engine": engine(version="0.16.7")}),
    ("torch, Triton", "asks for torch==2.9.1", "pip install torch==2.9.1",
     {"engine": engine(packages={**ENGINE.packages, "torch": "2.10.0"})}),
    ("ptxas", "does not know compute capability 12.1", "TRITON_PTXAS_PATH=", {"gpus": (("NVIDIA GB10", GB10),)}),
    ("CUDA toolkit", "12.1 needs 12.9", "install that CUDA toolkit", {"gpus": (("NVIDIA GB10", GB10),)}),
    ("CUDA toolkit", "no nvcc", "flashinfer-jit-cache", {"nvcc": "", "nvcc_cuda": ""}),
    ("CUDA toolkit", "no ninja and no C++ compiler", "ninja-build", {"ninja": False, "compiler": False}),
    ("CUDA toolkit", "but no C++ compiler", "g++", {"compiler": False}),
    ("torch, Triton", "torch is not installed", "--force-reinstall vllm==0.16.0",
     {"engine": engine(packages={"triton": "3.5.1"})}),
    ("torch, Triton", "torch is not installed", "--force-reinstall", {"engine": engine(packages={}, pins={})}),
    ("torch, Triton", "has lost its files", "--force-reinstall", {"engine": engine(torch_file=False)}),
    ("torch, Triton", "built without CUDA", "a build of the engine",
     {"engine": engine(packages={**ENGINE.packages, "torch": "2.9.1+cpu"}, torch_cuda="")}),
    ("torch, Triton", "12.1 needs 12.9", "for that CUDA", {"gpus": (("NVIDIA GB10", GB10),)}),
    ("torch, Triton", "no GPU older than 7.5", "for that CUDA",
     {"gpus": (("Tesla V100", Capability(7, 0)),), "engine": engine(torch_cuda="13.0"), "driver": "580.65.06"}),
    ("Engine", "not whole", "--force-reinstall vllm==0.16.0", {"engine": engine(metadata=False, pins={})}),
    ("FlashInfer", "not installed, and vllm 0.16.0 asks for 0.6.3", "flashinfer-python==0.6.3",
     {"engine": engine(packages={"torch": "2.9.1+cu128", "triton": "3.5.1"})}),
    ("GPUs", "leaves none", "unset", {"variables": {"CUDA_VISIBLE_DEVICES": "7"}, "gpus_hidden": "'7' leaves none"}),
    ("GPUs", "MIG is on", "nvidia-smi mig", {"gpus_hidden": "MIG is on but no GPU has an instance"}),
    ("CUDA toolkit", "no GPU older than 7.5", "CUDA 12",
     {"gpus": (("Tesla V100", Capability(7, 0)),), "nvcc_cuda": "13.0"}),
    ("FlashInfer", "asks for flashinfer-python==0.6.3", "flashinfer-cubin==0.6.3 flashinfer-python==0.6.3",
     {"engine": engine(packages={**ENGINE.packages, "flashinfer-python": "0.3.0", "flashinfer-cubin": "0.2.9"})}),
    ("GPUs", "judges all by the first", "CUDA_VISIBLE_DEVICES",
     {"gpus": (("RTX 2080 Ti", TURING), ("H100", H100)), "variables": {"CUDA_VISIBLE_DEVICES": "0,1"}}),
    ("ptxas", "a file that is not there", "/usr/local/cuda/bin/ptxas",
     {"gpus": (("NVIDIA GB10", GB10),), "variables": {"TRITON_PTXAS_PATH": "/gone"}, "gone": ("TRITON_PTXAS_PATH",)}),
    ("FlashInfer", "must be of one version", "flashinfer-cubin==0.6.3",
     {"engine": engine(packages={**ENGINE.packages, "flashinfer-cubin": "0.6.1"})}),
    ("FlashInfer", "asks for flashinfer-python==0.6.3", "pip install flashinfer-python==0.6.3",
     {"engine": engine(packages={**ENGINE.packages, "flashinfer-python": "0.6.1"})}),
    ("Python", "asks for <3.12", "make an environment", {"engine": engine(requires_python="<3.12")}),
    ("Model cache", "3 GiB free", "HF_HOME", {"cache_free": 3 * GIB}),
    ("Shared memory", "0.1 GiB", "--shm-size", {"shm": 64 << 20}),
])  # fmt: skip
def test_what_is_wrong_is_named_with_what_to_run(name: str, seen: str, run: str, changes: dict[str, Any]) -> None:
    found = areas(**changes)
    assert found[name].state == ATTENTION
    assert seen in found[name].seen
    assert run in found[name].run
    assert exit_code(list(found.values())) == 1
    assert name in verdict_line(list(found.values()))


@pytest.mark.parametrize(("name", "changes"), [
    ("GPUs", {"gpus": (("RTX 2080 Ti", TURING), ("H100", H100)), "variables": {"CUDA_VISIBLE_DEVICES": "1"}}),
    ("GPUs", {"gpus": (("H100", H100), ("RTX 2080 Ti", TURING), ("H100", H100)),
              "variables": {"CUDA_VISIBLE_DEVICES": "0,2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}}),
    ("Python", {"engine": engine(requires_python=">=3.12.2")}),
    ("ptxas", {"gpus": (("NVIDIA GB10", GB10),), "variables": {"TRITON_PTXAS_PATH": "/usr/local/cuda/bin/ptxas"}}),
    ("Shared memory", {"shm": 64 << 20, "gpus": (("H100", H100),)}),
])  # fmt: skip
def test_what_was_seen_to_is_no_fault(name: str, changes: dict[str, Any]) -> None:
    assert areas(**changes)[name].state == READY


def test_what_cannot_be_compared_is_not_said_to_be_ready() -> None:
    broken = areas(engine=engine(metadata=False, pins={}, requires_python=""))
    assert broken["torch, Triton"].state == UNKNOWN
    assert areas(engine=engine(python=""))["Python"].state == UNKNOWN


def test_the_report_keeps_to_80_columns_and_ends_with_the_verdict() -> None:
    found = examine(msgspec.structs.replace(READY_MACHINE, engine=engine(torch_cuda="13.0")))
    lines = render(found).splitlines()
    assert [line for line in map(click.unstyle, lines) if len(line) > 80] == []
    assert "NVIDIA driver" in lines[-1]
    body = json.loads(render_json(found))
    assert (body["schema"], body["exit_code"], len(body["areas"])) == (1, 1, 13)
    assert body["areas"][0].keys() == {"name", "state", "seen", "run"}


def test_a_token_is_found_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (tmp_path / "token").write_text("hf_secretsecretsecret")
    found = read({"HF_HOME": str(tmp_path), "PATH": ""})
    assert found.token == str(tmp_path / "token")
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecret")
    monkeypatch.setattr(sys, "argv", ["attnfit", "doctor", "--json"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "hf_secret" not in capsys.readouterr().out


def test_an_environment_is_read_without_importing_anything_of_it(tmp_path: Path) -> None:
    """From names of files and metadata: the engine, its pins, the CUDA of its torch."""
    site = tmp_path / "lib/python3.12/site-packages"
    for name, metadata in {
        "vllm-0.33.0": 'Requires-Python: >=3.10\nRequires-Dist: torch==2.14.0\nRequires-Dist: x==1; extra == "y"\n'
        'Requires-Dist: other==1; sys_platform == "plan9"\nRequires-Dist: old==1; python_version < "3.12"\n',
        "torch-2.14.0": 'Requires-Dist: triton==3.8.0; platform_system == "Linux"\n', "triton-3.8.0": "",
    }.items():  # fmt: skip
        (site / f"{name}.dist-info").mkdir(parents=True)
        (site / f"{name}.dist-info/METADATA").write_text(metadata)
    for package in ("torch", "vllm"):
        (site / package).mkdir()
        (site / package / "__init__.py").write_text("raise SystemExit('imported')")
    (site / "torch/version.py").write_text("__version__ = '2.14.0+cu130'\ncuda: Optional[str] = '13.0'\n")
    found = read({"PATH": ""}, prefix=str(tmp_path)).engine
    assert found is not None
    assert (found.name, found.version, found.python, found.torch_cuda) == ("vllm", "0.33.0", "3.12", "13.0")
    assert (found.pins, found.torch_triton, found.requires_python) == ({"torch": "2.14.0"}, "3.8.0", ">=3.10")
    assert not set(ENGINES) & sys.modules.keys()


def test_a_prefix_without_an_engine_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="above its bin/"):
        read({"PATH": ""}, prefix=str(tmp_path))


class Nvml:
    """A driver with two GPUs, as nvidia-ml-py has it."""

    class NVMLError(Exception):
        pass

    nvmlInit = nvmlShutdown = staticmethod(lambda: None)
    nvmlSystemGetDriverVersion = staticmethod(lambda: "580.65.06")
    nvmlSystemGetCudaDriverVersion_v2 = staticmethod(lambda: 13000)
    nvmlDeviceGetCount = staticmethod(lambda: 2)
    nvmlDeviceGetHandleByIndex = staticmethod(lambda i: i)
    nvmlDeviceGetCudaComputeCapability = staticmethod(lambda handle: (9, 0))
    nvmlDeviceGetName = staticmethod(lambda handle: "NVIDIA H100 80GB HBM3")
    nvmlDeviceGetUUID = staticmethod(lambda handle: f"GPU-{handle}")


def test_the_driver_and_every_gpu_are_read_through_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.nvml, "library", lambda: Nvml)
    found = read({"PATH": ""})
    assert (found.driver, found.driver_cuda) == ("580.65.06", "13.0")
    assert found.gpus == (("NVIDIA H100 80GB HBM3", H100),) * 2
    assert found.gpus_hidden == ""


@pytest.mark.parametrize("visible", ["", "7", "-1", "MIG-abc", "GPU-9", "0,0"])
def test_gpus_that_no_process_sees_are_not_ready(visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.nvml, "library", lambda: Nvml)
    found = {area.name: area for area in examine(read({"PATH": "", "CUDA_VISIBLE_DEVICES": visible}))}
    assert found["GPUs"].state == ATTENTION
    assert "leaves none of this machine's 2 GPUs visible" in found["GPUs"].seen
    assert "--gpu" not in found["GPUs"].seen


def test_why_no_gpu_was_seen_speaks_of_no_option_of_another_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.nvml.importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError))
    why = read({"PATH": ""}).gpus_why
    assert "nvidia-ml-py" in why
    assert "--gpu" not in why


def test_another_engine_in_the_same_environment_is_named() -> None:
    found = areas(engine=engine(packages={**ENGINE.packages, "sglang": "0.5.23"}))["Engine"]
    assert "sglang 0.5.23" in found.seen


def test_the_toolkit_is_looked_for_where_cuda_home_says(tmp_path: Path) -> None:
    nvcc = tmp_path / "bin/nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.9, V12.9.86'\n")
    nvcc.chmod(0o755)
    found = read({"PATH": "", "CUDA_HOME": str(tmp_path)})
    assert (found.nvcc, found.nvcc_cuda) == (str(nvcc), "12.9")
