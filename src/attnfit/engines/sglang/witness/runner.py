"""The model runner a backend's constructor is given: the real sizes of the launch, pools without memory.

Follows what model_executor/model_runner.py sets before it builds backends. What is not set here is a stub: passing it
on is harmless, deciding by it makes the answer unknown. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attnfit.witness.fake_torch import DTYPES
from attnfit.witness.loader import Loader
from attnfit.witness.stubs import leak

from .gpu import Record

TOKENS = 16384  # of the KV pool; no gate depends on it
REQUESTS = 16
# model_executor/model_runner.py, configure_kv_cache_dtype
KV_DTYPES = {
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "mxfp8": "float8_e4m3fn",
    "nvfp4": "float4_e2m1fn_x2",
    "fp4_e2m1": "float4_e2m1fn_x2",
}
_HYBRID = "sglang.srt.configs.hybrid_arch"
_MODEL_RUNNER = "sglang.srt.model_executor.model_runner"
# Properties of ModelRunner up to 0.5.15 that say what kind of hybrid a model is.
_KINDS = (
    "qwen3_next_config",
    "hybrid_gdn_config",
    "mamba2_config",
    "kimi_linear_config",
    "hybrid_lightning_config",
    "linear_attn_model_spec",
    "mambaish_config",
)


class Shape:
    """A tensor of which only shape and dtype are asked."""

    device = "cuda"

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = tuple(shape), dtype

    def __getitem__(self, index: int) -> Shape:
        return Shape(self.shape[1:], self.dtype)

    def transpose(self, one: int, other: int) -> Shape:
        shape = list(self.shape)
        shape[one], shape[other] = shape[other], shape[one]
        return Shape(tuple(shape), self.dtype)

    def size(self, index: int | None = None) -> Any:
        return self.shape if index is None else self.shape[index]

    def dim(self) -> int:
        return len(self.shape)


def runner(loader: Loader, args: Any, config: Any, get: Callable[[str], Any]) -> Record:
    """The runner of rank 0. args: ServerArgs; config: its ModelConfig; get: resolved field by name, None if absent."""
    mla = config.attention_arch == loader.source("sglang.srt.configs.model_config").AttentionArch.MLA
    spec = loader.source("sglang.srt.speculative.spec_info").SpeculativeAlgorithm
    page_size = get("page_size") or 1
    made = Record(
        "model_runner",
        server_args=args,
        model_config=config,
        model=Record("model", modules=lambda: iter(())),
        device="cuda",
        gpu_id=0,
        dtype=config.dtype,
        is_draft_worker=False,
        draft_attention_backend=None,
        use_mla_backend=mla,
        is_hybrid_swa_compress=getattr(config, "is_hybrid_swa_compress", False),
        attention_chunk_size=getattr(config, "attention_chunk_size", None),
        page_size=page_size,
        tp_size=get("tp_size"),
        pp_size=get("pp_size"),
        dp_size=get("dp_size"),
        moe_ep_size=get("ep_size"),
        tp_rank=0,
        pp_rank=0,
        dp_rank=0,
        is_generation=True,
        init_new_workspace=False,
        plan_stream_for_flashinfer=None,
        max_total_num_tokens=TOKENS,
        swa_max_total_num_tokens=TOKENS,
        full_max_total_num_tokens=TOKENS,
        max_running_requests=REQUESTS,
        num_effective_layers=config.num_hidden_layers,
        start_layer=0,
        end_layer=config.num_hidden_layers,
        hisparse_coordinator=None,
        enable_hisparse=False,
        canary_manager=None,
        prefill_aware_swa=False,
        lora_manager=None,
        kv_index_translator=Record("kv_index_translator", is_translating=False),
        decode_num_tokens_per_req=lambda *args, **kwargs: 1,
        spec_algorithm=spec.from_string(get("speculative_algorithm")),
    )
    made.is_hybrid = made.is_hybrid_swa = getattr(config, "is_hybrid_swa", False)
    window = getattr(config, "sliding_window_size", None)
    if window is None and made.is_hybrid_swa:
        window = getattr(config.hf_text_config, "sliding_window", None)
    made.sliding_window_size = window
    made.kv_cache_dtype, made.kv_cache_dtype_str = _kv_dtype(get("kv_cache_dtype"), config)
    _pools(loader, made, args, get)
    if not loader.has_source(_HYBRID):
        module = loader.source(_MODEL_RUNNER)
        cls = module.ModelRunner
        if "_get_linear_attn_registry_result" in vars(cls):  # 0.5.12 to 0.5.15
            registered = module.get_linear_attn_config(config.hf_config)
            made._get_linear_attn_registry_result = lambda: registered
        for name in _KINDS:
            kind = vars(cls).get(name)
            if isinstance(kind, property) and kind.fget is not None:
                setattr(made, name, kind.fget(made))
    _states(loader, made)
    return made


def _kv_dtype(flag: str, config: Any) -> tuple[Any, str]:
    if flag != "auto":
        if flag not in KV_DTYPES:
            leak(f"what the KV cache of --kv-cache-dtype {flag} is made of is not known here")
        return DTYPES[KV_DTYPES[flag]], flag
    quantization = getattr(config.hf_config, "quantization_config", None) or {}
    scheme = quantization.get("kv_cache_scheme") if isinstance(quantization, dict) else None
    fp8 = (
        isinstance(scheme, dict)
        and (scheme.get("num_bits"), scheme.get("type")) == (8, "float")
        and "modelopt" in str(quantization.get("quant_method"))
    )
    return (DTYPES["float8_e4m3fn"], "fp8_e4m3") if fp8 else (config.dtype, "auto")


def _pools(loader: Loader, made: Record, args: Any, get: Callable[[str], Any]) -> None:
    dtype = made.kv_cache_dtype
    kernels = [get(f"{name}_{phase}_backend") for name in ("dsa", "nsa") for phase in ("prefill", "decode")]
    stores_fp8 = dtype.itemsize == 1 and not {"trtllm", "tilelang"} & {str(name) for name in kernels}
    pool = Record(
        "token_to_kv_pool",
        dtype=dtype,
        store_dtype=DTYPES["uint8"] if dtype.itemsize == 1 else dtype,
        page_size=made.page_size,
        start_layer=0,
        size=TOKENS,
        device="cuda",
        kv_cache_dim=576 if made.use_mla_backend else None,
        dsa_kv_cache_store_fp8=stores_fp8,
        nsa_kv_cache_store_fp8=stores_fp8,
    )
    methods = "sglang.srt.layers.quantization.fp4_kv_cache_quant_method"
    if loader.has_source(methods) and loader.source(methods).defines("KV_CACHE_QUANT_REGISTRY"):  # from 0.5.16 on
        source, name = loader.source(methods), get("kv_cache_dtype")
        if name in source.KV_CACHE_QUANT_REGISTRY:
            method = source.get_kv_cache_quant_method(name, num_layers=1, device="cpu", page_size=made.page_size)
            method.configure_attention_backends_from_server_args(args)
        else:
            method = source.UnquantizedKVCacheMethod()
        pool.get_kv_cache_quant_method = lambda: method
    made.token_to_kv_pool = pool
    made.token_to_kv_pool_allocator = Record("allocator", page_size=made.page_size, get_kvcache=lambda: pool)
    made.req_to_token_pool = Record(
        "req_to_token_pool", size=REQUESTS, max_context_len=min(made.model_config.context_len, 4096), device="cuda"
    )


def _states(loader: Loader, made: Record) -> None:
    """The recurrent states of a hybrid model: shapes as its own config class computes them."""
    if loader.has_source(_HYBRID):
        config = loader.source(_HYBRID).mambaish_config(made.model_config)
    else:
        config = vars(made).get("mambaish_config")
    if config is None:
        return
    params = config.mamba2_cache_params
    cache = Record(
        "mamba_cache",
        conv=[Shape((1, 1, *shape), params.dtype.conv) for shape in params.shape.conv],
        temporal=Shape((1, 1, *params.shape.temporal), params.dtype.temporal),
    )
    pool = made.req_to_token_pool
    pool.mamba_pool = Record("mamba_pool", mamba_cache=cache, size=REQUESTS, num_mamba_layers=len(params.layers))
    pool.mamba2_layer_cache = lambda layer: cache
    pool.get_speculative_mamba2_params_all_layers = lambda: cache
    pool.mamba_map = {layer: index for index, layer in enumerate(params.layers)}


def parallel_groups(loader: Loader, tp_size: int) -> None:
    """The process groups of rank 0, without processes."""
    whole = Record(
        "group", world_size=tp_size, rank_in_group=0, rank=0, local_rank=0, is_first_rank=True, is_last_rank=True
    )
    single = Record("group", world_size=1, rank_in_group=0, rank=0, local_rank=0, is_first_rank=True, is_last_rank=True)
    groups: dict[str, Any] = {
        **dict.fromkeys(("_TP", "_ATTN_TP", "_MOE_TP", "_WORLD"), whole),
        **dict.fromkeys(("_PP", "_ATTN_CP", "_MOE_EP", "_DCP"), single),
    }
    sizes = {
        "_ATTN_TP_SIZE": tp_size,
        "_ATTN_DP_SIZE": 1,
        "_LOCAL_ATTN_DP_SIZE": 1,
        "_ATTN_CP_SIZE": 1,
        **dict.fromkeys(("_ATTN_TP_RANK", "_ATTN_DP_RANK", "_LOCAL_ATTN_DP_RANK", "_ATTN_CP_RANK"), 0),
        "_ENABLE_DP_ATTENTION_FLAG": False,
    }
    _fix(loader, "sglang.srt.distributed.parallel_state", groups)
    _fix(loader, "sglang.srt.layers.dp_attention", sizes)


def _fix(loader: Loader, name: str, values: Mapping[str, Any]) -> None:
    """Set the globals of these names that a module has."""
    module = loader.source(name)
    vars(module).update({key: value for key, value in values.items() if module.defines(key)})
