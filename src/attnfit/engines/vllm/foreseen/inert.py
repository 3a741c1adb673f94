"""Flags that do nothing on this GPU, and that nothing refuses."""

from __future__ import annotations

from collections.abc import Iterator

from attnfit.core import Hazard
from attnfit.engines.vllm.foreseen.seen import Seen

# The pass asks for a size by compute capability (vllm/config/compilation.py, default_fi_allreduce_fusion_max_size_mb),
# and FI_ALLREDUCE_FUSION_MAX_SIZE_MB has 9.0 and 10.0 in every release from 0.12.0 on, later also 10.3 and 10.7. Where
# there is none it warns and is left out.
_FUSED = (9, 10)
_NAMES = ("fuse_allreduce_rms", "enable_fi_allreduce_fusion")


def inert(seen: Seen) -> Iterator[Hazard]:
    """--compilation-config with FlashInfer's fused all-reduce, where the release has no size for the GPU."""
    asked = seen.cfg.flags.get("compilation_config")
    passes = asked.get("pass_config") if isinstance(asked, dict) else None
    given = [n for n in _NAMES if isinstance(passes, dict) and str(passes.get(n)).lower() in ("true", "1")]
    if given and seen.capability.major not in _FUSED:
        text = (
            f"{given[0]} does nothing on this GPU: the fused all-reduce is used on compute capability 9.0 and 10.x only"
        )
        yield Hazard("inert-flag", f"{text}. Nothing refuses it; drop it.", "vllm/config/compilation.py", given[0])
