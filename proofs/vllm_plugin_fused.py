"""The fused Triton code that vLLM's own CUDA model of DeepSeek-V3.2 and GLM-5 runs before attention, compiled for GPUs,
and the plug-in's one kernel of its own, from positions to rows.

Run by vllm_plugin.py with the python of a venv that has vLLM (0.28.0 on has that model). The launches are made by the
release's own functions for meta tensors of a layer of GLM-5 on one of 8 GPUs, caught, and compiled with the Triton of
the venv for a capability; nothing runs. One JSON line each: what, dtype, KV cache, capability, and why it fails.
"""

from __future__ import annotations

import json
from typing import Any

import vllm_plugin_launch as launching  # before torch: it sets the environment

ANSWERS = launching.ANSWERS

import torch  # noqa: E402
from fake_gpu import install  # noqa: E402

install((12, 0))

import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from attnfit.engines.vllm.plugin import rows  # noqa: E402

try:
    import vllm.models.deepseek_v32.common.kernels as kernels
except ModuleNotFoundError:
    kernels = None

CAPABILITIES = (80, 89, 90, 100, 120)
TOKENS, HEADS, INDEX_HEADS, LORA = 8, 8, 32, 2048
POINTERS = {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32",
            torch.int64: "*i64", torch.uint8: "*u8", torch.float8_e4m3fn: "*fp8e4nv"}  # fmt: skip
LAUNCH_OPTIONS = ("num_warps", "num_stages", "launch_pdl")


class Caught:
    """In place of a kernel: keeps what it would be launched with."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.arguments, self.options = kernel, {}, {}

    def __getitem__(self, _grid: Any) -> Any:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.options = {k: kwargs.pop(k) for k in LAUNCH_OPTIONS if k in kwargs}
        self.arguments = {**dict(zip(self.kernel.arg_names, args, strict=False)), **kwargs}

    def compiled(self, capability: int) -> Any:
        constants = {p.name for p in self.kernel.params if p.is_constexpr}
        signature, values = {}, {}
        for name, value in self.arguments.items():
            if name in constants or value is None or (type(value) is int and value == 1):
                signature[name], values[name] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[name] = POINTERS[value.dtype]
            else:
                signature[name] = "fp32" if isinstance(value, float) else "i32"
        if capability < 90 and "USE_PDL" in signature:
            values["USE_PDL"] = False
        places = {(self.kernel.arg_names.index(name),): value for name, value in values.items()}
        source = ASTSource(self.kernel, signature, places)
        options = {k: v for k, v in self.options.items() if k != "launch_pdl" or capability >= 90}
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def meta(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def norm_rope(dtype: torch.dtype, kv: str) -> None:
    packed, fp32 = kv == "fp8_ds_mla", torch.float32
    launching.called(
        kernels.fused_norm_rope,
        positions=meta(TOKENS, dtype=torch.int64), q_c=meta(TOKENS, LORA, dtype=dtype),
        q_rms_norm_w=meta(LORA, dtype=dtype), q_rms_eps=1e-5, kv_c=meta(TOKENS, 512, dtype=dtype),
        kv_rms_norm_w=meta(512, dtype=dtype), kv_rms_eps=1e-5, k_pe=meta(TOKENS, 64, dtype=dtype),
        k_rope_cos_sin_cache=meta(4096, 64, dtype=dtype), index_k=meta(TOKENS, 128, dtype=dtype),
        index_k_layer_norm_w=meta(128, dtype=fp32), index_k_layer_norm_bias=meta(128, dtype=fp32),
        index_k_layer_norm_eps=1e-6, index_k_rope_cos_sin_cache=meta(4096, 64, dtype=dtype),
        topk_indices_buffer=meta(TOKENS, 2048, dtype=torch.int32), slot_mapping=meta(TOKENS, dtype=torch.int64),
        indexer_slot_mapping=meta(TOKENS, dtype=torch.int64), indexer_k_cache=meta(4, 64, 132, dtype=torch.uint8),
        mla_kv_cache=meta(4, 64, 656 if packed else 576, dtype=torch.uint8 if packed else dtype),
        mla_kv_cache_dtype=kv, mla_k_scale=meta(1, dtype=fp32), has_indexer=True, index_rope_interleave=True,
        kv_c_out=meta(TOKENS, 512, dtype=dtype), k_pe_out=meta(TOKENS, 64, dtype=dtype),
    )  # fmt: skip


def query(dtype: torch.dtype, _: str) -> None:
    launching.called(
        kernels.fused_q,
        positions=meta(TOKENS, dtype=torch.int64), q_pe=meta(TOKENS, HEADS, 64, dtype=dtype),
        q_pe_cos_sin_cache=meta(4096, 64, dtype=dtype), index_q=meta(TOKENS, INDEX_HEADS, 128, dtype=dtype),
        index_q_cos_sin_cache=meta(4096, 64, dtype=dtype), ql_nope=meta(TOKENS, HEADS, 512, dtype=dtype),
        q_scale=meta(1, dtype=torch.float32), index_weights=meta(TOKENS, INDEX_HEADS, dtype=dtype),
        index_weights_softmax_scale=0.1, index_weights_head_scale=0.1, has_indexer=True, index_rope_interleave=True,
        quantize_mqa=False,
    )  # fmt: skip


def positions_to_rows(_: torch.dtype, ranks: str) -> None:
    rows.cache_rows(
        meta(TOKENS, 2176, dtype=torch.int32)[:, :2048], meta(TOKENS, dtype=torch.int32),
        meta(4, 100, dtype=torch.int32), 64, dcp_size=int(ranks), interleave=int(ranks),
    )  # fmt: skip


def compile_all(place: Any, name: str, launch: Any, dtypes: tuple[torch.dtype, ...], caches: tuple[str, ...]) -> None:
    caught = Caught(getattr(place, name))
    setattr(place, name, caught)
    for dtype in dtypes:
        for kv in caches:
            launch(dtype, kv)
            for capability in CAPABILITIES:
                row = {"kernel": name, "dtype": str(dtype)[6:], "kv": kv, "capability": capability, "error": None}
                try:
                    caught.compiled(capability)
                except Exception as error:
                    row["error"] = f"{type(error).__name__}: {error}"[-400:]
                ANSWERS.write(json.dumps(row) + "\n")


def main() -> None:
    both = (torch.float16, torch.bfloat16)
    compile_all(rows, "rows_kernel", positions_to_rows, (torch.int32,), ("1", "2"))
    if kernels is not None:
        compile_all(kernels, "_fused_norm_rope_kernel", norm_rope, both, ("auto", "fp8_ds_mla"))
        # In bfloat16 vLLM has a CuTe kernel for the queries from 10.0 on (nvidia/ops/fused_q_cutedsl.py).
        compile_all(kernels, "_fused_q_kernel", query, both[:1], ("",))


main()
