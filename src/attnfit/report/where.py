"""`attnfit where`: GPUs that answer alike together, and on how many of them the launch fits; or as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import click
import msgspec

from attnfit.core import Gpu
from attnfit.fleet.cell import AS_IS, NO, TOO_SMALL, UNKNOWN, WITH_A_CHANGE, Cell
from attnfit.fleet.where import Fleet, Row
from attnfit.inputs.secrets import line
from attnfit.report.plain import printable, wrap

SCHEMA = 1
LONG = 120  # characters of a clause; --json has it whole
_ORDER = (AS_IS, WITH_A_CHANGE, TOO_SMALL, NO, UNKNOWN)
_COLOUR = {AS_IS: "green", WITH_A_CHANGE: "yellow", TOO_SMALL: "red", NO: "red", UNKNOWN: "yellow"}
_WORDS = {
    AS_IS: "starts as is",
    WITH_A_CHANGE: "starts with a change",
    TOO_SMALL: "served, but too little memory",
    NO: "refused",
    UNKNOWN: "unknown",
}


_NOTES = {"maybe": "only the GPU can tell", "changed": "with a change that needs less memory"}


def render(fleet: Fleet, *, every: bool = False) -> str:
    """`every`: also the names of the GPUs on which it does not start."""
    lines = [*wrap(headline(fleet), "", "  "), "", *_circumstances(fleet)]
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in fleet.rows:
        groups.setdefault((row.answer, *_alike(row)), []).append(row)
    for group in sorted(groups.values(), key=lambda rows: _ORDER.index(rows[0].answer)):
        lines += ["", *_group(group, every, measured=bool(fleet.weights_from))]
    said = {word for row in fleet.rows for word in _needed(row).split() if word in _NOTES}
    notes = [f"{word}: {_NOTES[word]}" for word in _NOTES if word in said]
    if notes:
        lines += ["", *wrap("; ".join(notes) + "; `attnfit check --gpu GPU -n N` has the rest", "")]
    return "\n".join(lines) + "\n"


def render_json(fleet: Fleet) -> str:
    body = {
        "schema": SCHEMA,
        "exit_code": fleet.exit_code,
        "engine": fleet.engine,
        "release": fleet.release,
        "exact": fleet.exact,
        "model": fleet.model,
        "said": fleet.said,
        "launched": fleet.launched,
        "weights_from": fleet.weights_from,
        "gpus": [_row(row) for row in fleet.rows],
    }
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode() + "\n"


def _row(row: Row) -> dict[str, object]:
    gpu = row.gpu
    return {
        "name": gpu.name,
        "capability": str(gpu.capability) if gpu.capability else None,
        "memory_gib": gpu.memory_gib,
        "answer": row.answer,
        "fits": row.fewest("fits"),
        "may_fit": row.fewest("may break"),
        "cells": [msgspec.structs.asdict(each) for each in row.cells],
    }


def headline(fleet: Fleet) -> str:
    """One line: how many GPUs answer how."""
    counts = {answer: sum(row.answer == answer for row in fleet.rows) for answer in _ORDER}
    said = ", ".join(f"{count} {_SHORT[answer][count != 1]}" for answer, count in counts.items() if count)
    opinion = "" if fleet.exact else " (the nearest rule book's opinion)"
    return printable(f"{fleet.engine} {fleet.release}, of {_gpus(len(fleet.rows))}: {said}{opinion}")


_SHORT = {  # of one, of several
    AS_IS: ("starts it as is", "start it as is"),
    WITH_A_CHANGE: ("with a change", "with a change"),
    TOO_SMALL: ("has too little memory", "have too little memory"),
    NO: ("refuses it", "refuse it"),
    UNKNOWN: ("unknown", "unknown"),
}


def _circumstances(fleet: Fleet) -> Iterator[str]:
    yield from wrap(fleet.model, "  model   ")
    for sentence in fleet.said:
        yield from wrap(sentence, "          ")
    if fleet.launched:
        yield from wrap(line(fleet.launched), "  launch  ")
        if fleet.divided > 1:
            yield from wrap(f"so on {_gpus(fleet.divided)}; on fewer, divided among those", "          ")
    if fleet.weights_from:
        reckoned = f"reckoned with weights from {fleet.weights_from}, and one request of the full length"
        yield from wrap(reckoned, "  memory  ")
    else:
        yield from wrap("not measured: on how many GPUs it fits is not known", "  memory  ")


def _alike(row: Row) -> tuple[object, ...]:
    """What GPUs of one group have in common, beside the answer."""
    first = row.told[0]
    if row.answer == WITH_A_CHANGE:
        return first.serves, _NUMBER.sub("N", first.change), first.doubts
    if row.answer in (AS_IS, TOO_SMALL):
        served = tuple(dict.fromkeys(each.serves for each in row.told))
        return served, first.doubts, _NUMBER.sub("N", first.change)
    return (_own(row),)


def _own(row: Row) -> str:
    """Why not, without the GPU's own figures: what is said of one of each memory is one thing."""
    gpu, text = row.gpu, row.told[0].why
    if gpu.memory_gib is not None:
        text = text.replace(f"{gpu.memory_gib:g} GiB", "so many GiB")
    said = f"compute capability {gpu.capability}"
    return text.replace(f" ({said})", "").replace(said, "this compute capability")


