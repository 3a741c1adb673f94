"""What the scheduler's settings come to on a given GPU: batch sizes, batches in flight, the hybrid KV cache manager.

Sources (0.33.0): vllm/engine/arg_utils.py:2940, vllm/config/vllm.py:588, 2222.
"""

from __future__ import annotations

from typing import NamedTuple

from attnfit.core import Capability
from attnfit.engines.vllm.fit.older import rules
from attnfit.engines.vllm.fit.spec import Limits
from attnfit.engines.vllm.launch.mamba_state import num_speculative_tokens
from attnfit.engines.vllm.launch.state import EngineConfig, Unknown

GIB = 1 << 30
#: speculative methods whose draft reads tokens the target has not been given yet (config/speculative.py: use_eagle)
_EAGLE = ("eagle", "eagle3", "mtp", "dflash", "dspark")


class Batch(NamedTuple):
    """max_num_batched_tokens and max_num_seqs as the OpenAI server settles them."""

    tokens: int
    seqs: int


def batch(cfg: EngineConfig, capability: Capability, memory: int, gpu_name: str) -> Batch:
    """The user's numbers, else the defaults for a GPU of `memory` bytes."""
    if memory >= 160 * GIB:
        tokens, seqs = 16384, 1024
    elif memory >= 70 * GIB and "a100" not in gpu_name.lower() and capability != (12, 1):
        tokens, seqs = 8192, 1024
    else:
        tokens, seqs = 2048, 256
    twice = 2 if cfg.flags.get("performance_mode") == "throughput" else 1
    tokens, seqs = tokens * twice, seqs * twice
    given_tokens, given_seqs = cfg.max_num_batched_tokens, cfg.max_num_seqs
    seqs = given_seqs or seqs
    if given_tokens:
        tokens = given_tokens
    else:
        if cfg.flags.get("enable_chunked_prefill") is False:
            tokens = max(cfg.max_model_len, tokens)
        tokens = min(seqs * cfg.max_model_len, tokens)
    return Batch(tokens, seqs if given_seqs else min(seqs, tokens))


def limits(cfg: EngineConfig, tokens: int) -> Limits:
    """What bounds one request's blocks when at most `tokens` are scheduled at once."""
    method = (cfg.speculative or {}).get("method")
    if method in ("suffix", "custom_class"):
        raise Unknown(f"how many batches are in flight with speculative method {method}")
    asked = cfg.flags.get("async_scheduling")
    overlapped = cfg.runner_type != "pooling" if asked is None else bool(asked)
    at_once = (cfg.pp + 1 if overlapped else cfg.pp) if rules(cfg.release).all_batches else 1
    retained = 0
    if method in _EAGLE and _layers_of_the_draft(cfg) > 1:
        retained = num_speculative_tokens(cfg) - 1
    return Limits(in_flight=at_once * tokens, dcp=cfg.dcp, retained=max(0, retained))


def _layers_of_the_draft(cfg: EngineConfig) -> int:
    """Several MTP layers run as modules of their own, each reading one token further."""
    n = (cfg.speculative or {}).get("n_predict")
    return n if isinstance(n, int) else 1


def hybrid(cfg: EngineConfig) -> bool:
    """Whether the hybrid KV cache manager runs."""
    asked = cfg.flags.get("disable_hybrid_kv_cache_manager")
    if asked is not None:
        return not asked
    chunked = isinstance(cfg.text.get("attention_chunk_size"), int)
    switch = cfg.flags.env.get("VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE", "1")
    allowed = switch not in ("", "0")
    drafted = (cfg.speculative or {}).get("method") in _EAGLE
    if chunked and (drafted or not allowed):
        return False
    connector = (cfg.kv_transfer or {}).get("kv_connector")
    if connector is not None and not str(connector).startswith("Nixl"):
        raise Unknown(f"whether {connector} lets the hybrid KV cache manager run")
    return True
