"""A launch whose settings the engine resolves by itself: what it ends up with, every candidate, what it changes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import click

from attnfit.core import Change, Choice, Hazard, Launch, Status, Verdict
from attnfit.report.plain import wrap

_LONG = 60  # characters of a value, longer ones with --all
_COLOUR = {"picks": "green", "accepts": "green", "refuses": "red"}


def names(launch: Launch) -> str:
    """ "triton", or "fa3 (prefill) and triton (decode)"; "" for an engine that answers layer by layer."""
    pair = [(role, name) for role, name in launch.chosen if role in ("prefill", "decode")]
    if len({name for _, name in pair}) == 1:
        return pair[0][1]
    return " and ".join(f"{name} ({role})" for role, name in pair)


def lines(launch: Launch, every: bool) -> Iterator[str]:
    """What it ends up with, each choice with its candidates, and the settings that come out otherwise."""
    if launch.chosen:
        yield ""
        same = len({name for role, name in launch.chosen if role in ("prefill", "decode")}) == 1
        pair = [("prefill and decode", names(launch))] if same else []
        rest = [each for each in launch.chosen if not (same and each[0] in ("prefill", "decode"))]
        yield from wrap("; ".join(f"{role} {name}" for role, name in [*pair, *rest]), "it resolves to: ", "  ")
    for choice in launch.choices:
        yield from _choice(choice, every)
    yield from _changes([change for change in launch.changes if every or not change.minor], every)


def _changes(changes: Sequence[Change], every: bool) -> Iterator[str]:
    if changes:
        yield ""
        yield "the engine changes by itself:"
        for change in changes:
            now = _value(change.resolved)
            now = now if every or len(now) <= _LONG else now[:_LONG] + " ..."
            yield from wrap(f"{change.field} {_value(change.given)} -> {now}", "  ", "    ")
            if change.said:
                yield from (click.style(part, dim=True) for part in wrap(change.said, "    "))


def hazards(launch: Launch) -> Iterator[str]:
    """Those that stop the launch first, with what to do; then the rest."""
    for number, hazard in enumerate(sorted(launch.hazards, key=lambda each: (not each.breaks, not each.may_break))):
        if not number:
            yield ""
        yield from _hazard(hazard)


def _hazard(hazard: Hazard) -> Iterator[str]:
    where = f" ({hazard.where})" if hazard.where else ""
    if not hazard.strength:
        yield from wrap(f"hazard: {hazard.text}{where}", "", "  ")
        return
    stage = f" at {hazard.stage}" if hazard.stage else ""
    yield from wrap(f"{hazard.strength}{stage}: {hazard.text}{where} [{hazard.code}]", "", "  ")
    if hazard.needs:
        yield from wrap(hazard.needs, "  not known here: ", "    ")
    for remedy in hazard.remedies:
        yield from wrap(remedy, "  remedy: ", "    ")


def shortest(launch: Launch) -> str:
    """The hazard that counts most, a clause, for the verdict line."""
    found = sorted((h for h in launch.hazards if h.strength), key=lambda hazard: not hazard.breaks)
    return f"{found[0].text.partition(': ')[0]} ({found[0].code})" if found else ""


def _choice(choice: Choice, every: bool) -> Iterator[str]:
    yield ""
    yield f"this launch with each {choice.what} ({choice.flag}):"
    for group in _groups([v for v in choice.verdicts if every or v.candidate or v.backend in choice.chosen], choice):
        first = group[0]
        word = "picks" if first.backend in choice.chosen else first.status.value
        beside = " ".join(f"({reason.text})" for reason in first.reasons if reason.code == "needs")
        head, *more = wrap(" ".join([", ".join(v.backend for v in group), beside]).strip(), f"  {word:<8} ")
        yield "  " + click.style(f"{word:<8}", fg=_COLOUR.get(word)) + head[10:]
        yield from more
        for reason in first.reasons if first.status is Status.REFUSES else ():
            yield from wrap(reason.text, "             ")
            detail = "; ".join(part for part in (reason.observed, reason.where) if part)
            if detail:
                yield from (click.style(part, dim=True) for part in wrap(detail, "               "))
        if first.unknown:
            yield from wrap(first.unknown, "             ")
    others = sum(not v.candidate and v.backend not in choice.chosen for v in choice.verdicts)
    if others and not every:
        yield f"  {others} more {'is' if others == 1 else 'are'} for other platforms (--all lists them)"


def _groups(verdicts: Sequence[Verdict], choice: Choice) -> list[list[Verdict]]:
    """Those that end alike together, in the order of the first of each."""
    found: dict[tuple[object, ...], list[Verdict]] = {}
    for verdict in verdicts:
        said = tuple((_alike(reason.text, verdict.backend), reason.where) for reason in verdict.reasons)
        unknown = _alike(verdict.unknown, verdict.backend)
        key = (verdict.backend in choice.chosen, verdict.status, said, unknown)
        found.setdefault(key, []).append(verdict)
    return sorted(found.values(), key=lambda group: group[0].status is Status.REFUSES)


def _alike(text: str, name: str) -> str:
    """A message without the candidate's own name in it, and with its sets in one order."""
    plain = text.replace(name, "*")
    return re.sub(r"\{([^{}]*)\}", lambda match: "{" + ", ".join(sorted(match[1].split(", "))) + "}", plain)


def _value(value: object) -> str:
    return {None: "none", True: "yes", False: "no"}[value] if isinstance(value, bool | None) else str(value)
