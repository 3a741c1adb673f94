"""Sizes of the parallel groups and the engine's checks of them: vllm/config/parallel.py, vllm/config/model.py."""

from __future__ import annotations

from typing import Any

import msgspec

from attnfit.engines.vllm.launch.arch import ModelInfo
from attnfit.engines.vllm.launch.field_bounds import out_of_bounds
from attnfit.engines.vllm.launch.messages import assertion, plain, value_error
from attnfit.engines.vllm.launch.sizes import Sizes
from attnfit.engines.vllm.launch.state import ParsedFlags, Unknown

_PARALLEL, _MODEL, _ARGS = "vllm/config/parallel.py", "vllm/config/model.py", "vllm/engine/arg_utils.py"


class Parallel(msgspec.Struct, frozen=True):
    """How many ranks, by kind."""

    tp: int
    pp: int
    dp: int
    dcp: int
    pcp: int
    expert: bool
    nnodes: int = 1

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.pcp


def _count(flags: ParsedFlags, dest: str) -> int:
    value = flags.get(dest)
    if value is None:
        return 1
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unknown(f"--{dest.replace('_', '-')} is {value!r}, not a whole number")
    return value


def resolve_parallel(flags: ParsedFlags, is_moe: bool, gpus: int | None, release: str) -> Parallel:
    """The groups as ParallelConfig takes them. `gpus` is what one node has (None: not checked). Raises Refusal."""
    p = Parallel(
        tp=_count(flags, "tensor_parallel_size"),
        pp=_count(flags, "pipeline_parallel_size"),
        dp=_count(flags, "data_parallel_size"),
        dcp=_count(flags, "decode_context_parallel_size"),
        pcp=_count(flags, "prefill_context_parallel_size"),
        expert=bool(flags.get("enable_expert_parallel")),
        nnodes=_count(flags, "nnodes"),
    )
    _launch_options(flags, p, is_moe)
    if (refusal := out_of_bounds(release, flags, "ParallelConfig")) is not None:
        raise refusal
    for name in ("tp", "pp", "dp", "dcp", "pcp", "nnodes"):
        if getattr(p, name) < 1:
            raise Unknown(
                f"how vLLM {release} fails with {name} size {getattr(p, name)}; give 1 or more, or drop the flag"
            )
    if flags.get("enable_eplb"):
        _eplb(p)
    backend = flags.get("distributed_executor_backend")
    if backend is None and p.world * p.dp > 1 and p.nnodes == 1 and gpus is not None and gpus < p.world:
        raise value_error(
            "ParallelConfig",
            f"World size ({p.world}) is larger than the number of available GPUs ({gpus}) in this node. If this is "
            "intentional and you are using:\n- ray, set '--distributed-executor-backend ray'.\n- multiprocessing, "
            "set '--nnodes' appropriately.",
            f"{_PARALLEL}:1043",
        )
    if p.pcp == 1:
        if p.dcp < 1 or p.tp % p.dcp:
            raise value_error(
                "ParallelConfig", f"tp_size={p.tp} must be divisible by dcp_size={p.dcp}.", f"{_PARALLEL}:600"
            )
    elif p.dcp not in (1, p.pcp, p.tp * p.pcp):
        raise value_error(
            "ParallelConfig",
            "When PCP is enabled, DCP must be disabled, span the PCP axis, or span the full TP x PCP axis. "
            f"Got TP={p.tp}, PCP={p.pcp}, DCP={p.dcp}; valid DCP sizes are {sorted({1, p.pcp, p.tp * p.pcp})}.",
            f"{_PARALLEL}:602",
        )
    return p


def _launch_options(flags: ParsedFlags, p: Parallel, is_moe: bool) -> None:
    """vllm/engine/arg_utils.py, the data-parallel options before ParallelConfig."""
    external = bool(flags.get("data_parallel_external_lb")) or flags.get("data_parallel_rank") is not None
    if flags.get("data_parallel_hybrid_lb") and flags.get("data_parallel_external_lb"):
        raise plain(
            "ValueError",
            "Invalid data-parallel launch options: `--data-parallel-hybrid-lb` and `--data-parallel-external-lb` "
            "cannot be enabled together. Enable only one load-balancing mode.",
            _ARGS,
        )
    if p.nnodes > 1 and (p.world * p.dp) % p.nnodes:
        raise plain(
            "ValueError",
            f"Invalid data-parallel launch options: `--nnodes {p.nnodes}` must evenly divide the total world size "
            f"({p.world * p.dp}). Adjust `--nnodes`, `--data-parallel-size`, `--pipeline-parallel-size`, "
            "`--tensor-parallel-size`, or `--prefill-context-parallel-size`.",
            _ARGS,
        )
    if p.dp > 1 and external and not is_moe:
        raise plain(
            "ValueError",
            "Non-MoE models do not support external data parallel mode. For external load balancing, launch "
            "independent vLLM instances without --data-parallel-* arguments.",
            _ARGS,
        )
    if external and flags.get("data_parallel_rank") is None and not (p.nnodes > 1 and p.dp > 1):
        raise plain(
            "ValueError",
            "Invalid data-parallel launch options: `--data-parallel-external-lb` requires a data-parallel rank. Set "
            "`--data-parallel-rank`, or set `--data-parallel-size` greater than 1 and use `--nnodes` with "
            "`--node-rank` so the rank can be inferred.",
            _ARGS,
        )


