"""What a worker of the release does between loading a model and its first step, on meta tensors, for
vllm_plugin_launch.py: KV cache specs and plan, attention groups, metadata builders, and the KV cache, bound to layers.
"""

from __future__ import annotations

import collections
import importlib
import inspect
from typing import Any

import torch
from vllm_plugin_launch import called, first_of

MEMORY = 60 << 30
PLUGIN = "attnfit.engines.vllm.plugin"


def run_runner(config: Any, platform: Any, out: dict[str, Any]) -> None:
    """What a worker does between loading the model and its first step."""
    import vllm.v1.worker.gpu.attn_utils as runner

    out["stage"] = "block size"
    if hasattr(platform, "update_block_size_for_backend"):
        platform.update_block_size_for_backend(config)
    cache = config.cache_config
    out["block_size"] = cache.block_size
    out["stage"] = "context parallelism"
    importlib.import_module("vllm.v1.worker.cp_utils").check_attention_cp_compatibility(config)
    out["stage"] = "KV cache groups"
    specs = runner.get_kv_cache_spec(config)
    out["specs"] = sorted(
        {(type(s).__name__, s.block_size, s.page_size_bytes, getattr(s, "head_size", 0)) for s in specs.values()}
    )
    cache_config = plan(config, specs)
    cache.num_gpu_blocks = cache_config.num_blocks
    out["groups"] = [
        (type(g.kv_cache_spec).__name__, len(g.layer_names), g.kv_cache_spec.block_size)
        for g in cache_config.kv_cache_groups
    ]
    out["num_blocks"] = cache_config.num_blocks
    out["stage"] = "metadata builders"
    out["runner"] = "V2" if getattr(config, "use_v2_model_runner", False) else "V1"
    init = init_v2 if hasattr(runner, "AttentionGroup") else init_v1
    groups, sizes = init(runner, config, cache_config, out)
    out["kernel_block_sizes"] = sizes
    out["builders"] = [builder_row(group, config) for group in groups]
    out["caches"] = caches(config)


def plan(config: Any, specs: Any) -> Any:
    """The engine core's plan for one worker with MEMORY bytes free."""
    get_kv_cache_configs = first_of(
        "vllm.v1.core.kv_cache_planning:get_kv_cache_configs", "vllm.v1.core.kv_cache_utils:get_kv_cache_configs"
    )
    backends = importlib.import_module("vllm.v1.attention.backends.utils")
    if hasattr(backends, "get_supported_kv_cache_layouts"):  # 0.30.0 on: the core asks its workers for their layouts
        from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends

        supported = backends.get_supported_kv_cache_layouts(get_current_attn_backends(config))
        layout = backends.resolve_kv_cache_layout(config, [[one.name for one in supported]], list(specs.values()))
        config.cache_config.kv_cache_layout = layout.name
    more: list[Any] = []
    if "kv_cache_planning" in get_kv_cache_configs.__module__:
        more = [importlib.import_module(get_kv_cache_configs.__module__).get_global_kv_cache_groups(config, [specs])]
    return get_kv_cache_configs(config, [specs], [MEMORY], *more)[0]


def init_v2(runner: Any, config: Any, cache_config: Any, out: dict[str, Any]) -> tuple[list[Any], list[int]]:
    """The functions of the second model runner, of every release but 0.16.0."""
    device = torch.device("meta")
    nested, _, sizes = runner.init_attn_backend(cache_config, config, device)
    groups = [group for some in nested for group in some]
    out["stage"] = "KV cache"
    called(
        runner.init_kv_cache,
        runner_kv_caches=[],
        forward_context=config.compilation_config.static_forward_context,
        kv_cache_config=cache_config,
        device=device,
        kernel_block_sizes=sizes,
        vllm_config=config,
        attn_groups=nested if "runner_kv_caches" in inspect.signature(runner.init_kv_cache).parameters else groups,
        cache_dtype=config.cache_config.cache_dtype,
    )
    return groups, sizes


def init_v1(_: Any, config: Any, cache_config: Any, out: dict[str, Any]) -> tuple[list[Any], list[int]]:
    """The methods of the first model runner, of 0.16.0, whose second one has one backend for a group of layers."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    standin = object.__new__(GPUModelRunner)
    standin.vllm_config, standin.device, standin.attn_groups = config, torch.device("meta"), []
    standin.compilation_config, standin.cache_config = config.compilation_config, config.cache_config
    standin.parallel_config, standin.model_config = config.parallel_config, config.model_config
    standin.speculative_config, standin.kv_caches, standin.shared_kv_cache_layers = None, [], {}
    standin.kv_sharing_fast_prefill_eligible_layers = standin.runner_only_attn_layers = set()
    standin._check_and_update_cudagraph_mode = lambda *_: None  # starts its dispatcher; the support is asked below
    standin.kv_cache_config = cache_config
    standin.initialize_attn_backend(cache_config)
    sizes = standin._prepare_kernel_block_sizes(cache_config)
    standin.initialize_metadata_builders(cache_config, sizes)
    out["stage"] = "KV cache"
    standin.initialize_kv_cache_tensors(cache_config, sizes)
    return [group for some in standin.attn_groups for group in some], sizes


def builder_row(group: Any, config: Any) -> tuple[str, int, int, str]:
    """(class, layers, block size, support of CUDA graphs) of a group's metadata builder."""
    builder = group.get_metadata_builder(0)
    spec = builder.kv_cache_spec
    support = type(builder).get_cudagraph_support(config, spec)
    return (
        f"{type(builder).__module__}.{type(builder).__name__}",
        len(builder.layer_names),
        spec.block_size,
        support.name,
    )


def caches(config: Any) -> dict[str, int]:
    """Type, shape of a block and strides of the caches that our layers are bound to."""
    counted: collections.Counter[str] = collections.Counter()
    for layer in config.compilation_config.static_forward_context.values():
        if hasattr(layer, "impl") and type(layer.impl).__module__.startswith(PLUGIN):
            kv = layer.kv_cache[0] if isinstance(layer.kv_cache, list) else layer.kv_cache
            counted[f"{kv.dtype} {list(kv.shape[1:])} {list(kv.stride())}"] += 1
    return dict(counted)
