"""What nobody means: a launch that no stage refused is still not passed if one of these holds.

The engine may refuse them with other words, later, or not at all; each is therefore an unknown that says what is odd.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from attnfit.engines.vllm.launch.state import EngineConfig, ParsedFlags
from attnfit.inputs.config_types import validate_types


class Bounds(NamedTuple):
    """The least and the largest value a configuration field takes; `above` True: the least itself is refused."""

    least: float
    most: float = float("inf")
    above: bool = False
    where: str = ""


# Field(gt=, ge=, le=) of the configuration classes, vLLM 0.33.0, read there. The parser does not check them.
FLAGS: dict[str, Bounds] = {
    "gpu_memory_utilization": Bounds(0, 1, True, "vllm/config/cache.py:215"),
    "max_num_seqs": Bounds(1, where="vllm/config/scheduler.py:62"),
    "max_num_batched_tokens": Bounds(1, where="vllm/config/scheduler.py:48"),
    "max_model_len": Bounds(-1, where="vllm/config/model.py:249"),
    "max_logprobs": Bounds(-1, where="vllm/config/model.py:286"),
    "cpu_offload_gb": Bounds(0, where="vllm/config/offload.py:23"),
    "stream_interval": Bounds(1, where="vllm/config/scheduler.py:216"),
    "mamba_block_size": Bounds(0, above=True, where="vllm/config/cache.py:293"),
    "nnodes": Bounds(1, where="vllm/config/parallel.py:326"),
    "node_rank": Bounds(0, where="vllm/config/parallel.py:323"),
    "num_gpu_blocks_override": Bounds(0, above=True, where="a number of blocks"),
}
_MOST_TOKENS = 16384  # max_num_batched_tokens by default on the largest GPUs, 0.33.0 get_batch_defaults
_ELSEWHERE = ("nnodes", "data_parallel_size_local", "data_parallel_address", "data_parallel_hybrid_lb", "headless")


def doubts(config: dict[str, Any], cfg: EngineConfig, gpus: int | None) -> Iterator[str]:
    """One sentence for each thing that is odd, the model's first."""
    yield from (f"config.json cannot be meant so: {sentence}" for sentence in validate_types(config))
    yield from _flags(cfg.flags)
    need = cfg.tp * cfg.pp * cfg.dp
    here = not any(cfg.flags.values.get(name) for name in _ELSEWHERE)
    if gpus is not None and need > gpus and here:
        sizes = f"tensor {cfg.tp} x pipeline {cfg.pp} x data parallel {cfg.dp}"
        yield f"{need} GPUs are needed ({sizes}), {gpus} are given; say -n {need}, or make the sizes smaller"


def _flags(flags: ParsedFlags) -> Iterator[str]:
    seqs, tokens = flags.values.get("max_num_seqs"), flags.values.get("max_num_batched_tokens")
    if isinstance(seqs, int) and tokens is None and seqs > _MOST_TOKENS:
        yield (
            f"--max-num-seqs {seqs} is more than the tokens a batch has by itself ({_MOST_TOKENS} at most), which the "
            f"engine refuses; give --max-num-batched-tokens {seqs} too, or a smaller number"
        )
    for name, bounds in FLAGS.items():
        value = flags.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        fits = (value > bounds.least if bounds.above else value >= bounds.least) and value <= bounds.most
        if not fits:
            least = f"more than {bounds.least:g}" if bounds.above else f"at least {bounds.least:g}"
            most = "" if bounds.most == float("inf") else f" and at most {bounds.most:g}"
            flag = f"--{name.replace('_', '-')}"
            yield (
                f"how the engine fails with {flag} {value}: it should be {least}{most} ({bounds.where}); give such a "
                "value, or drop the flag"
            )
