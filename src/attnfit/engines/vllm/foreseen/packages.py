"""What a launch needs beside the engine, where it is known or likely not to be there."""

from __future__ import annotations

from attnfit.engines.vllm.foreseen.brought import brings
from attnfit.engines.vllm.foreseen.seen import MAY_BREAK, Found, Seen
from attnfit.gpus import driver

_IN_WHEEL = 20  # vllm/third_party/deep_gemm is in the wheels of 0.20.0 and newer, in none of 0.12.0 to 0.19.1


def driver_too_old(seen: Seen) -> Found | None:
    """AF117: the CUDA of the torch that the release brings (brings.json), and NVIDIA's table of drivers."""
    if not seen.driver:
        return None
    cuda = driver.of_torch(brings().get(seen.release, {}).get("torch", ""))
    oldest = driver.needs(seen.driver, cuda)
    if oldest is None:
        return None
    because = (
        f"driver {seen.driver}, and the torch that vLLM {seen.release} brings is for CUDA {cuda}: {oldest} or newer"
    )
    needs = "whether it is a build for an older CUDA, or the cuda-compat package stands in (data centre GPUs only)"
    return Found("AF117", MAY_BREAK, because, "torch/version.py", needs)


def indexer_without_deep_gemm(seen: Seen) -> Found | None:
    """AF224: the indexer of sparse MLA calls DeepGEMM (vllm/utils/deep_gemm.py), which older wheels do not bring."""
    plugin = seen.cfg.plugin
    if seen.minor >= _IN_WHEEL or seen.env.get("deep_gemm") or (plugin is not None and plugin.indexer):
        return None
    if not any(layer.question.use_mla and layer.question.use_sparse for layer in seen.layers):
        return None
    because = f"sparse attention, and the wheel of vLLM {seen.release} does not bring DeepGEMM"
    needs = "whether deep_gemm is installed where it runs (the engine's own images bring it): --env deep_gemm=yes"
    return Found("AF224", MAY_BREAK, because, "vllm/utils/deep_gemm.py", needs)


def flashinfer_cannot_compile(seen: Seen) -> Found | None:
    """AF107: FlashInfer compiles what flashinfer-jit-cache does not bring, with nvcc and ninja (flashinfer/jit)."""
    chosen = [name for name in seen.chosen if name.startswith("FLASHINFER")]
    lacks = [tool for tool in ("nvcc", "ninja") if seen.env.get(tool) is False]
    if not chosen or not lacks:
        return None
    because = f"{' and '.join(chosen)} was chosen, and there is no {' and no '.join(lacks)}"
    needs = "whether flashinfer-jit-cache is installed where it runs: then nothing is compiled"
    return Found("AF107", MAY_BREAK, because, "flashinfer/jit/cpp_ext.py", needs)
