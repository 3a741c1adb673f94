"""Loading the records, each file once, and finding one of them. A record that cannot be used says what is wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import msgspec

from attnfit.engines import ENGINES
from attnfit.errors import InputError, UsageError, did_you_mean
from attnfit.hazards import figures
from attnfit.hazards.record import KINDS, STAGES, Evidence, Record, Remedy

NEUTRAL = Path(__file__).with_name("neutral.json")
_FOLDER = Path(__file__).parent.parent / "engines"
_ID = re.compile(r"AF\d{3}")

_T = TypeVar("_T")
Judge = Callable[[str], str | None]  # a line -> the id of the record it shows


GRAM = 6  # characters by which a line finds the records it may show


class Catalogue(msgspec.Struct, frozen=True):
    records: Sequence[Record]
    judges: Mapping[str, Judge]
    index: Mapping[str, frozenset[int]]  # characters that a record's signature looks for -> places in `records`
    always: frozenset[int]  # places of records with a signature that is too short for that


@cache
def catalogue() -> Catalogue:
    """Every record, those of no engine first. Raises InputError for a file that is not as it should be."""
    neutral = {record.id: record for record in read(NEUTRAL)}
    records: list[Record] = []
    judges: dict[str, Judge] = {}
    for name in ENGINES:
        for met in _decoded(_FOLDER / name / "hazards_met.json", list[Met]):
            if met.id not in neutral:
                raise InputError(f"hazards_met.json of {name}: no record {met.id} in neutral.json")
            neutral[met.id] = _with(neutral[met.id], met, name)
        records += read(_FOLDER / name / "hazard_records.json", engine=name)
        judges |= import_module(f"attnfit.engines.{name}.log").JUDGES
    records = [*neutral.values(), *records]
    check(records, judges)
    return Catalogue(tuple(records), judges, *_index(records))


def _index(records: Sequence[Record]) -> tuple[dict[str, frozenset[int]], frozenset[int]]:
    """Of each signature the characters that fewest others share: a line without them does not show it."""
    longest = [[max(s.has, key=len) for s in record.signatures] for record in records]
    shared = Counter(gram for literals in longest for literal in literals for gram in grams(literal))
    found: dict[str, set[int]] = {}
    short = set()
    for place, literals in enumerate(longest):
        for literal in literals:
            if own := min(grams(literal), key=shared.__getitem__, default=""):
                found.setdefault(own, set()).add(place)
            else:
                short.add(place)
    return {gram: frozenset(places) for gram, places in found.items()}, frozenset(short)


def grams(text: str) -> set[str]:
    return {text[at : at + GRAM] for at in range(len(text) - GRAM + 1)}


class Met(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an engine adds to a record of none: its own flags as remedies, and reports of its users."""

    id: str
    remedies: tuple[Remedy, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    when: tuple[str, ...] = ()


def _with(record: Record, met: Met, engine: str) -> Record:
    own = tuple(msgspec.structs.replace(remedy, engine=engine) for remedy in met.remedies)
    return msgspec.structs.replace(
        record,
        remedies=(*own, *record.remedies),
        evidence=(*record.evidence, *met.evidence),
        when=(*record.when, *met.when),
    )


@cache
def records_of(engine: str) -> Mapping[str, Record]:
    """The records that a launch of one engine can meet, by number: read without what only a log needs."""
    found = {record.id: record for record in read(NEUTRAL)}
    for met in _decoded(_FOLDER / engine / "hazards_met.json", list[Met]):
        found[met.id] = _with(found[met.id], met, engine)
    found |= {record.id: record for record in read(_FOLDER / engine / "hazard_records.json", engine=engine)}
    return found


def read(file: Path, engine: str = "") -> list[Record]:
    """The records of one file, in its order."""
    return [msgspec.structs.replace(record, engine=engine) for record in _decoded(file, list[Record])]


def _decoded(file: Path, form: type[_T]) -> _T:
    try:
        return msgspec.json.decode(file.read_bytes(), type=form)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise InputError(f"{file.name}: {error}; a hazard record has the fields of hazards/record.py") from None


def check(records: Sequence[Record], judges: Mapping[str, Judge]) -> None:
    """Raises InputError, naming the record, for what msgspec cannot see."""
    seen: set[str] = set()
    for record in records:
        wrong = _wrong(record, seen, judges)
        if wrong:
            raise InputError(f"hazard {record.id}: {wrong}")
        seen.add(record.id)


def _wrong(record: Record, seen: set[str], judges: Mapping[str, Judge]) -> str:
    if not _ID.fullmatch(record.id):
        return "its id is not AF and three digits"
    if record.id in seen:
        return "another record has that id; take the next free number"
    if record.kind not in KINDS:
        return f"unknown kind {record.kind!r}{did_you_mean(record.kind, KINDS)}"
    if record.stage not in STAGES:
        return f"unknown stage {record.stage!r}; valid: {', '.join(STAGES)}"
    if not record.evidence:
        return "no evidence: name a public report, or the engine's file and line"
    if record.figures and record.figures not in figures.FUNCTIONS:
        return f"no function {record.figures!r} in hazards/figures.py"
    if any((r.set or r.drop) and not (r.engine or record.engine) for r in record.remedies):
        return "a remedy with flags says whose they are: put it into that engine's hazards_met.json"
    for signature in record.signatures:
        if not signature.has:
            return "a signature without a literal in `has` is looked for in every line"
        if signature.judge and signature.judge not in judges:
            return f"no judge {signature.judge!r}; valid: {', '.join(judges)}"
        try:
            re.compile(signature.regex)
        except re.error as error:
            return f"its regex cannot be read: {error}"
    return ""


def find(id: str) -> Record:
    """One record by its number. Raises UsageError, listing near ones."""
    wanted = id.upper()
    for record in catalogue().records:
        if record.id == wanted:
            return record
    ids = [record.id for record in catalogue().records]
    raise UsageError(f"no hazard {wanted}{did_you_mean(wanted, ids)}; attnfit hazards lists all {len(ids)}")
