"""Whether a line shows a hazard. Pure: a line, what stands around it, the records; nothing is remembered."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from attnfit.hazards.catalogue import Catalogue, grams
from attnfit.hazards.figures import FUNCTIONS
from attnfit.hazards.record import Record, Signature

_CONTEXT = 1000  # a record that also asks what stands around the line says more of it than any that does not


class Near(NamedTuple):
    """What stands around a line."""

    above: str = ""  # the traceback that ends in it
    seen: Collection[str] = ()  # the literals of `Signature.seen` met earlier in this start


_ALONE = Near()


class Hit(NamedTuple):
    record: Record
    signature: Signature
    figures: Mapping[str, str]
    weight: int  # how much of the line is spoken for: of two records the heavier is meant


def matches(line: str, known: Catalogue, near: Near = _ALONE) -> list[Hit]:
    """Every record that the line shows, the one that says most of it first."""
    places = set(known.always)
    for gram in grams(line) & known.index.keys():
        places |= known.index[gram]
    hits = (_of(known.records[place], line, known, near) for place in sorted(places))
    return sorted((hit for hit in hits if hit is not None), key=lambda hit: -hit.weight)


def _of(record: Record, line: str, known: Catalogue, near: Near) -> Hit | None:
    best: Hit | None = None
    for signature in record.signatures:
        weight = _weight(signature, line)
        if weight is None or (best is not None and weight <= best.weight):
            continue
        found = _holds(record, signature, line, known, near)
        if found is not None:
            best = Hit(record, signature, found, weight)
    if best is not None and record.figures:
        best = best._replace(figures={**best.figures, **FUNCTIONS[record.figures](best.figures)})
    return best


def _weight(signature: Signature, line: str) -> int | None:
    """The letters of `has`, where all stand in the line in order; what it asks of the lines around counts more."""
    at = 0
    for literal in signature.has:
        found = line.find(literal, at)
        if found < 0:
            return None
        at = found + len(literal)
    return sum(map(len, signature.has)) + _CONTEXT * (bool(signature.near) + bool(signature.seen))


def _holds(record: Record, signature: Signature, line: str, known: Catalogue, near: Near) -> dict[str, str] | None:
    """The figures captured; None where something that was asked for does not hold."""
    if any(literal in line for literal in signature.lacks):
        return None
    if signature.near and not any(literal in line or literal in near.above for literal in signature.near):
        return None
    if signature.seen and signature.seen not in near.seen:
        return None
    if signature.judge and known.judges[signature.judge](line) != record.id:
        return None
    if not signature.regex:
        return {}
    match = _compiled(signature.regex).search(line)
    return None if match is None else {name: value for name, value in match.groupdict().items() if value}


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def earlier(known: Catalogue) -> Iterator[str]:
    """The literals that a start must be watched for, because a later line means something else after them."""
    for record in known.records:
        for signature in record.signatures:
            if signature.seen:
                yield signature.seen
