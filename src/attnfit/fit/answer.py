"""The noun of this room: what `attnfit check` says of memory. Part of a `core.Launch`."""

from __future__ import annotations

import msgspec

NO_MEMORY = "the GPU's memory"  # in `Fit.unknown`


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Whether weights and KV cache fit into one GPU's memory. Pairs are (low, high) bytes of the fullest rank."""

    verdict: str  # "fits" | "may break" | "breaks" | "unknown"
    why: str  # one sentence
    supposed: bool = False  # "may break" only because the weights may be others than config.json tells: else it breaks
    files: str = ""  # what is wrong with the weight files ("breaks"), or may be ("unknown")
    gpus: int | None = None  # of one machine that the launch uses; None: on several machines, or not known
    memory: int | None = None  # bytes of the GPU; None: not known
    usable: tuple[int, int] | None = None  # of these a CUDA program sees, at least and at most
    utilization: float | None = None  # the share of it that the engine may use
    weights: tuple[int, int] | None = None
    weights_from: str = ""  # where that comes from
    overhead: tuple[int, int] | None = None  # activations, CUDA graphs, libraries: an estimate
    kv_cache: tuple[int, int] | None = None  # what is left for the KV cache
    kv_cache_asked: str = ""  # the flag that fixes its size instead
    token_bytes: float | None = None  # KV cache of one token, of a request of the served length
    request_bytes: int | None = None  # KV cache of one request of the served length
    length: int | None = None  # served length in tokens
    tokens: tuple[int, int] | None = None  # that fit into the KV cache
    requests: tuple[float, float] | None = None  # of the served length at once
    longest: tuple[int, int] | None = None  # tokens of the longest request that fits
    sequences: tuple[int, int] | None = None  # that states are left for, where that is fewer than max_num_seqs
    inputs: tuple[str, ...] = ()  # what the figures were computed from, a sentence each
    unknown: tuple[str, ...] = ()  # what is missing
