"""Backends nobody asked for with a flag: VLLM_ATTENTION_BACKEND, and what the platform sets by itself for MLA.

Both are gone in newer releases: the variable after 0.14, the platform's own choice after 0.17.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from attnfit.engines.vllm.launch.way import Way
from attnfit.hf.config import HfConfig

_WHERE = "vllm/platforms/cuda.py"


class _Forced(NamedTuple):
    """What check_and_update_config sets on datacenter Blackwell while no backend is asked for."""

    minors: range
    backend: str
    family: bool  # all of 10.x; False: 10.0 alone
    sparse: bool  # also where the model is sparse
    nope: int | None  # only with this qk_nope_head_dim


_FORCED = (
    _Forced(range(12, 13), "CUTLASS_MLA", False, True, None),  # 0.12.0:184
    _Forced(range(13, 15), "CUTLASS_MLA", True, False, None),  # 0.13.0:185
    _Forced(range(15, 18), "FLASHINFER_MLA", True, False, 128),  # 0.15.1:189
)
_VARIABLE = range(12, 15)  # 0.12.0: vllm/attention/selector.py:136; 0.13.0: vllm/config/attention.py:93


def settle_backend(way: Way, node: HfConfig, text: HfConfig, attention: dict[str, Any], use_mla: bool) -> None:
    """Fill `attention["backend"]` as this release does by itself, and say so."""
    minor = int(way.release.split(".")[1])
    word = way.env.get("VLLM_ATTENTION_BACKEND")
    if word and minor in _VARIABLE:
        attention["backend"] = word.upper().removesuffix("_VLLM_V1")
    elif word:
        way.notes.append(f"vLLM {way.release} does not read VLLM_ATTENTION_BACKEND; say --attention-backend {word}")
    if attention.get("backend") is not None or not use_mla or way.capability.major != 10:
        return
    for rule in _FORCED:
        if minor not in rule.minors:
            continue
        if not rule.family and way.capability.minor != 0:
            continue
        if not rule.sparse and node.has("index_topk"):
            continue
        if rule.nope is not None and text.get("qk_nope_head_dim", 1) != rule.nope:
            continue
        attention["backend"] = rule.backend
        way.notes.append(f"vLLM {way.release} sets {rule.backend} by itself for MLA on {way.capability} ({_WHERE})")
