"""How a release before 0.33.0 groups layers and counts its KV cache: its own functions, on specs of our making.

    PYTHON_OF_THE_RELEASE proofs/kv_groups.py < asked.jsonl > answered.jsonl

A line is {"specs": [[kind, count, block_size, heads, head_size, window, state_bytes, padded, state_blocks], ...],
"length", "tokens", "free"}; answered are the layers of each group, the blocks of the pool, requests at once, and the
GiB that a request needs by the check at start. No GPU, no model: the specs are objects of the engine's own classes.
`tests/test_fit_older.py` holds attnfit against what four releases answered.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any


def main() -> None:
    import torch
    import vllm
    from vllm.v1 import kv_cache_interface as kv
    from vllm.v1.core import kv_cache_utils as utils

    def made(row: list[Any]) -> Any:
        kind, _, block, heads, size, window, state, padded, _ = row
        if kind == "MambaSpec":
            more = {"mamba_cache_mode": "align" if row[8] > 1 else "none"}
            return kv.MambaSpec(
                block_size=block, shapes=((state,),), dtypes=(torch.uint8,), page_size_padded=padded, **more
            )
        own = {"sliding_window": window} if kind == "SlidingWindowSpec" else {}
        return getattr(kv, kind)(block_size=block, num_kv_heads=heads, head_size=size, dtype=torch.bfloat16, **own)

    for line in sys.stdin:
        asked = json.loads(line)
        specs = {f"{i}.{n}": made(row) for i, row in enumerate(asked["specs"]) for n in range(row[1])}
        config: Any = SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=asked["length"]),
            scheduler_config=SimpleNamespace(
                max_num_batched_tokens=asked["tokens"], disable_hybrid_kv_cache_manager=False
            ),
            parallel_config=SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1),
            cache_config=SimpleNamespace(
                num_gpu_blocks_override=None,
                mamba_cache_mode="align" if any(r[8] > 1 for r in asked["specs"]) else "none",
            ),
            speculative_config=None,
            kv_transfer_config=None,
            max_in_flight_tokens=2 * asked["tokens"],
            num_prefill_lookahead_tokens=0,
        )
        groups = utils.get_kv_cache_groups(config, specs)
        plan = utils.get_kv_cache_config_from_groups(config, groups, asked["free"])
        answer = {
            "release": vllm.__version__,
            "groups": sorted(len(group.layer_names) for group in groups),
            "blocks": plan.num_blocks,
            "requests": utils.get_max_concurrency_for_kv_cache_config(config, plan),
            "needed": utils._max_memory_usage_bytes_from_groups(config, groups),
        }
        print(json.dumps({**asked, **answer}), flush=True)


if __name__ == "__main__":
    main()
