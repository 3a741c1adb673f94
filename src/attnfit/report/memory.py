"""Will it fit, in a few lines: every figure with where it comes from."""

from __future__ import annotations

from collections.abc import Iterator

from attnfit.core import Fit
from attnfit.fit.answer import NO_MEMORY

GIB = 1 << 30


def lines(fit: Fit) -> Iterator[tuple[str, str]]:
    """(name, sentence) of each figure that is known."""
    if NO_MEMORY in fit.unknown:
        yield "memory", "not known of this GPU; `attnfit gpus` lists those of which it is"
    if fit.memory is not None and fit.utilization is not None:
        seen = fit.usable or (fit.memory, fit.memory)
        allowed = gib((int(seen[0] * fit.utilization), int(seen[1] * fit.utilization)))
        yield "memory", f"{allowed} of each GPU's {fit.memory / GIB:.2f} for the engine ({fit.utilization:g})"
    if fit.weights is not None:
        yield "weights", f"{gib(fit.weights)} on the fullest rank, from {fit.weights_from}"
    if fit.overhead is not None and fit.weights is not None:
        yield "besides", f"{gib(fit.overhead)} for activations, CUDA graphs and libraries, estimated"
    if fit.token_bytes is not None and fit.request_bytes is not None:
        how = f"given by {fit.kv_cache_asked}" if fit.kv_cache_asked else "left for it"
        left = f"{gib(fit.kv_cache)} {how}; " if fit.kv_cache is not None else ""
        yield (
            "kv cache",
            f"{left}{fit.request_bytes / GIB:.2f} GiB for a request of {fit.length:,} tokens, "
            f"{fit.token_bytes / 1024:.1f} KiB a token",
        )
    if fit.tokens is not None and fit.requests is not None and fit.tokens[1]:
        low, high = fit.tokens
        tokens = _between(low, high, ",") if low else f"at best {high:,}"
        requests = _between(*fit.requests, ".1f") if low else f"{fit.requests[1]:.1f}"
        yield "holds", f"{tokens} tokens, {requests} such requests at once"
    elif fit.longest is not None and fit.longest[1]:
        yield "holds", f"requests of at most {_between(*fit.longest, ',')} tokens"
    for sentence in fit.unknown:
        if sentence != NO_MEMORY:  # said above
            yield "unknown", sentence


def gib(pair: tuple[int, int]) -> str:
    """ "12.00 GiB", or "10.00 to 12.00 GiB"."""
    return f"{_between(pair[0] / GIB, pair[1] / GIB, '.2f')} GiB"


def _between(low: float, high: float, form: str) -> str:
    a, b = f"{low:{form}}", f"{high:{form}}"
    return a if a == b else f"{a} to {b}"
