"""The pools of a server without memory in them: what a backend's constructor asks of KV cache and recurrent states.

Follows mem_cache/kv_cache_configurator.py (up to 0.5.15 model_executor/model_runner_kv_cache_mixin.py). Standard
library only.
"""

from __future__ import annotations

from collections.abc import Callable
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
    "fp4_mx_block16": "float4_e2m1fn_x2",  # kv_cache_dtype.py:76 (0.5.23)
}
_HYBRID = "sglang.srt.configs.hybrid_arch"
_QUANT_METHODS = "sglang.srt.layers.quantization.fp4_kv_cache_quant_method"
_DEEPSEEK_V4 = "sglang.srt.mem_cache.deepseek_v4_memory_pool"


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


def kv_dtype(flag: str, config: Any) -> tuple[Any, str]:
    """What the KV cache is made of, and how it is called."""
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


def pools(loader: Loader, made: Record, args: Any, get: Callable[[str], Any]) -> None:
    """Give the runner its pools, where the launch's own sizes are asked."""
    dtype = made.kv_cache_dtype
    kernels = [get(f"{name}_{phase}_backend") for name in ("dsa", "nsa") for phase in ("prefill", "decode")]
    stores_fp8 = dtype.itemsize == 1 and not {"trtllm", "tilelang"} & {str(name) for name in kernels}
    known = {
        "dtype": dtype,
        "store_dtype": DTYPES["uint8"] if dtype.itemsize == 1 else dtype,
        "page_size": made.page_size,
        "start_layer": 0,
        "size": TOKENS,
        "device": "cuda",
        "kv_cache_dim": 576 if made.use_mla_backend else None,
        "dsa_kv_cache_store_fp8": stores_fp8,
        "nsa_kv_cache_store_fp8": stores_fp8,
    }
    method = _quant_method(loader, made, args, get("kv_cache_dtype"))
    if method is not None:
        known["get_kv_cache_quant_method"] = lambda: method
    models = loader.source("sglang.srt.configs.model_config")
    if models.defines("is_deepseek_v4") and models.is_deepseek_v4(made.model_config.hf_config):
        pool = _deepseek_v4_pool(loader, made, get, known)
    else:
        pool = Record("token_to_kv_pool", **known)
    made.token_to_kv_pool = pool
    allocator = Record("allocator", page_size=made.page_size, get_kvcache=lambda: pool)
    if not get("enable_unified_memory"):  # its allocator alone has these
        allocator.translate_kv_loc = allocator.translate_kv_loc_dense = allocator.full_v2p_page_table = None
    made.token_to_kv_pool_allocator = allocator
    made.req_to_token_pool = Record(
        "req_to_token_pool", size=REQUESTS, max_context_len=min(made.model_config.context_len, 4096), device="cuda"
    )


def _quant_method(loader: Loader, made: Record, args: Any, name: str) -> Any:
    """How the KV cache is quantised, as an object of the release's own; None before 0.5.16."""
    if not loader.has_source(_QUANT_METHODS) or not loader.source(_QUANT_METHODS).defines("KV_CACHE_QUANT_REGISTRY"):
        return None
    source = loader.source(_QUANT_METHODS)
    if name not in source.KV_CACHE_QUANT_REGISTRY:
        return source.UnquantizedKVCacheMethod()
    asked = {"num_layers": 1, "device": "cpu", "page_size": made.page_size}
    takes = source.KV_CACHE_QUANT_REGISTRY[name].__init__.__code__.co_varnames
    method = source.get_kv_cache_quant_method(name, **{key: value for key, value in asked.items() if key in takes})
    if hasattr(method, "configure_attention_backends_from_server_args"):
        method.configure_attention_backends_from_server_args(args)
    return method


def _deepseek_v4_pool(loader: Loader, made: Record, get: Callable[[str], Any], known: dict[str, Any]) -> Any:
    """The pool of a DeepSeek-V4: an object of the release's class, with what its configurator gives it.

    kv_cache_configurator.py:2061-2140 and deepseek_v4_memory_pool.py:943-1300 (0.5.23).
    """
    source, config = loader.source(_DEEPSEEK_V4), made.model_config
    cls = source.DeepSeekV4TokenToKVPool
    kind = type(cls)("Pool", (cls,), {"__init__": lambda self: None, "__getattr__": Record.__getattr__})
    pool = kind()
    ratios = list(config.compress_ratios)
    end = made.end_layer if len(ratios) >= made.end_layer else len(ratios)
    present = {ratio for ratio in (4, 128) if ratio in ratios}
    if source.defines("collect_sources_by_ratio"):
        shared = list(getattr(config.hf_config, "kv_source_layer_ids", ()))
        present |= {each for each in source.collect_sources_by_ratio(ratios, shared, range(end)) if each in (1, 2)}
    vars(pool).update(
        known,
        _record_name="token_to_kv_pool",
        swa_page_size=made.page_size,
        compression_ratios=ratios,
        present_ratios=tuple(sorted(present)),
    )
    if not get("enable_encoder_swa_bounded_replay"):
        vars(pool)["request_window"] = None
    if source.defines("select_dsv4_kv_layout"):
        vars(pool)["kv_layout"] = source.KVLayout.parse(source.select_dsv4_kv_layout()[0])
    return pool


def states(loader: Loader, made: Record) -> None:
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
