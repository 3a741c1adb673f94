"""What a real vLLM 0.33.0 says of the memory of a model it has built: parameters of rank 0, and its KV cache plan.

Used by real_launch.py for launches with "measure": true. The specs are the worker's own, the plan is the engine core's
own `get_kv_cache_configs`, asked for several amounts of free memory; nothing is allocated.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

FREE = [3 << 20, 200 << 20, (1 << 30) + 12345, (10 << 30) + 777, (40 << 30) + 1, (100 << 30) + 4095]
TOWERS = re.compile("visual|vision|multi_modal|patch_merger|mm_proj")
_LONGEST = re.compile(r"estimated maximum model length is (\d+)")
_NEEDED = re.compile(r"max seq len \(\d+\), \(([\d.]+) GiB")


def measured(config: Any, model: Any) -> dict[str, Any]:
    """Call inside the engine's current config, with meta tensors. Everything is plain data."""
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
    from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
    from vllm.v1.core import kv_cache_planning as planning
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    layers = config.compilation_config.static_forward_context
    specs = get_kv_cache_spec(config)
    names = [x.name for x in get_supported_kv_cache_layouts(get_current_attn_backends(config))]
    layout = resolve_kv_cache_layout(config, [names], list(specs.values()))
    groups = planning.get_global_kv_cache_groups(config, [specs])
    out: dict[str, Any] = {
        "declared": _declared(config, layers),
        "stored": _counted(
            (type(layers[name]).__name__, type(s).__name__, s.block_size, s.page_size_bytes,
             s.get_block_stride_alignment(), s.num_heads)
            for name, s in specs.items()
        ),
        "layout": layout.name,
        "groups": [len(group.layer_names) for group in groups],
        "bytes_per_block": planning._pool_bytes_per_block(config, groups) if groups else 0,
        "batch": [config.scheduler_config.max_num_batched_tokens, config.scheduler_config.max_num_seqs],
        "in_flight": config.max_in_flight_tokens,
        "retained": max(0, config.num_prefill_lookahead_tokens - 1),
    }  # fmt: skip
    out["fits"] = [_planned(config, specs, groups, free) for free in FREE]
    sizes = {name: p.numel() * p.element_size() for name, p in model.named_parameters()}
    out["towers"] = sum(size for name, size in sizes.items() if TOWERS.search(name))
    out["weights"] = sum(sizes.values()) - out["towers"]
    return out


def _declared(config: Any, layers: Any) -> list[list[Any]]:
    def one(layer: Any) -> tuple[Any, ...]:
        spec = layer.get_kv_cache_spec(config)
        if spec is None:
            return (type(layer).__name__, None, None, None)
        return (type(layer).__name__, type(spec).__name__, spec.block_size, spec.page_size_bytes)

    return _counted(one(layer) for layer in layers.values() if hasattr(layer, "get_kv_cache_spec"))


def _planned(config: Any, specs: Any, groups: Any, free: int) -> list[Any]:
    """[free, blocks, tokens, concurrency], or [free, None, longest, GiB needed] where the engine refuses."""
    from vllm.v1.core import kv_cache_planning as planning
    from vllm.v1.core import kv_cache_utils as utils

    length = config.model_config.max_model_len
    try:
        plans = planning.get_kv_cache_configs(config, [specs], [free], groups)
        tokens, more = utils.get_kv_cache_capacity(config, utils.generate_scheduler_kv_cache_config(plans))
        return [free, plans[0].num_blocks, tokens, more]
    except ValueError as error:
        longest, needed = _LONGEST.search(str(error)), _NEEDED.search(str(error))
        return [free, None, int(longest[1]) if longest else 0, float(needed[1]) if needed else None]
    finally:
        config.model_config.max_model_len = length


def _counted(keys: Any) -> list[list[Any]]:
    return [[*key, n] for key, n in Counter(keys).items()]
