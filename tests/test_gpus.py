"""The catalogue: every figure has a source, and a name means what its user means."""

from __future__ import annotations

import msgspec
import pytest

from attnfit import gpus
from attnfit.core import Capability
from attnfit.errors import UsageError

FIGURES = ("capability", "memory_gb", "memory_mib", "cuda_gib", "bandwidth_gbs", "sms")

CAPABILITY = {
    "V100": "7.0", "Titan V": "7.0", "xavier": "7.2", "T4": "7.5", "2080ti": "7.5", "quadro-rtx-8000": "7.5",
    "titan-rtx": "7.5", "A100": "8.0", "a100-80g": "8.0", "A30": "8.0", "A800": "8.0", "3090": "8.6", "A10G": "8.6",
    "A40": "8.6", "rtx-a6000": "8.6", "RTX A2000": "8.6", "orin": "8.7", "4090": "8.9", "L4": "8.9", "L40S": "8.9",
    "L20": "8.9", "rtx-6000-ada": "8.9", "H100": "9.0", "h100-pcie": "9.0", "H200": "9.0", "H800": "9.0",
    "h20": "9.0", "h20-141": "9.0", "GH200": "9.0", "B100": "10.0", "B200": "10.0", "GB200": "10.0", "B300": "10.3",
    "GB300": "10.3", "thor": "11.0", "5090": "12.0", "rtx-5060-ti": "12.0", "rtx-pro-6000": "12.0",
    "rtx-pro-2000": "12.0", "dgx-spark": "12.1", "GB10": "12.1",
}  # fmt: skip


@pytest.mark.parametrize(("name", "capability"), CAPABILITY.items())
def test_names_people_use_have_the_right_compute_capability(name: str, capability: str) -> None:
    assert str(gpus.find(name).capability) == capability


def test_every_figure_names_a_source_that_is_listed() -> None:
    for entry in gpus.catalogue():
        raw = msgspec.to_builtins(entry)
        given = {f for f in FIGURES if raw.get(f) is not None}
        assert given == set(entry.sources), entry.name
        assert set(entry.sources.values()) <= set(gpus.sources()), entry.name


def test_every_source_that_is_listed_is_used() -> None:
    used = {source for entry in gpus.catalogue() for source in entry.sources.values()}
    assert set(gpus.sources()) - used <= {"cuda-programming-guide", "cuda-programming-guide-11"}


def test_names_are_unique_and_figures_plausible() -> None:
    entries = gpus.catalogue()
    assert len({e.name for e in entries}) == len(entries)
    for entry in entries:
        gpu = entry.gpu
        if gpu.vendor == "nvidia":
            assert gpu.capability in gpus.capabilities(), entry.name
            assert entry.kind in {"datacenter", "workstation", "consumer", "embedded"}, entry.name
        if entry.memory_gb and entry.memory_mib:
            assert 0.85 * entry.memory_gb < entry.memory_mib / 1024 <= entry.memory_gb, entry.name
        if gpu.bandwidth_gbs:
            assert 30 < gpu.bandwidth_gbs <= 8000, entry.name
        if entry.sms:
            assert 4 <= entry.sms <= 192, entry.name


def test_shared_memory_is_a_fact_of_the_capability() -> None:
    expected = {"7.0": 96, "7.5": 64, "8.0": 163, "8.6": 99, "8.7": 163, "8.9": 99, "9.0": 227, "10.0": 227,
                "10.3": 227, "11.0": 227, "12.0": 99, "12.1": 99}  # fmt: skip
    for text, kib in expected.items():
        assert gpus.by_capability(Capability.parse(text)).smem_per_block_kib == kib


@pytest.mark.parametrize(
    "spelling", ["rtx-pro-6000", "RTX PRO 6000", "rtx_pro_6000", "  RtxPro6000 ", "NVIDIA RTX PRO 6000"]
)
def test_case_spaces_and_punctuation_do_not_matter(spelling: str) -> None:
    assert gpus.find(spelling).name == "RTX PRO 6000 Blackwell Workstation"


