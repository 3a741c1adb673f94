"""How releases before 0.33.0 share a KV cache among layers of several kinds, where that is proven.

Read in vllm/v1/core/kv_cache_utils.py of each release and held against those functions of really installed 0.16.0,
0.20.2, 0.23.0 and 0.28.0 (proofs/kv_groups.py). Proven for attention layers, with and without a window, beside layers
with a recurrent state, whose pages are equally large; everything else is Unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from attnfit.engines.vllm.fit.spec import FULL, Spec
from attnfit.engines.vllm.launch.state import EngineConfig, Unknown

NEWEST = "0.33.0"
_KINDS = frozenset({"FullAttentionSpec", "SlidingWindowSpec", "MambaSpec"})


class Rules(NamedTuple):
    """What differs from release to release."""

    padded_below: float  # groups grow to the most frequent kind while that has fewer than so many times the scarcest
    window_fits_page: bool  # a window's block size is chosen by its page, not the cache's own
    all_batches: bool  # a window keeps the tokens of every batch in flight, not of one
    held_back: bool  # one block is never given to a request
    checks_all: bool  # the check at start counts all groups, not only the first


def rules(release: str) -> Rules:
    """Of one release, 0.14.0 or newer."""
    version = tuple(int(part) for part in release.split(".")[:2] if part.isdecimal())
    return Rules(
        padded_below=1.5 if version >= (0, 18) else 1.25,
        window_fits_page=version >= (0, 25),
        all_batches=version >= (0, 26),
        held_back=version >= (0, 29),
        checks_all=version >= (0, 19),
    )


def check(cfg: EngineConfig, specs: Sequence[Spec]) -> None:
    """Raises Unknown where a release before 0.33.0 is not proven to plan this cache as we do."""
    if cfg.release == NEWEST or (all(spec.kind in FULL for spec in specs) and _one_table(specs)):
        return
    why = f"how release {cfg.release} shares its KV cache among layers of several kinds"
    version = tuple(int(part) for part in cfg.release.split(".")[:2] if part.isdecimal())
    plain = all(spec.kind in _KINDS and spec.role == "target" for spec in specs)
    if not plain or len({spec.page_bytes for spec in specs}) > 1 or version < (0, 14):
        raise Unknown(why)
    if any(spec.kind != "MambaSpec" and spec.layer_class != "Attention" for spec in specs):
        raise Unknown(why)
    if any(spec.kind == "MambaSpec" for spec in specs) and (version < (0, 16) or cfg.mamba_cache_mode == "all"):
        raise Unknown(f"how many states release {cfg.release} keeps of a request")
    switches = ("kv_transfer_config", "kv_events_config", "disable_hybrid_kv_cache_manager")
    if cfg.kv_transfer or cfg.dcp > 1 or cfg.pcp > 1 or any(cfg.flags.get(name) for name in switches):
        raise Unknown(why)


def _one_table(specs: Sequence[Spec]) -> bool:
    return len({spec.block_size for spec in specs}) <= 1
