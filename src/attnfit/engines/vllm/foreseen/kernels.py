"""Kernels that a launch will start and that its GPU cannot run, though every check of the engine lets it pass."""

from __future__ import annotations

from attnfit.engines.vllm.foreseen.brought import brings
from attnfit.engines.vllm.foreseen.seen import BREAKS, MAY_BREAK, Found, Seen, accepting
from attnfit.engines.vllm.launch.deepseek_v4 import IS_V4, V4_KERNELS
from attnfit.engines.vllm.launch.kv_dtype import from_checkpoint
from attnfit.gpus import ptxas as known


def ptxas(seen: Seen) -> Found | None:
    """AF102. brings.json has the torch of each release, gpus/ptxas.py what the Triton of that torch brings."""
    if seen.capability < (10, 0):
        return None
    brought = known.of_torch(brings().get(seen.release, {}).get("torch", ""))
    if brought is None or known.knows(brought[1], seen.capability):
        return None
    triton, tool = brought
    if tool.variable in seen.variables:
        return None
    arch = "sm_{}{}a".format(*seen.capability)
    because = f"vLLM {seen.release} brings Triton {triton}, whose ptxas (CUDA {tool.cuda}) does not know {arch}"
    needs = f"whether {tool.variable} names a newer ptxas where it runs (images for this GPU set it)"
    own = "let Triton use the CUDA toolkit's ptxas, where that toolkit knows the GPU"
    ways = (
        f"{own} [{tool.variable}=/usr/local/cuda/bin/ptxas]",
        "or a release whose Triton brings a newer ptxas: attnfit check asks each",
    )
    return Found("AF102", MAY_BREAK, because, "triton/backends/nvidia/compiler.py", needs, ways)


# DeepGEMM on compute capability 12.x: `support_deep_gemm` lets it through from 0.24.0 on (vllm/platforms/cuda.py:663
# there, :557 without it in 0.23.0), and it comes second among the kernels for block-scaled FP8
# (vllm/model_executor/kernels/linear/__init__.py:320). Its module has kernels for 12.x in 0.28.0 and newer
# (third_party/deep_gemm/include/deep_gemm/mma/sm120.cuh; none in 0.23.0; 0.24 to 0.27 were not read).
def deep_gemm_blocks(seen: Seen) -> Found | None:
    """AF111: reported of 0.24.0 twice, with an assertion about the layout of the scales."""
    if not (24 <= seen.minor <= 27 and _deep_gemm_on_12(seen)):
        return None
    because = f"block-scaled FP8 weights on compute capability {seen.capability} go to DeepGEMM in this release"
    needs = (
        f"whether the DeepGEMM in vLLM {seen.release} has kernels for this GPU; 0.24.0 was reported without, 0.28.0 "
    )
    return Found("AF111", MAY_BREAK, because, "vllm/platforms/cuda.py:663", f"{needs}has some")


def deep_gemm_scales(seen: Seen) -> Found | None:
    """AF110: reported on 12.1 of a build between 0.28.0 and 0.30.0."""
    if not (28 <= seen.minor <= 29 and seen.capability == (12, 1) and _deep_gemm_on_12(seen)):
        return None
    because = "block-scaled FP8 weights go to DeepGEMM, which takes their scales as powers of two on this GPU"
    needs = "whether this build converts them; one of 2026-08 was reported not to"
    return Found("AF110", MAY_BREAK, because, "vllm/model_executor/kernels/linear/__init__.py", needs)


def _deep_gemm_on_12(seen: Seen) -> bool:
    switched_off = seen.variables.get("VLLM_USE_DEEP_GEMM", "1") == "0"
    plain = seen.cfg.flags.get("linear_backend") in (None, "auto") and seen.cfg.dtype == "bfloat16"
    return seen.capability.major == 12 and not switched_off and plain and _in_blocks(seen)


def _in_blocks(seen: Seen) -> bool:
    """Whether the checkpoint's FP8 weights have a scale for each block."""
    quant = seen.cfg.quant_config or {}
    if seen.cfg.quantization == "fp8":
        return bool(quant.get("weight_block_size"))
    if seen.cfg.quantization != "compressed-tensors":
        return False
    groups = quant.get("config_groups")
    weights = [group.get("weights") for group in groups.values()] if isinstance(groups, dict) else []
    return any(
        isinstance(w, dict) and w.get("strategy") == "block" and w.get("type") == "float" and w.get("num_bits") == 8
        for w in weights
    )


_E4M3_VIEW = {12: 323, 13: 430, 14: 465, 15: 473, 16: 469, 17: 470, 18: 477, 20: 571, 21: 570, 22: 591, 23: 587}


