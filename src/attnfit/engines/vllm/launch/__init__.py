"""A whole launch, stage by stage, as the engine runs through it. Each stage is one module of this folder.

    parse_flags -> create_engine_config -> selector (one question per layer kind) -> model_init -> update_block_size
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attnfit.core import Capability, Launch, Question, Selection
from attnfit.engines.vllm.launch.state import Refusal, Unknown


def run(
    config: dict[str, Any],
    hf_quant: dict[str, Any] | None,
    capability: Capability,
    argv: Sequence[str],
    *,
    release: str,
    variables: dict[str, str],
    env: dict[str, bool],
    select: Callable[[Question], Selection],
) -> Launch:
    """The engine's answer, or the first refusal on the way with everything that was known by then."""
    from attnfit.engines.vllm.flags import parse_flags
    from attnfit.engines.vllm.launch import blocks, construct, engine_config, layers

    launch = Launch(ok=None, stage="parse_flags")
    try:
        flags = parse_flags(release, argv, variables)
        launch.stage = "create_engine_config"
        cfg = engine_config.resolve(config, hf_quant, capability, flags, release, env)
        launch.dtype, launch.kv_cache_dtype, launch.block_size = cfg.dtype, cfg.kv_cache_dtype, cfg.block_size
        launch.notes = tuple(cfg.notes)
        launch.stage = "selector"
        answer = layers.ask(cfg, select)
        launch.layers = tuple(answer.layers)
        construct.check(cfg, answer, capability, env)
        launch.kv_cache_dtype_after_init = construct.kv_cache_dtype_after_init(cfg, answer)
        launch.stage = "update_block_size"
        launch.block_size_after_load = blocks.block_size_after_load(cfg, answer, capability)
        launch.ok, launch.stage = True, "done"
    except Refusal as refusal:
        launch.ok, launch.stage, launch.error, launch.where = False, refusal.stage, refusal.message, refusal.where
    except Unknown as unknown:
        launch.unknown = (str(unknown),)
    return launch
