"""The words around an engine's refusal: pydantic's frame, with its shortened view of the arguments.

pydantic shows the first 25 and the last 24 characters of the arguments' repr; those are the same for every launch
except where the last argument was given.
"""

from __future__ import annotations

from attnfit.engines.vllm.launch.state import Refusal

STAGE = "create_engine_config"

#: model -> (first characters, last characters) of the arguments, vLLM 0.33.0
_VIEW = {
    "ModelConfig": ("ArgsKwargs((), {'model': ", "nderer_num_workers': 1})"),
    "DraftModelConfig": ("ArgsKwargs((), {'model': ", "'config_format': 'auto'})"[-24:]),
    "VllmConfig": ("ArgsKwargs((), {'model_co", " 'shutdown_timeout': 0})"),
    "ParallelConfig": ("ArgsKwargs((), {'pipeline", "'numa_bind_cpus': None})"),
    "CacheConfig": ("ArgsKwargs((), {'block_si", "ing_backend': 'native'})"),
    "SpeculativeConfig": ("ArgsKwargs((), {'method':", "onfig object at 0x000>})"),
    "SchedulerConfig": ("ArgsKwargs((), {'runner_t", ", 'stream_interval': 1})"),
    "KVTransferConfig": ("ArgsKwargs((), {'kv_conne", "'})"),
    "LoRAConfig": ("ArgsKwargs((), {'max_lora", "max_cpu_loras': None})"),
}
_DOCS = "https://errors.pydantic.dev/2.14/v/"


def value_error(model: str, text: str, where: str = "", kind: str = "value_error", end: str = "") -> Refusal:
    """A ValueError raised inside one of vLLM's config classes, as pydantic reports it.

    `end` is the end of the arguments' repr where it is not the usual one.
    """
    head, tail = _VIEW[model]
    tail = end[-24:] or tail
    name = "ModelConfig" if model == "DraftModelConfig" else model
    lead = "Assertion failed" if kind == "assertion_error" else "Value error"
    return Refusal(
        STAGE,
        f"ValidationError: 1 validation error for {name}\n  {lead}, {text} [type={kind}, "
        f"input_value={head}...{tail}, input_type=ArgsKwargs]\n    For further information visit {_DOCS}{kind}",
        where,
    )


def assertion(model: str, text: str, where: str = "") -> Refusal:
    """An assert that failed inside one of vLLM's config classes."""
    return value_error(model, text, where, "assertion_error")


def plain(kind: str, text: str, where: str = "") -> Refusal:
    """Any other exception, which pydantic lets through as it is."""
    return Refusal(STAGE, f"{kind}: {text}", where)
