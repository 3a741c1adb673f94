"""The catalogue of hazards, a line each, or one of them in full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
import msgspec

from attnfit.hazards import Record
from attnfit.hazards.words import remedy_line as remedy_line
from attnfit.report.explain import evidence
from attnfit.report.plain import printable, wrap

SCHEMA = 1


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
    for signature in record.signatures:
        yield from _labelled("prints", " ... ".join(signature.has))
    for remedy in record.remedies:
        yield from _labelled("remedy", remedy_line(remedy))
    yield from _labelled("known from", evidence(record))
    sure = {"certain": "certain: its words name the cause", "likely": "likely: concluded from reports"}
    yield from _labelled("how sure", sure[record.how_sure])


def _labelled(label: str, text: str) -> list[str]:
    return wrap(text, f"{label:<11} ", " " * 12) if text else []