def fp8_cache_in_triton(seen: Seen) -> Found | None:
    """AF104: TRITON_ATTN views an FP8 cache as e4m3, whose type Triton refuses below 8.9 (so 3.5.1 to 3.8.0, compiled).

    From 0.24.0 on its constructor says so (v1/attention/backends/triton_attn.py:479), and the launch is refused.
    """
    if seen.minor >= 24 or seen.capability >= (8, 9):
        return None
    kept = [layer for layer in seen.layers if layer.selection.chosen == "TRITON_ATTN"]
    asked = {layer.question.kv_cache_dtype for layer in kept}
    dtypes = [dtype for dtype in ("fp8", "fp8_e4m3") if dtype in asked]
    if not dtypes:
        return None
    line = _E4M3_VIEW[max(minor for minor in _E4M3_VIEW if minor <= seen.minor)]
    because = f"TRITON_ATTN with a KV cache in {' and '.join(dtypes)} on compute capability {seen.capability}"
    others = [name for name in accepting(kept) if name == "FLASHINFER"]  # the one that reads FP8 without Triton
    ways = [f"another backend, which takes this KV cache here [--attention-backend {name}]" for name in others]
    ways.append(_in_16_bits(seen))
    where = f"vllm/v1/attention/backends/triton_attn.py:{line}"
    return Found("AF104", BREAKS, because, where, ways=tuple(ways))


def _in_16_bits(seen: Seen) -> str:
    """The way to a KV cache that is not FP8: under "auto" the checkpoint may ask for FP8 as well."""
    quant = seen.cfg.quant_config or {}
    declared = bool(quant.get("kv_cache_scheme")) or from_checkpoint(seen.cfg.quant_config) != "auto"
    plain = "bfloat16" if seen.capability >= (8, 0) else "float16" if seen.minor >= 20 else ""
    value = plain if declared else "auto"
    if not value:
        return "no flag of this release keeps the KV cache in 16 bits where the checkpoint asks for FP8"
    return f"keep the KV cache in 16 bits [--kv-cache-dtype {value}]; gives up: half of the KV cache's room"


_ROPE_QUANT = {  # where DeepSeek-V4's kernels convert to e4m3, from which release on
    20: "vllm/v1/attention/ops/deepseek_v4_ops/fused_inv_rope_fp8_quant.py:107",
    22: "vllm/models/deepseek_v4/common/ops/fused_inv_rope_fp8_quant.py:108",
    24: "vllm/models/deepseek_v4/common/ops/fused_inv_rope_fp8_quant.py:121",
    30: "vllm/models/deepseek_v4/common/ops/fused_inv_rope_fp8_quant.py:163",
    31: "vllm/models/deepseek_v4/common/ops/fused_inv_rope_fp8_quant.py:162",
}


def v4_in_fp8(seen: Seen) -> Found | None:
    """AF104: DeepSeek-V4's Triton kernels convert to e4m3 whatever the GPU; reported on 8.0 (vLLM issue 50576)."""
    if seen.cfg.architecture not in IS_V4 or seen.capability >= (8, 9):
        return None
    where = _ROPE_QUANT[max((minor for minor in _ROPE_QUANT if minor <= seen.minor), default=20)]
    because = "DeepSeek-V4's own kernels convert to e4m3 on every GPU, and its KV cache is FP8 always"
    way = (
        "no flag helps, and no other format of the weights: a GPU of compute capability 8.9 or newer, or a build "
        "with kernels for this one"
    )
    return Found("AF104", BREAKS, because, where, ways=(way,))


def v4_without_kernels(seen: Seen) -> Found | None:
    """AF112: it binds its kernels without asking the selector (launch/deepseek_v4.py has which there are).

    Those for 12.x came with 0.24.0 (vllm/models/deepseek_v4/nvidia/flashinfer_sparse.py; 0.23.0 has none).
    """
    made_for = tuple(major for major in V4_KERNELS if major != 12 or seen.minor >= 24)
    if seen.cfg.architecture not in IS_V4 or seen.capability.major in made_for:
        return None
    listed = "9.0, 10.x and 12.x" if 12 in made_for else "9.0 and 10.x"
    because = f"DeepSeek-V4 asks no selector, and this release's kernels are for {listed}, not for {seen.capability}"
    needs = "a start on such a GPU; none was seen" if seen.capability >= (8, 9) else "what stops it first"
    return Found("AF112", MAY_BREAK, because, "vllm/models/deepseek_v4/nvidia/model.py", needs)


# csrc/cache_kernels.cu, as compiled: "pe_dim must be 64 for fp8_ds_mla" in 0.20.2, 0.23.0, 0.28.0 and 0.30.0,
# "pe_dim must be 64 or 0 for fp8_ds_mla" in 0.32.0 and 0.33.0 (read from their extension modules).
def packed_rope(seen: Seen) -> Found | None:
    """AF223: the packed layout of a sparse MLA cache, and a model whose rotary part has another width."""
    rope = seen.cfg.text.get("qk_rope_head_dim")
    sparse = any(layer.question.use_mla and layer.question.use_sparse for layer in seen.layers)
    if not sparse or seen.kv_cache_dtype != "fp8_ds_mla" or not isinstance(rope, int) or rope == 64:
        return None
    if rope == 0 and seen.minor >= 32:
        return None
    because = f"{' and '.join(seen.chosen)} packs the KV cache as fp8_ds_mla, and qk_rope_head_dim is {rope}"
    where = "csrc/libtorch_stable/cache_kernels.cu (concat_and_cache_mla)"
    if rope == 0 and seen.minor == 31:
        return Found("AF223", MAY_BREAK, because, where, "how 0.31.0 was compiled: 0.30.0 refuses it, 0.32.0 takes it")
    return Found("AF223", BREAKS, because, where)
