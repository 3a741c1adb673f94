"""What becomes of the engine's own Triton kernels in a launch: one line a kernel, those that cannot run first."""

from __future__ import annotations

from collections.abc import Iterator

import click

from attnfit.core import KernelFact, Launch
from attnfit.report.plain import wrap

_COLOUR = {"fits": "green", "unknown": "yellow"}


def shortest(launch: Launch) -> str:
    """The reason why the launch breaks, for the verdict's line."""
    for fact in launch.kernels:
        if fact.breaks:
            if fact.verdict == "does not fit" and fact.shared is not None:
                least = f"{fact.kernel} needs {fact.shared:,} bytes of shared memory, {fact.limit:,} is the most"
                return f"{fact.backend}'s {least}"
            return f"{fact.backend}'s {fact.kernel} {fact.verdict}"
    return ""


def lines(launch: Launch, every: bool) -> Iterator[str]:
    """Nothing, where kernels were not asked about."""
    for backend in dict.fromkeys(fact.backend for fact in launch.kernels):
        mine = [fact for fact in launch.kernels if fact.backend == backend]
        yield ""
        yield from wrap(f"{backend}'s own kernels, compiled for this GPU with Triton {mine[0].triton}:", "")
        shown: dict[tuple[str, str], list[KernelFact]] = {}
        for fact in mine:
            shown.setdefault((fact.kernel, _rest(fact)), []).append(fact)
        for facts in sorted(shown.values(), key=lambda facts: facts[0].verdict == "fits"):
            yield from _kernel(facts, every)
        for sentence in dict.fromkeys(sentence for fact in mine for sentence in fact.inputs):
            yield from (click.style(part, dim=True) for part in wrap(sentence, "  "))
        if mine[0].same_triton is False:
            yield from wrap(
                f"the release brings Triton {mine[0].brought}: what it compiles may need more or less", "  "
            )


def _kernel(facts: list[KernelFact], every: bool) -> Iterator[str]:
    first = facts[0]
    word = click.style(f"{first.verdict:<12}", fg=_COLOUR.get(first.verdict, "red"))
    cases = ", ".join(dict.fromkeys(fact.case for fact in facts))
    head, *more = wrap(f"{first.kernel} ({cases}): {_rest(first)}", f"  {first.verdict:<12} ", "    ")
    yield f"  {word}{head[14:]}"
    yield from more
    if every or first.verdict != "fits":
        yield from (click.style(part, dim=True) for part in wrap(first.where, "      "))


def _rest(fact: KernelFact) -> str:
    said = []
    if fact.shared is not None and fact.limit is not None:
        said.append(f"{fact.shared:,} of {fact.limit:,} bytes")
    if fact.configurations > 1:
        left = f", {fact.left_out} of them too large and left out" if fact.left_out else ""
        said.append(f"{fact.configurations} configurations{left}")
    return "; ".join(said) or fact.message
