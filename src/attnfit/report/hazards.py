"""The catalogue of hazards, a line each, or one of them in full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
import msgspec

from attnfit.hazards import Record, Remedy
from attnfit.hazards.words import remedy_line as remedy_line
from attnfit.report.explain import evidence
from attnfit.report.plain import printable, wrap

SCHEMA = 1
_SHOWN = 4  # literals of a condition


def render_list(records: Sequence[Record]) -> str:
    width = max((len(record.kind) for record in records), default=0)
    lines = []
    for record in records:
        lines += wrap(record.title, f"{record.id}  {record.kind:<{width}}  ", " " * 9)
    return "".join(line + "\n" for line in lines)


def render_list_json(records: Sequence[Record]) -> str:
    body = {"schema": SCHEMA, "hazards": [msgspec.to_builtins(record) for record in records]}
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode() + "\n"


def render(record: Record) -> str:
    return "\n".join(_lines(record)) + "\n"


def render_json(record: Record) -> str:
    body = {"schema": SCHEMA, "hazard": msgspec.to_builtins(record)}
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode() + "\n"


def _lines(record: Record) -> Iterator[str]:
    yield f"{click.style(record.id, bold=True)} {record.kind}: {printable(record.title)}"
    of = record.engine or "every engine"
    yield from _labelled("holds for", f"{of} {record.releases}".strip())
    yield from _labelled("strikes", f"at stage {record.stage}")
    yield from _labelled("foreseen", ", ".join(record.when))
    yield from _labelled("why", record.why)
    said: dict[str, str] = {}  # what several signatures look for, told apart by what stands around it, is said once
    for signature in record.signatures:
        doubt = " (may be said of something else)" if signature.likely or signature.weak or signature.alone else ""
        prints = " ... ".join(signature.has)
        said[prints] = doubt and said.get(prints, doubt)
    for prints, doubt in said.items():
        yield from _labelled("prints", prints + doubt)
    for remedy in record.remedies:
        of = f"{remedy.engine}: " if remedy.engine and not record.engine else ""
        yield from _labelled(
            "diagnosis" if remedy.shows else "remedy", f"{of}{remedy_line(remedy)}{_conditions(remedy)}"
        )
    yield from _labelled("known from", evidence(record))
    sure = {"certain": "certain: its words name the cause", "likely": "likely: concluded from reports"}
    yield from _labelled("how sure", sure[record.how_sure])


def _conditions(remedy: Remedy) -> str:
    """Of which failures it is a cure, where it is not of all."""
    said = [_some("one of", remedy.near), _some("none of", remedy.lacks)]
    return f" (where the log says {' and '.join(filter(None, said))})" if any(said) else ""


def _some(which: str, literals: Sequence[str]) -> str:
    more = ", ..." if len(literals) > _SHOWN else ""
    return f"{which} {', '.join(literals[:_SHOWN])}{more}" if literals else ""


def _labelled(label: str, text: str) -> list[str]:
    return wrap(text, f"{label:<11} ", " " * 12) if text else []
