"""What refuses while a multi-token-prediction draft is built, after the target was.

A draft's layers are the target's own classes; they differ where the checkpoint keeps them unquantised.
Sources (0.33.0): vllm/v1/spec_decode/llm_base_proposer.py:1265,
vllm/model_executor/models/{deepseek,qwen3_5,glm4_moe,nemotron_h}_mtp.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch

import msgspec

from attnfit.core import Capability
from attnfit.engines.vllm.launch.moe_layers import first_moe
from attnfit.engines.vllm.launch.moe_select import select
from attnfit.engines.vllm.launch.quant_scheme import UNQUANTISED
from attnfit.engines.vllm.launch.skipped import excluded_modules
from attnfit.engines.vllm.launch.state import EngineConfig

STAGE = "draft_init"
_ROOTS = ("model.layers.{last}", "backbone.layers.{last}", "language_model.model.layers.{last}", "mtp.layers.0", "mtp")
_BLOCKS = ("mlp", "mixer", "block_sparse_moe")


def check_draft_experts(cfg: EngineConfig, capability: Capability, env: Mapping[str, bool]) -> None:
    """Raise Refusal if the draft's experts cannot be built although the target's can.

    With the target's own scheme the oracle gives the target's answer again; only experts that the checkpoint keeps
    unquantised, or a backend of the draft's own, ask anew.
    """
    spec = cfg.speculative or {}
    if spec.get("method") != "mtp" or cfg.quantization is None:
        return
    site = first_moe(cfg)
    asked = spec.get("moe_backend") or cfg.flags.get("moe_backend") or "auto"
    if site is None or str(asked) == "auto" or not draft_is_unquantised(cfg):
        return
    layer = msgspec.structs.replace(site.layer, moe_backend=str(asked).lower().replace("-", "_"))
    select(UNQUANTISED, layer, capability, env, STAGE)


def draft_is_unquantised(cfg: EngineConfig) -> bool:
    """Whether the checkpoint's exclusion list names the draft layer's experts."""
    last = cfg.text.get("num_hidden_layers")
    names = [f"{root.format(last=last)}.{block}.experts" for root in _ROOTS for block in _BLOCKS]
    for pattern in excluded_modules(cfg.quant_config or {}):
        if pattern.startswith("re:"):
            continue
        bare, wild = pattern.rstrip("*").rstrip("."), any(sign in pattern for sign in "*?[")
        if any(name == bare or name.startswith(bare + ".") or (wild and fnmatch(name, pattern)) for name in names):
            return True
    return False
