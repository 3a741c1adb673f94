"""The model runner a backend's constructor is given: the real sizes of the launch, pools without memory.

Follows what model_executor/model_runner.py sets before it builds backends. What is not set here is a stub: passing it
on is harmless, deciding by it makes the answer unknown. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attnfit.witness.loader import Loader

from .gpu import Record
from .pools import REQUESTS, TOKENS, kv_dtype, pools, states

_HYBRID = "sglang.srt.configs.hybrid_arch"
_MODEL_RUNNER = "sglang.srt.model_executor.model_runner"
# Properties of ModelRunner up to 0.5.15 that say what kind of hybrid a model is.
_KINDS = (
    "qwen3_next_config",
    "hybrid_gdn_config",
    "mamba2_config",
    "kimi_linear_config",
    "hybrid_lightning_config",
    "linear_attn_model_spec",
    "mambaish_config",
)


def runner(loader: Loader, args: Any, config: Any, get: Callable[[str], Any]) -> Record:
    """The runner of rank 0. args: ServerArgs; config: its ModelConfig; get: resolved field by name, None if absent."""
    mla = config.attention_arch == loader.source("sglang.srt.configs.model_config").AttentionArch.MLA
    spec = loader.source("sglang.srt.speculative.spec_info").SpeculativeAlgorithm
    page_size = get("page_size") or 1
    made = Record(
        "model_runner",
        server_args=args,
        model_config=config,
        model=Record("model", modules=lambda: iter(())),
        device="cuda",
        gpu_id=0,
        dtype=config.dtype,
        is_draft_worker=False,
        draft_attention_backend=None,
        use_mla_backend=mla,
        is_hybrid_swa_compress=getattr(config, "is_hybrid_swa_compress", False),
        attention_chunk_size=getattr(config, "attention_chunk_size", None),
        page_size=page_size,
        tp_size=get("tp_size"),
        pp_size=get("pp_size"),
        dp_size=get("dp_size"),
        moe_ep_size=get("ep_size"),
        tp_rank=0,
        pp_rank=0,
        dp_rank=0,
        ps=Record("ps", **_ranks(get)),
        is_generation=True,
        init_new_workspace=False,
        plan_stream_for_flashinfer=None,
        max_total_num_tokens=TOKENS,
        swa_max_total_num_tokens=TOKENS,
        full_max_total_num_tokens=TOKENS,
        max_running_requests=REQUESTS,
        num_effective_layers=config.num_hidden_layers,
        start_layer=0,
        end_layer=config.num_hidden_layers,
        hisparse_coordinator=None,
        enable_hisparse=False,
        canary_manager=None,
        prefill_aware_swa=False,
        lora_manager=None,
        kv_index_translator=Record("kv_index_translator", is_translating=False),
        decode_num_tokens_per_req=lambda *args, **kwargs: 1,
        spec_algorithm=spec.from_string(get("speculative_algorithm")),
    )
    made.is_hybrid = made.is_hybrid_swa = getattr(config, "is_hybrid_swa", False)
    window = getattr(config, "sliding_window_size", None)
    if window is None and made.is_hybrid_swa:
        window = getattr(config.hf_text_config, "sliding_window", None)
    made.sliding_window_size = window
    made.kv_cache_dtype, made.kv_cache_dtype_str = kv_dtype(get("kv_cache_dtype"), config)
    pools(loader, made, args, get)
    if not loader.has_source(_HYBRID):
        module = loader.source(_MODEL_RUNNER)
        cls = module.ModelRunner
        if "_get_linear_attn_registry_result" in vars(cls):  # 0.5.12 to 0.5.15
            registered = module.get_linear_attn_config(config.hf_config)
            made._get_linear_attn_registry_result = lambda: registered
        for name in _KINDS:
            kind = vars(cls).get(name)
            if isinstance(kind, property) and kind.fget is not None:
                setattr(made, name, kind.fget(made))
    states(loader, made)
    return made


def _ranks(get: Callable[[str], Any]) -> dict[str, Any]:
    """Sizes and ranks of the first process (distributed/parallel_state_wrapper.py, from 0.5.16 on)."""
    sizes = {"tp": get("tp_size"), "pp": get("pp_size"), "dp": get("dp_size"), "moe_ep": get("ep_size")}
    sizes.update(attn_tp=get("tp_size"), attn_cp=1)
    return {**{f"{name}_size": size for name, size in sizes.items()}, **{f"{name}_rank": 0 for name in sizes}}


def parallel_groups(loader: Loader, tp_size: int) -> None:
    """The process groups of rank 0, without processes."""
    whole = Record(
        "group", world_size=tp_size, rank_in_group=0, rank=0, local_rank=0, is_first_rank=True, is_last_rank=True
    )
    single = Record("group", world_size=1, rank_in_group=0, rank=0, local_rank=0, is_first_rank=True, is_last_rank=True)
    groups: dict[str, Any] = {
        **dict.fromkeys(("_TP", "_ATTN_TP", "_MOE_TP", "_WORLD"), whole),
        **dict.fromkeys(("_PP", "_ATTN_CP", "_MOE_EP", "_DCP"), single),
    }
    sizes = {
        "_ATTN_TP_SIZE": tp_size,
        "_ATTN_DP_SIZE": 1,
        "_LOCAL_ATTN_DP_SIZE": 1,
        "_ATTN_CP_SIZE": 1,
        **dict.fromkeys(("_ATTN_TP_RANK", "_ATTN_DP_RANK", "_LOCAL_ATTN_DP_RANK", "_ATTN_CP_RANK"), 0),
        "_ENABLE_DP_ATTENTION_FLAG": False,
    }
    _fix(loader, "sglang.srt.distributed.parallel_state", groups)
    _fix(loader, "sglang.srt.layers.dp_attention", sizes)


def _fix(loader: Loader, name: str, values: Mapping[str, Any]) -> None:
    """Set the globals of these names that a module has."""
    module = loader.source(name)
    vars(module).update({key: value for key, value in values.items() if module.defines(key)})
