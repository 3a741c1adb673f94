"""What a flag of SGLang's server is about: what setting or dropping it costs a user, and what dropping it gives up."""

from __future__ import annotations

from attnfit.engines.move import Cost

_CLASSES: dict[Cost, tuple[str, ...]] = {
    Cost.GRAPHS: (
        "--enable-flashinfer-allreduce-fusion", "--disable-cuda-graph", "--cuda-graph-max-bs", "--cuda-graph-bs",
        "--enable-torch-compile", "--disable-overlap-schedule", "--enable-two-batch-overlap",
        "--disable-custom-all-reduce", "--enable-mscclpp", "--disable-piecewise-cuda-graph",
    ),
    Cost.BLOCK: ("--page-size", "--disable-radix-cache", "--chunked-prefill-size", "--mamba-scheduler-strategy"),
    Cost.KV_DTYPE: ("--kv-cache-dtype", "--mamba-ssm-dtype"),
    Cost.DTYPE: ("--dtype",),
    Cost.SIZE: ("--context-length", "--max-running-requests", "--max-total-tokens", "--mem-fraction-static"),
    Cost.SPLIT: (
        "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size", "--expert-parallel-size",
        "--enable-dp-attention",
    ),
}  # fmt: skip
_COST = {flag: cost for cost, flags in _CLASSES.items() for flag in flags}


def price(flag: str) -> Cost:
    """Anything that is not listed is something that was asked for."""
    return Cost.BACKEND if flag.endswith("-backend") else _COST.get(flag, Cost.FEATURE)


def gives_up(flag: str) -> str:
    """What is lost where the flag goes; backends and dtypes are said by what comes instead."""
    if price(flag) in (Cost.BACKEND, Cost.DTYPE):
        return ""
    if flag == "--kv-cache-dtype":
        return "the KV cache dtype asked for: its room, or its precision"
    return "speculative decoding: speed" if flag == "--speculative-algorithm" else f"what {flag} asks for"
