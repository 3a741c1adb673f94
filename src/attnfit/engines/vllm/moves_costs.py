"""What a flag of `vllm serve` is about: what setting or dropping it costs a user, and what dropping it gives up."""

from __future__ import annotations

from attnfit.engines.move import Cost

_CLASSES: dict[Cost, tuple[str, ...]] = {
    Cost.BACKEND: (
        "--attention-backend", "--attention-config", "-ac", "--moe-backend", "--linear-backend",
        "--mm-encoder-attn-backend", "--gdn-prefill-backend", "--gdn-decode-backend", "--mamba-backend",
        "--all2all-backend", "--mla-prefill-backend", "--kernel-config",
    ),
    Cost.GRAPHS: (
        "--compilation-config", "-cc", "-O", "--enforce-eager", "--no-enforce-eager", "--cudagraph-capture-sizes",
        "--max-cudagraph-capture-size", "--disable-custom-all-reduce", "--async-scheduling", "--no-async-scheduling",
        "--enable-flashinfer-autotune", "--optimization-level",
    ),
    Cost.BLOCK: ("--block-size", "--mamba-block-size", "--mamba-cache-mode", "--enable-prefix-caching",
                 "--enable-chunked-prefill", "--no-enable-chunked-prefill"),
    Cost.KV_DTYPE: (
        "--kv-cache-dtype", "--kv-cache-dtype-skip-layers", "--calculate-kv-scales", "--mamba-cache-dtype",
        "--mamba-ssm-cache-dtype",
    ),
    Cost.DTYPE: ("--dtype",),
    Cost.SIZE: (
        "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--gpu-memory-utilization",
        "--kv-cache-memory-bytes", "--num-gpu-blocks-override", "--swap-space", "--cpu-offload-gb",
    ),
    Cost.SPLIT: (
        "--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp",
        "--decode-context-parallel-size", "-dcp", "--prefill-context-parallel-size", "-pcp",
        "--enable-expert-parallel", "-ep",
    ),
}  # fmt: skip
_COST = {flag: cost for cost, flags in _CLASSES.items() for flag in flags}

_GIVES_UP = {
    "--kv-cache-dtype": "the KV cache dtype asked for: its room, or its precision",
    "--speculative-config": "speculative decoding: speed",
    "--enforce-eager": "running without CUDA graphs, as asked",
    "--quantization": "the quantisation asked for",
    "--max-model-len": "the length asked for: the model's own is served",
    "--block-size": "the block size asked for",
}


def price(flag: str) -> Cost:
    """Of a flag by any of its names that are listed; anything else is something that was asked for.

    `--attention-config.backend` and the like are one key of the flag in front of the dot.
    """
    if (key := flag.rpartition(".")[2].replace("_", "-")) and "." in flag and f"--{key}" in _COST:
        return _COST[f"--{key}"]  # --attention-config.X is what --X says
    return _COST.get(flag.partition(".")[0], Cost.FEATURE)


def gives_up(flag: str) -> str:
    """What is lost where the flag goes; backends and dtypes are said by what comes instead."""
    if price(flag) in (Cost.BACKEND, Cost.DTYPE):
        return ""
    return _GIVES_UP.get(flag, f"what {flag} asks for")
