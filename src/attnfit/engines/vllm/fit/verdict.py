"""From weights, estimates and what the KV cache serves to one word and one sentence."""

from __future__ import annotations

import msgspec

from attnfit.engines.vllm.fit.memory import Served
from attnfit.fit.span import Span

GIB = 1 << 30


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one GPU. `allowed` is the engine's share; `asked` a KV cache of a size the user fixed, and how."""

    total: Span
    allowed: Span
    asked: int | None = None
    asked_by: str = ""


def judge(
    budget: Budget | None,
    weights: Span | None,
    extra: Span,
    cache: Span | None,
    ends: tuple[Served, Served] | None,
    *,
    doubts: bool,
) -> tuple[str, str]:
    """(verdict, why). `ends`: what the KV cache serves at worst and at best, None where its plan is not known."""
    if budget is None:
        return "unknown", "the GPU's memory is not known"
    if weights is None or cache is None:
        return "unknown", "what is needed to tell is missing"
    total, asked = budget.total, budget.asked
    measured = budget.asked_by != "--kv-cache-memory-bytes"  # else the engine does not look at its share
    limit = budget.allowed if measured else total
    if weights.low > limit.high:
        of = "allowed" if measured else "there"
        return "breaks", (
            f"the weights alone need {weights.low / GIB:.2f} GiB on each GPU, and {limit.high / GIB:.2f} are {of}"
        )
    if asked is not None and weights.low + asked > total.high:
        return "breaks", (
            f"weights and {asked / GIB:,.2f} GiB of KV cache ({budget.asked_by}) need more than the GPU's "
            f"{total.high / GIB:.2f} GiB"
        )
    if ends is None:
        return "unknown", "what is needed to tell is missing"
    worst, best = ends
    if best.capacity is None:
        room = f"at most {cache.high / GIB:.2f} GiB are left for the KV cache"
        if best.longest:
            return "breaks", f"one request of {best.length:,} tokens needs {best.needed / GIB:.2f} GiB, and {room}"
        return "breaks", f"{room}, and that is too little for any request"
    if asked is not None and weights.high + extra.high + asked > total.low:
        return "may break", (
            f"weights, {asked / GIB:,.2f} GiB of KV cache ({budget.asked_by}) and all else may need "
            f"{(weights.high + extra.high + asked) / GIB:,.2f} GiB of the GPU's {total.low / GIB:.2f}"
        )
    if worst.capacity is not None and not doubts:
        return "fits", "even at the upper end of every estimate"
    if worst.capacity is None:
        return "may break", (
            f"one request of {worst.length:,} tokens needs {worst.needed / GIB:.2f} GiB of KV cache, and "
            f"{cache.low / GIB:.2f} to {cache.high / GIB:.2f} GiB may be left"
        )
    return "may break", "some of it is not known"
