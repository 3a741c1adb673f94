"""What becomes of the engine's own Triton kernels in a launch: one line a kernel, those that cannot run first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from attnfit.core import KernelFact, Launch, Report
from attnfit.report.plain import printable, wrap

SCHEMA = 1
_COLOUR = {"fits": "green", "unknown": "yellow"}


def verdict(report: Report) -> str:
    """Of everything asked: fits | does not fit | does not compile | unknown."""
    found = {fact.verdict for fact in report.launch.kernels}
    for word in ("does not fit", "does not compile"):
        if word in found:
            return word
    doubtful = not found or "unknown" in found or any(note.startswith("kernels:") for note in report.launch.notes)
    return "unknown" if doubtful else "fits"


def exit_code(report: Report) -> int:
    """0 all fit, 1 one does not, 3 something is unknown."""
    word = verdict(report)
    return 0 if word == "fits" else 3 if word == "unknown" else 1


def render(report: Report, every: bool, *, quiet: bool = False) -> str:
    """The verdict, then each kernel, then what could not be asked."""
    word, facts = verdict(report), report.launch.kernels
    release = f"{report.engine} {report.release}"
    if word == "fits":
        sentence = f"the {len(facts)} kernels of {release} that this launch starts for attention run here"
    elif word == "unknown":
        sentence = f"not known whether the kernels of {release} that this launch starts run here"
    else:
        sentence = f"{release}: {shortest(report.launch) or _first(facts)}"
    head = f"{click.style(word, fg=_COLOUR.get(word, 'red'), bold=True)}: {printable(sentence)}"
    if quiet:
        return head + "\n"
    found = [head, *lines(report.launch, every)]
    if report.launch.ok is not True:
        found += wrap(f"the launch itself: {report.verdict} ({report.launch.error or 'see attnfit check'})", "", "  ")
    for note in report.launch.notes:
        if note.startswith("kernels:"):
            found += wrap(note, "", "  ")
    return "\n".join(found) + "\n"


def render_json(report: Report) -> str:
    """docs/json.md, "Kernels"."""
    body = {
        "schema": SCHEMA,
        "verdict": verdict(report),
        "exit_code": exit_code(report),
        "engine": report.engine,
        "release": report.release,
        "launch": report.verdict,
        "kernels": [as_dict(fact) for fact in report.launch.kernels],
        "notes": [note for note in report.launch.notes if note.startswith("kernels:")],
    }
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode() + "\n"


def as_dict(fact: KernelFact) -> dict[str, Any]:
    """One of `kernels`, as docs/json.md has it."""
    return {**msgspec.structs.asdict(fact), "breaks": fact.breaks}


def _first(facts: Sequence[KernelFact]) -> str:
    bad = next(fact for fact in facts if fact.verdict not in ("fits", "unknown"))
    return f"{bad.backend}'s {bad.kernel} {bad.verdict} with Triton {bad.triton}; the release brings {bad.brought}"


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
