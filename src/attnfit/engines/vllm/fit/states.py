"""State-space layers keep one block of states for each sequence that is decoded: are there as many as sequences?

Source: vllm/config/compilation.py:1526 (0.33.0; 0.20.0:1436 is the first release with this check, before it the sizes
of the CUDA graphs were cut instead). It is made only where decoding runs in whole CUDA graphs.
"""

from __future__ import annotations

from attnfit.engines.vllm.fit.specs import Built
from attnfit.fit.span import Span

_SINCE = 20


def too_few(built: Built, bytes_per_block: int, cache: Span, seqs: int) -> tuple[str, str, tuple[int, int]] | None:
    """(verdict, why, blocks at worst and at best), where the states may not suffice; None: they do, or none are kept.

    cache: bytes for the KV cache of one rank; seqs: max_num_seqs as the server settles it.
    """
    cfg = built.cfg
    asked = cfg.flags.get("num_gpu_blocks_override")
    if not any(layer.mamba_type for layer in built.layers) or bytes_per_block <= 0 or asked:
        return None
    if int(cfg.release.split(".")[1]) < _SINCE or cfg.enforce_eager or (cfg.cudagraph_mode in ("NONE", "PIECEWISE")):
        return None
    low, high = cache.low // bytes_per_block, cache.high // bytes_per_block
    if seqs <= low:
        return None
    verdict = "breaks" if seqs > high else "may break"
    left = f"{high:,}" if low == high else f"{low:,} to {high:,}"
    return verdict, f"max_num_seqs ({seqs}) exceeds the Mamba cache blocks that are left, {left}", (low, high)
