"""Values that the engine's configuration classes refuse by themselves: Field(ge=, gt=, le=) and the type of a field.

pydantic checks all fields of a class before the class's own code runs and reports every error at once, in the order
of the fields. Judged on a real 0.33.0; the bounds of the other releases are read in their sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from attnfit.engines.vllm.launch.messages import STAGE
from attnfit.engines.vllm.launch.state import ParsedFlags, Refusal
from attnfit.engines.vllm.launch.way import Way

_DOCS = "https://errors.pydantic.dev/2.14/v/"
_WORDS = {"ge": ("greater than or equal to", "greater_than_equal"), "gt": ("greater than", "greater_than"),
          "le": ("less than or equal to", "less_than_equal")}  # fmt: skip


class _Field(NamedTuple):
    name: str
    bounds: Mapping[str, int]
    where: str  # in 0.33.0
    since: int = 12  # the first minor release of 0.x with these bounds
    until: int = 1000


# In the order of the classes' fields.
_FIELDS: dict[str, tuple[_Field, ...]] = {
    "ModelConfig": (
        _Field("max_model_len", {"ge": -1}, "vllm/config/model.py:249", 14),
        _Field("max_logprobs", {"ge": -1}, "vllm/config/model.py:286", 25),
    ),
    "CacheConfig": (
        _Field("block_size", {"gt": 0}, "vllm/config/cache.py:187", 23),
        _Field("gpu_memory_utilization", {"le": 1, "gt": 0}, "vllm/config/cache.py:215"),
        _Field("cpu_offload_gb", {"ge": 0}, "vllm/config/cache.py", until=16),
        _Field("mamba_block_size", {"gt": 0}, "vllm/config/cache.py:293"),
    ),
    "ParallelConfig": (
        _Field("pipeline_parallel_size", {"ge": 1}, "vllm/config/parallel.py:140", 23),
        _Field("tensor_parallel_size", {"ge": 1}, "vllm/config/parallel.py:142", 23),
        _Field("prefill_context_parallel_size", {"ge": 1}, "vllm/config/parallel.py:144", 23),
        _Field("data_parallel_size", {"ge": 1}, "vllm/config/parallel.py:147", 23),
        _Field("node_rank", {"ge": 0}, "vllm/config/parallel.py:323", 23),
        _Field("nnodes", {"ge": 1}, "vllm/config/parallel.py:326", 23),
        _Field("decode_context_parallel_size", {"ge": 1}, "vllm/config/parallel.py:389", 23),
    ),
    "SchedulerConfig": (
        _Field("max_num_batched_tokens", {"ge": 1}, "vllm/config/scheduler.py:48"),
        _Field("max_num_seqs", {"ge": 1}, "vllm/config/scheduler.py:62"),
        _Field("stream_interval", {"ge": 1}, "vllm/config/scheduler.py:216"),
    ),
    "UVAOffloadConfig": (_Field("cpu_offload_gb", {"ge": 0}, "vllm/config/offload.py:23", 18),),
}


def out_of_bounds(
    release: str, flags: ParsedFlags, cls: str, settled: Mapping[str, Any] | None = None
) -> Refusal | None:
    """The refusal of one configuration class, or None. settled: values the engine has settled before it builds it."""
    minor = int(release.split(".")[1])
    errors, where = [], ""
    for field in _FIELDS[cls]:
        value = (settled or {}).get(field.name, flags.values.get(field.name))
        if not field.since <= minor <= field.until or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        for bound, limit in field.bounds.items():
            if not {"ge": value >= limit, "gt": value > limit, "le": value <= limit}[bound]:
                words, kind = _WORDS[bound]
                errors.append(_error(field.name, f"Input should be {words} {limit}", kind, value))
                where = where or field.where
                break
    if cls == "ModelConfig":
        overrides = flags.values.get("hf_overrides")
        if isinstance(overrides, str):
            where = where or "vllm/config/model.py"
            dictionary, function = "Input should be a valid dictionary", "Input should be callable"
            errors.append(_error("hf_overrides.dict[str,any]", dictionary, "dict_type", overrides))
            errors.append(_error("hf_overrides.callable", function, "callable_type", overrides))
    if not errors:
        return None
    plural = "error" if len(errors) == 1 else "errors"
    head = f"ValidationError: {len(errors)} validation {plural} for {cls}"
    return Refusal(STAGE, "\n".join([head, *errors]), where)


def check_fields(way: Way, cls: str, settled: Mapping[str, Any] | None = None) -> None:
    """`out_of_bounds`, remembered or raised as the way goes."""
    refusal = out_of_bounds(way.release, way.flags, cls, settled)
    if refusal is not None:
        way.met(refusal)


def scheduler_sizes(way: Way, seqs: int | None, tokens: int | None, length: int) -> dict[str, Any]:
    """The scheduler's sizes where the one that was given settles the other (0.33.0, get_batch_defaults)."""
    if not way.proven:
        return {}
    if seqs is not None and seqs < 1 and tokens is None:
        return {"max_num_batched_tokens": seqs * length}
    if tokens is not None and tokens < 1 and seqs is None:
        return {"max_num_seqs": tokens}
    return {}


def _error(name: str, text: str, kind: str, value: Any) -> str:
    shown = repr(value)
    if len(shown) > 50:  # pydantic keeps the head and the tail
        shown = f"{shown[:25]}...{shown[-24:]}"
    return (
        f"{name}\n  {text} [type={kind}, input_value={shown}, input_type={type(value).__name__}]\n"
        f"    For further information visit {_DOCS}{kind}"
    )