def _eplb(p: Parallel) -> None:
    if not p.expert:
        raise value_error("ParallelConfig", "enable_expert_parallel must be True to use EPLB.", _PARALLEL)
    if p.tp * p.pcp * p.dp <= 1:
        raise value_error(
            "ParallelConfig",
            f"EPLB requires tensor, prefill-context, or data parallelism, but got TP={p.tp}, PCP={p.pcp}, DP={p.dp}.",
            _PARALLEL,
        )


def verify_model(
    p: Parallel, sizes: Sizes, info: ModelInfo, use_mla: bool, config: str = "VllmConfig", gqa: bool = True
) -> None:
    """`verify_with_parallel_config`: heads, experts, pipeline, DCP. Raises Refusal."""
    heads = sizes.total_num_attention_heads
    if heads % p.tp:
        raise value_error(
            config,
            f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({p.tp}).",
            f"{_MODEL}",
        )
    if p.expert and sizes.num_experts <= 0:
        raise value_error(
            config,
            "Number of experts in the model must be greater than 0 when expert parallelism is enabled.",
            _MODEL,
        )
    if p.pp > 1 and "pp" not in info and info.at:
        raise plain(
            "NotImplementedError",
            "Pipeline parallelism is not supported for this model. Supported models implement the `SupportsPP` "
            "interface.",
            _MODEL,
        )
    if p.dcp > 1 and not use_mla and gqa:
        _gqa_dcp(p, sizes, config)


def _gqa_dcp(p: Parallel, sizes: Sizes, config: str) -> None:
    kv = sizes.total_num_kv_heads
    if p.tp <= kv:
        raise value_error(
            config,
            f"Decode context parallelism for GQA/MQA requires `--tensor-parallel-size` ({p.tp}) to be greater than "
            f"the model's total number of KV heads ({kv}). Increase `--tensor-parallel-size` or set "
            "`--decode-context-parallel-size 1`.",
            _MODEL,
        )
    if kv <= 0:
        raise Unknown("num_key_value_heads is not positive")
    most = p.tp // kv
    if p.dcp > most:
        raise value_error(
            config,
            f"`--decode-context-parallel-size` ({p.dcp}) exceeds the maximum supported value ({most}) for "
            f"`--tensor-parallel-size` ({p.tp}) and {kv} model KV heads.",
            _MODEL,
        )
    per_kv = sizes.total_num_attention_heads // kv
    if per_kv % p.dcp:
        raise value_error(
            config,
            f"The model's number of query heads per KV head ({per_kv}) must be divisible by "
            f"`--decode-context-parallel-size` ({p.dcp}) for GQA/MQA.",
            _MODEL,
        )


def verify_nixl(p: Parallel, kv_transfer: dict[str, Any] | None, use_mla: bool) -> None:
    """NIXL transfers a cache that is replicated or wholly sharded. Raises Refusal."""
    if not has_connector(kv_transfer, "NixlConnector"):
        return
    size = max(p.tp, p.pcp)
    if p.dcp not in (1, size):
        raise assertion(
            "VllmConfig",
            f"decode_context_parallel_size={p.dcp} must be 1 or equal to the NIXL transfer parallel size={size}.",
            "vllm/config/vllm.py",
        )
    if not use_mla and p.dcp != 1:
        raise assertion(
            "VllmConfig",
            "PD with decode_context_parallel_size > 1 is only supported for MLA models.",
            "vllm/config/vllm.py",
        )


def has_connector(kv_transfer: dict[str, Any] | None, name: str) -> bool:
    """Whether a KV connector is configured, directly or inside a MultiConnector."""
    if not kv_transfer:
        return False
    if kv_transfer.get("kv_connector") == name:
        return True
    extra = kv_transfer.get("kv_connector_extra_config")
    children = extra.get("connectors", []) if isinstance(extra, dict) else []
    return kv_transfer.get("kv_connector") == "MultiConnector" and any(
        isinstance(c, dict) and c.get("kv_connector") == name for c in children
    )
