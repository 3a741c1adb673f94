"""What becomes of the engine's own Triton kernels in a launch: one line a kernel, those that cannot run first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from attnfit.core import KernelFact, Launch, Report
from attnfit.report.plain import printable, wrap

SCHEMA = 1
NOTHING = "nothing to ask"
_COLOUR = {"fits": "green", "unknown": "yellow", NOTHING: "green"}
_NONE = "kernels: none of "  # how kernel_check's note begins where a launch starts no kernel of the engine's own


def verdict(report: Report) -> str:
    """Of everything asked: fits | does not fit | does not compile | unknown | nothing to ask.

    What another Triton than the release's makes of the engine's kernels is no statement about the launch.
    """
    facts, notes = report.launch.kernels, _notes(report.launch)
    found = {fact.verdict for fact in facts if fact.breaks}
    for word in ("does not fit", "does not compile"):
        if word in found:
            return word
    if any(fact.verdict != "fits" for fact in facts) or any(not note.startswith(_NONE) for note in notes):
        return "unknown"
    return "fits" if facts else NOTHING if notes else "unknown"


def _notes(launch: Launch) -> list[str]:
    return [note for note in launch.notes if note.startswith("kernels:")]


def exit_code(report: Report) -> int:
    """0 all fit or there are none, 1 one does not, 3 something is unknown."""
    word = verdict(report)
    return 0 if word in ("fits", NOTHING) else 3 if word == "unknown" else 1


def render(report: Report, every: bool, *, quiet: bool = False) -> str:
    """The verdict, then each kernel, then what could not be asked."""
    word, facts = verdict(report), report.launch.kernels
    release = f"{report.engine} {report.release}"
    if word == "fits":
        kernels = "kernel" if len(facts) == 1 else f"{len(facts)} kernels"
        run = "runs" if len(facts) == 1 else "run"
        sentence = f"the {kernels} of {release} that this launch starts for attention {run} here"
    elif word == NOTHING:
        sentence = f"this launch starts none of {release}'s Triton kernels that are asked about"
    elif word == "unknown":
        sentence = _doubt(release, facts)
    else:
        sentence = f"{release}: {shortest(report.launch)}"
    head = f"{click.style(word, fg=_COLOUR.get(word, 'red'), bold=True)}: {printable(sentence)}"
    if quiet:
        return head + "\n"
    found = [head, *lines(report.launch, every)]
    if report.launch.ok is not True:
        found += wrap(f"the launch itself: {report.verdict} ({report.launch.error or 'see attnfit check'})", "", "  ")
    for note in _notes(report.launch) if word != NOTHING else ():
        found += wrap(note, "", "  ")
    return "\n".join(found) + "\n"


def _doubt(release: str, facts: Sequence[KernelFact]) -> str:
    """Why it is not known, with what to ask again under."""
    for fact in facts:
        if fact.may_break:
            what = f"{fact.backend}'s {fact.kernel} {fact.verdict} with Triton {fact.triton}, and {release} brings"
            if not fact.brought:
                return f"{what} one that is not known; ask under the engine's own Python (--python)"
            return f"{what} {fact.brought}; pip install 'triton=={fact.brought}.*' there, and ask again"
    return f"not known whether the kernels of {release} that this launch starts run here"


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
        "notes": _notes(report.launch),
    }
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode() + "\n"


def as_dict(fact: KernelFact) -> dict[str, Any]:
    """One of `kernels`, as docs/json.md has it."""
    return {**msgspec.structs.asdict(fact), "breaks": fact.breaks}


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
    start = f"  {first.verdict:<12} "
    word = click.style(start, fg=_COLOUR.get(first.verdict, "red"))
    cases = ", ".join(dict.fromkeys(fact.case for fact in facts))
    head, *more = wrap(f"{first.kernel} ({cases}): {_rest(first)}", start, "    ")
    yield f"{word}{head[len(start) :]}"
    yield from more
    if every or first.verdict != "fits":
        yield from (click.style(part, dim=True) for part in wrap(first.where, "      "))


def _rest(fact: KernelFact) -> str:
    """What it takes and is left out; of what does not compile, why."""
    if fact.verdict == "does not compile" and fact.message.strip():
        exception, colon, _ = fact.message.partition(":")
        last = fact.message.strip().splitlines()[-1].strip()
        return last if not colon or last.startswith(exception) else f"{exception}: {last}"
    said = []
    if fact.shared is not None and fact.limit is not None:
        said.append(f"{fact.shared:,} of {fact.limit:,} bytes")
    if fact.left_out:
        said.append(f"{fact.left_out} of {fact.configurations} configurations are too large and left out")
    elif fact.configurations > 1:
        said.append(f"{fact.configurations} configurations")
    return "; ".join(said) or fact.message