@pytest.mark.parametrize(
    ("spelling", "name", "memory"),
    [
        ("a100-80g", "A100 SXM4 80GB", 80),
        ("A100 40GB", "A100 SXM4 40GB", 40),
        ("H100 SXM 80GB", "H100 SXM5 80GB", 80),
        ("RTX 4060 Ti 16GB", "GeForce RTX 4060 Ti 16GB", 16),
        ("2080ti-22g", "GeForce RTX 2080 Ti 22GB (modified)", 22),
        ("V100 16G", "V100 SXM2 16GB", 16),
        ("rtx-pro-5000-72g", "RTX PRO 5000 Blackwell 72GB", 72),
    ],
)
def test_a_memory_size_in_the_name_picks_the_variant(spelling: str, name: str, memory: float) -> None:
    gpu = gpus.find(spelling)
    assert gpu.name == name
    assert gpu.memory_gib == pytest.approx(memory, rel=0.01)


def test_a_name_of_several_variants_takes_the_first_and_says_so() -> None:
    match = gpus.lookup("a100")
    assert match.gpu.name == "A100 SXM4 80GB"
    assert "A100 PCIe 40GB" in match.note
    assert gpus.lookup("a100-sxm-80g").note == ""


def test_a_name_of_different_capabilities_is_refused_with_the_choices() -> None:
    with pytest.raises(UsageError, match=r"RTX 6000 Ada \(8\.9\), Quadro RTX 6000 \(7\.5\)"):
        gpus.find("rtx-6000")


def test_an_unknown_name_suggests_and_says_where_to_look() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'rtx-pro-6000'.*attnfit gpus"):
        gpus.find("rtx-pro-600")


@pytest.mark.parametrize("spelling", ["12.0", "sm120", "sm_120", "sm_120a", "SM 120", "compute_120f", "cc12.0"])
def test_a_compute_capability_is_a_gpu_too(spelling: str) -> None:
    gpu = gpus.find(spelling)
    assert (gpu.capability, gpu.memory_gib) == (Capability(12, 0), None)


@pytest.mark.parametrize("spelling", ["13.0", "sm_95", "9.9", "sm_1"])
def test_a_capability_that_no_gpu_has_is_refused(spelling: str) -> None:
    with pytest.raises(UsageError):
        gpus.find(spelling)


@pytest.mark.parametrize(("name", "vendor"), [("MI300X", "amd"), ("mi355x", "amd"), ("Gaudi 3", "intel")])
def test_other_vendors_are_known_but_not_covered(name: str, vendor: str) -> None:
    gpu = gpus.find(name)
    assert (gpu.vendor, gpu.capability) == (vendor, None)


@pytest.mark.parametrize(
    ("device", "capability", "mib", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "9.0", 81559, "H100 SXM5 80GB"),
        ("NVIDIA H200", "9.0", 143771, "H200 SXM 141GB"),
        ("NVIDIA A100-SXM4-80GB", "8.0", 81920, "A100 SXM4 80GB"),
        ("A100-SXM4-40GB", "8.0", 40536, "A100 SXM4 40GB"),
        ("Tesla V100-SXM2-32GB", "7.0", 32510, "V100 SXM2 32GB"),
        ("NVIDIA GeForce RTX 3080", "8.6", 12288, "GeForce RTX 3080 12GB"),
        ("NVIDIA GeForce RTX 3080", "8.6", 10240, "GeForce RTX 3080 10GB"),
        ("NVIDIA GeForce RTX 4090", "8.9", 24564, "GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "8.9", 49140, "GeForce RTX 4090 48GB (modified)"),
        ("NVIDIA GeForce RTX 2080 Ti", "7.5", 22528, "GeForce RTX 2080 Ti 22GB (modified)"),
        ("NVIDIA GH200 480GB", "9.0", 97871, "GH200 96GB"),
        ("NVIDIA GB300", "10.3", 256703, "DGX Station GB300"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0", 97887, "RTX PRO 6000 Blackwell Server"),
        ("NVIDIA GB10", "12.1", None, "DGX Spark GB10"),
        ("NVIDIA Thor", "11.0", None, "Jetson T5000 (Thor)"),
    ],
)
def test_driver_names_are_told_apart_by_memory(device: str, capability: str, mib: int | None, name: str) -> None:
    gpu = gpus.by_device_name(device, Capability.parse(capability), mib).gpu
    assert gpu.name == name
    if mib:
        assert gpu.memory_gib == pytest.approx(mib / 1024, abs=0.01)


def test_an_unknown_driver_name_keeps_what_the_driver_says() -> None:
    match = gpus.by_device_name("NVIDIA RTX 9999 Laptop GPU", Capability(12, 0), 16303)
    assert match.gpu.capability == Capability(12, 0)
    assert match.gpu.memory_gib == pytest.approx(15.92)
    assert "not in the catalogue" in match.note
