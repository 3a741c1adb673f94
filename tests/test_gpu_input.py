"""`--gpu` and `-n`, and what `auto` makes of a machine (with a fake NVML)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from attnfit.core import Capability
from attnfit.errors import UsageError
from attnfit.inputs.gpu import GpuInput, parse_gpus, read_gpus
from attnfit.inputs.nvml import Device, Slice, decide, read


def counts(spec: str, count: int | None = None) -> list[tuple[str, int]]:
    return [(str(gpu.capability), n) for gpu, n in parse_gpus(spec, count)]


@pytest.mark.parametrize(
    ("spec", "count", "expected"),
    [
        ("h200", None, [("9.0", 1)]),
        ("h200", 8, [("9.0", 8)]),
        ("h200x8", None, [("9.0", 8)]),
        ("h200x8", 8, [("9.0", 8)]),
        ("H200 x 8", None, [("9.0", 8)]),
        ("8xh200", None, [("9.0", 8)]),
        ("h200:8", None, [("9.0", 8)]),
        ("4 x DGX Spark", None, [("12.1", 4)]),
        ("12.0", 4, [("12.0", 4)]),
        ("12.0x2", None, [("12.0", 2)]),
        ("sm_120x8", None, [("12.0", 8)]),
        ("3090,2080ti", None, [("8.6", 1), ("7.5", 1)]),
        ("3090,2080ti", 2, [("8.6", 1), ("7.5", 1)]),
        ("rtx-3090x2+rtx-2080ti", None, [("8.6", 2), ("7.5", 1)]),
        ("3090,3090", None, [("8.6", 2)]),
        ("a100x8", None, [("8.0", 8)]),
        ("a100x", None, [("8.0", 1)]),
        ("rx7900xtx", None, [("None", 1)]),
        ("mi300xx8", None, [("None", 8)]),
    ],
)
def test_every_way_to_write_gpus_and_counts(spec: str, count: int | None, expected: list[tuple[str, int]]) -> None:
    assert counts(spec, count) == expected


def test_it_is_said_whether_anybody_gave_a_count() -> None:
    assert not read_gpus("h200").counted
    assert read_gpus("h200", 1).counted
    assert read_gpus("h200x1").counted


def test_assumptions_are_notes() -> None:
    (note,) = read_gpus("a100x4,a100x4").notes
    assert "A100 SXM4 80GB" in note
    assert read_gpus("rtx-5090").notes == ()


@pytest.mark.parametrize(
    ("spec", "count", "words"),
    [
        ("h200x8", 4, "says 8 GPUs, -n says 4"),
        ("3090,2080ti", 4, "says 2 GPUs, -n says 4"),
        ("h200", 0, "-n 0"),
        ("h200", -1, "-n -1"),
        ("h200x0", None, "from 1 to"),
        ("h200x99999999999999999999", None, "from 1 to"),
        ("h300x8", None, "unknown GPU 'h300'"),
        ("rtx-6000x4", None, "say which"),
        ("", None, "--gpu is empty"),
        (" , ", None, "empty part"),
        ("3090,auto", None, "cannot be mixed"),
        ("x", None, "unknown GPU"),
        ("8x", None, "unknown GPU"),
        ("\x00\ud800", None, "unknown GPU"),
        ("²x²", None, "unknown GPU"),
    ],
)
def test_each_mistake_is_one_clear_error(spec: str, count: int | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_gpus(spec, count)


# --- auto ---------------------------------------------------------------------------------------------------------


class FakeError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class FakeNvml:
    """pynvml as far as we use it; `gpus` are dicts of what each function answers."""

    NVMLError = FakeError
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_DRIVER_NOT_LOADED = 9

    def __init__(self, *gpus: dict[str, Any], init: int | None = None) -> None:
        self.gpus, self.init, self.closed = gpus, init, False

    def nvmlInit(self) -> None:
        if self.init is not None:
            raise FakeError(self.init)

    def nvmlShutdown(self) -> None:
        self.closed = True

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return self.gpus[index]

    def nvmlDeviceGetName(self, gpu: dict[str, Any]) -> str | bytes:
        name: str | bytes = gpu["name"]
        return name

    def nvmlDeviceGetUUID(self, gpu: dict[str, Any]) -> str:
        return str(gpu.get("uuid", f"GPU-{id(gpu)}"))

    def nvmlDeviceGetCudaComputeCapability(self, gpu: dict[str, Any]) -> tuple[int, int]:
        major, minor = gpu["capability"]
        return major, minor

    def nvmlDeviceGetMemoryInfo(self, gpu: dict[str, Any]) -> SimpleNamespace:
        if "mib" not in gpu:
            raise FakeError(3)  # not supported
        return SimpleNamespace(total=gpu["mib"] * 2**20)

    def nvmlDeviceGetMigMode(self, gpu: dict[str, Any]) -> list[int]:
        if "slices" not in gpu:
            raise FakeError(3)
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: dict[str, Any]) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: dict[str, Any], index: int) -> dict[str, Any]:
        if index >= len(gpu["slices"]):
            raise FakeError(6)  # not found
        part: dict[str, Any] = gpu["slices"][index]
        return part


H200 = {"name": "NVIDIA H200", "capability": (9, 0), "mib": 143771}


def auto(fake: FakeNvml, environ: dict[str, str] | None = None, count: int | None = None) -> GpuInput:
    return read_gpus("auto", count, detect=lambda: GpuInput(*decide(read(fake), environ or {})))


def test_auto_names_the_machines_gpus() -> None:
    fake = FakeNvml(*[{**H200, "uuid": f"GPU-{i}"} for i in range(8)])
    ((gpu, n),) = auto(fake).gpus
    assert (gpu.name, n, gpu.capability) == ("H200 SXM 141GB", 8, Capability(9, 0))
    assert fake.closed


def test_auto_with_a_count_takes_the_first_and_refuses_more_than_there_are() -> None:
    fake = FakeNvml(*[{**H200, "uuid": f"GPU-{i}"} for i in range(4)])
    assert auto(fake, count=2).gpus[0][1] == 2
    with pytest.raises(UsageError, match="shows 4 GPUs"):
        auto(fake, count=8)


def test_old_bindings_answer_bytes_and_unified_memory_answers_nothing() -> None:
    ((gpu, _),) = auto(FakeNvml({"name": b"NVIDIA GB10", "capability": (12, 1)})).gpus
    assert (gpu.name, str(gpu.capability)) == ("DGX Spark GB10", "12.1")


def test_a_gpu_the_catalogue_does_not_know_is_still_a_gpu() -> None:
    result = auto(FakeNvml({"name": "NVIDIA RTX 9999", "capability": (12, 0), "mib": 50000}))
    assert str(result.gpus[0][0].capability) == "12.0"
    assert "not in the catalogue" in result.notes[0]


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        (FakeNvml(init=12), "no NVIDIA driver"),
        (FakeNvml(init=9), "not loaded"),
        (FakeNvml(init=999), "NVML error 999"),
        (FakeNvml(), "reports no GPU"),
    ],
)
def test_a_machine_without_gpus_gets_one_sentence(fake: FakeNvml, words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        auto(fake)
    assert "--gpu h200x8" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_driver_that_fails_midway_is_closed_and_reported() -> None:
    fake = FakeNvml(H200)
    fake.nvmlDeviceGetHandleByIndex = lambda index: (_ for _ in ()).throw(FakeError(15))  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="NVML error 15"):
        auto(fake)
    assert fake.closed


FOUR = [
    Device("NVIDIA GeForce RTX 3090", "GPU-aaaa", Capability(8, 6), 24576),
    Device("NVIDIA GeForce RTX 3090", "GPU-abbb", Capability(8, 6), 24576),
    Device("NVIDIA GeForce RTX 2080 Ti", "GPU-cccc", Capability(7, 5), 11264),
    Device("NVIDIA GeForce RTX 2080 Ti", "GPU-dddd", Capability(7, 5), 11264),
]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [("8.6", 2), ("7.5", 2)]),
        ("0", [("8.6", 1)]),
        ("2,0", [("7.5", 1), ("8.6", 1)]),
        ("0,9,1", [("8.6", 1)]),  # CUDA stops at the first that does not exist
        ("0,-1,1", [("8.6", 1)]),
        ("GPU-cc", [("7.5", 1)]),
        ("GPU-dddd,0", [("7.5", 1), ("8.6", 1)]),
    ],
)
def test_cuda_visible_devices_is_honoured(visible: str | None, expected: list[tuple[str, int]]) -> None:
    gpus, _ = decide(FOUR, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert [(str(gpu.capability), n) for gpu, n in gpus] == expected


@pytest.mark.parametrize("visible", ["", "-1", "7", "GPU-a", "GPU-", "0,0", "all", "MIG-x"])
def test_an_environment_that_hides_every_gpu_is_an_error(visible: str) -> None:
    with pytest.raises(UsageError, match="none of this machine's 4 GPUs"):
        decide(FOUR, {"CUDA_VISIBLE_DEVICES": visible})


def test_numbers_among_different_gpus_are_a_note() -> None:
    _, notes = decide(FOUR, {"CUDA_VISIBLE_DEVICES": "0,2"})
    assert any("CUDA_DEVICE_ORDER=PCI_BUS_ID" in note for note in notes)
    _, notes = decide(FOUR, {"CUDA_VISIBLE_DEVICES": "0,2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert not any("fastest first" in note for note in notes)


SLICED = {
    "name": "NVIDIA A100-SXM4-80GB",
    "uuid": "GPU-m",
    "capability": (8, 0),
    "mib": 81920,
    "slices": [{"uuid": "MIG-1", "mib": 19968}, {"uuid": "MIG-2", "mib": 9728}],
}


def test_mig_shows_one_instance_with_its_own_memory() -> None:
    result = auto(FakeNvml(SLICED))
    ((gpu, n),) = result.gpus
    assert (n, gpu.memory_gib, str(gpu.capability)) == (1, 19.5, "8.0")
    assert any("MIG" in note for note in result.notes)
    ((gpu, n),) = auto(FakeNvml(SLICED), {"CUDA_VISIBLE_DEVICES": "MIG-2,MIG-1"}).gpus
    assert (n, gpu.memory_gib) == (1, 9.5)


def test_mig_without_an_instance_is_an_error() -> None:
    with pytest.raises(UsageError, match="no GPU has an instance"):
        auto(FakeNvml({**SLICED, "slices": []}))


def test_gpus_without_mig_are_counted_beside_sliced_ones() -> None:
    sliced = Device("NVIDIA H200", "GPU-1", Capability(9, 0), 143771, True, (Slice("MIG-1", 17000),))
    plain = Device("NVIDIA H200", "GPU-2", Capability(9, 0), 143771)
    gpus, notes = decide([sliced, plain], {})
    assert gpus[0][1] == 1
    assert any("MIG is on for some" in note for note in notes)