def _group(rows: Sequence[Row], every: bool, *, measured: bool) -> Iterator[str]:
    answer, first = rows[0].answer, rows[0].told[0]
    names = " or ".join(dict.fromkeys(name for each in rows[0].told if (name := each.serves)))
    head, *more = wrap(f"{_WORDS[answer]}{names and f', on {names}'}", "")
    yield click.style(head, fg=_COLOUR[answer], bold=True)
    yield from more
    one = len({row.told[0].change for row in rows}) == 1  # else a figure of it is each GPU's own
    yield from _about(answer, first, _own(rows[0]), one=one)
    if answer in (AS_IS, WITH_A_CHANGE) and measured:
        lines: dict[str, list[str]] = {}
        for row in rows:
            lines.setdefault(_needed(row), []).append(row.gpu.name)
        width = max(map(len, lines))
        for needed, gpus in sorted(lines.items(), key=lambda each: _first_number(each[0])):
            yield from wrap(", ".join(gpus), f"  {needed:<{width}}  ")
    elif every or answer in (AS_IS, WITH_A_CHANGE):
        yield from wrap(", ".join(row.gpu.name for row in rows), "  ")
    else:
        yield from wrap(_summary([row.gpu for row in rows]), "  ")


def _about(answer: str, first: Cell, why: str, *, one: bool) -> Iterator[str]:
    if first.change and not one:
        yield from wrap(f"{_NUMBER.sub('N', first.change)}, N by its memory (--json has it)", "  change: ")
    elif first.change:
        yield from wrap(first.change, "  change: ")
        if first.gives_up and answer != TOO_SMALL:  # nobody pays for what does not start
            yield from wrap(first.gives_up, "  gives up: ")
    if answer in (NO, UNKNOWN, WITH_A_CHANGE) and why and one:
        yield from wrap(shortened(why), "  because: " if answer != UNKNOWN else "  ")
    if first.doubts:
        yield from wrap(f"it may break: {', '.join(first.doubts)}", "  ")


def shortened(text: str) -> str:
    """A clause: the first sentence of what is long, without the class of the error."""
    text = _RAISED.sub("", text)
    if len(text) <= LONG:
        return text
    sentence = text.partition(". ")[0]
    return sentence if 30 <= len(sentence) <= LONG else text[:LONG].rsplit(" ", 1)[0] + " ..."


_NUMBER = re.compile(r"\b\d{3,}\b")
_RAISED = re.compile(r"^(?:[A-Z]\w*(?:Error|Exception): |Value error, )+")


def _needed(row: Row) -> str:
    """ "8", "16, maybe 8", "maybe 16", "2, changed 1": how many GPUs it takes."""
    if row.answer not in (AS_IS, WITH_A_CHANGE):
        return ""
    fits, may = row.fewest("fits"), row.fewest("may break")
    parts = [] if fits is None else [str(fits)]
    if may is not None and (fits is None or may < fits):
        parts.append(f"maybe {may}")
    fewer = next((each.count for each in row.cells if each.answer == WITH_A_CHANGE and each.memory == "fits"), None)
    if row.answer == AS_IS and fewer is not None and fewer < (fits or fewer + 1):
        parts.append(f"changed {fewer}")
    return ", ".join(parts) or "not known"


def _first_number(needed: str) -> tuple[int, str]:
    number = next((word for word in needed.replace(",", "").split() if word.isdecimal()), "99")
    return int(number), needed


def _summary(gpus: Sequence[Gpu]) -> str:
    """ "36 GPUs of compute capability 7.0, 7.5", "3 GPUs that are not covered"."""
    found = dict.fromkeys(sorted(gpu.capability for gpu in gpus if gpu.capability))
    if len(gpus) <= 3:
        return ", ".join(gpu.name for gpu in gpus)
    if not found:
        return f"{_gpus(len(gpus))} (--all names them)"
    return f"{_gpus(len(gpus))} of compute capability {', '.join(map(str, found))} (--all names them)"


def _gpus(number: int) -> str:
    return f"{number} GPU{'s' * (number != 1)}"
