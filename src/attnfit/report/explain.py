"""What a log says, for people and as JSON. The text opens with a line that begins `Cause`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from attnfit.explain import Answer, Cause
from attnfit.explain.cure import Way
from attnfit.hazards import Record
from attnfit.inputs.secrets import line as one_line
from attnfit.report.plain import printable, wrap
from attnfit.report.redact import masked, masked_all, redacted

SCHEMA = 1
_MOST_LINE = 400  # characters of a log's line that are shown; --json has it whole
_MOST_FOLLOWS = 3
_LABEL = 12  # columns


def verdict_line(answer: Answer) -> str:
    """One line that begins `Cause`."""
    if answer.cause is not None:
        record = answer.cause.record
        colour, sentence = "red", f"{record.id} {record.kind}: {record.title}"
        if answer.cause.how_sure != "certain":
            sentence += f" ({answer.cause.how_sure})"
    elif answer.verdict == "no failure":
        colour, sentence = "green", f"none: no failure in this log; {answer.why}"
    else:
        colour = "yellow"
        word = "unknown" if answer.verdict == "cause unknown" else "none found"
        sentence = f"{word}: {answer.why}"
    return f"{click.style('Cause', fg=colour, bold=True)}: {printable(sentence)}"


def render(answer: Answer) -> str:
    return "\n".join(_lines(answer)) + "\n"


def _lines(answer: Answer) -> Iterator[str]:
    yield verdict_line(answer)
    yield from _labelled("read", _read(answer))
    if answer.cause is not None:
        yield from _cause(answer.cause)
        made = next((way.from_ for way in answer.ways if way.command and way.from_ != "given"), "")
        for way in answer.ways:
            yield from _way(way)
        yield from _labelled("", f"(the command is that of {made})" if made else "")
        yield from _labelled("known from", evidence(answer.cause.record))
    if answer.unknown is not None:
        unknown = answer.unknown
        for number, text in enumerate(unknown.chain):
            yield from _labelled("then" if number else "raised", _short(text))
        if unknown.frames:
            yield from _labelled("in", unknown.frames[-1])
        if unknown.earliest not in unknown.chain:
            yield from _labelled(f"line {unknown.number}", _short(unknown.earliest))
    for number, text in answer.follows[:_MOST_FOLLOWS]:
        yield from _labelled("follows", f"line {number}: {_short(text)}")
    if len(answer.follows) > _MOST_FOLLOWS:
        yield from _labelled("", f"and {len(answer.follows) - _MOST_FOLLOWS} more lines that are only consequences")
    if answer.others:
        yield from _labelled("also", f"{', '.join(answer.others)} further on (attnfit explain {answer.others[0]})")
    for note in answer.notes:
        yield from _labelled("note", note)
    if answer.unknown is not None:
        yield ""
        yield "To report it, with keys, addresses and host names taken out:"
        yield from ("    " + printable(text) for text in paste(answer))


def _cause(cause: Cause) -> Iterator[str]:
    who = f" ({cause.worker})" if cause.worker else ""
    yield from _labelled(f"line {cause.number}", _short(cause.line) + who)
    if cause.where:
        yield from _labelled("in", cause.where)
    yield from _labelled("why", cause.record.why)


def _way(way: Way) -> Iterator[str]:
    more = f" [{way.change}]" if way.change and not way.command else ""
    more += f" (release {way.release})" if way.release else ""
    more += f"; pip install {' '.join(repr(i) for i in way.installs)}" if way.installs else ""
    yield from _labelled("diagnosis" if way.shows else "remedy", f"{way.text}{more}")
    if way.gives_up:
        yield from _labelled("", f"gives up: {way.gives_up}")
    if way.but:
        yield from _labelled("", way.but)
    if way.command:
        yield " " * _LABEL + printable(one_line(way.command))  # never wrapped: it is there to be copied


def _labelled(label: str, text: str) -> list[str]:
    text = masked(text)
    return wrap(text, f"{label:<{_LABEL - 1}} ", " " * _LABEL) if text else []


def _read(answer: Answer) -> str:
    facts = answer.facts
    parts = [f"{facts['engine']} {facts.get('release', '(release not said)')}"] if facts.get("engine") else []
    for name, word in (("model", ""), ("dtype", ""), ("kv_cache_dtype", "KV "), ("backend", "backend ")):
        if facts.get(name):
            parts.append(f"{word}{facts[name]}")
    if facts.get("gpu"):
        parts.append(", ".join(facts["gpu"]))
    if facts.get("tensor_parallel_size"):
        parts.append(f"TP {facts['tensor_parallel_size']}")
    return "; ".join(parts)


def _short(text: str) -> str:
    return text if len(text) <= _MOST_LINE else text[:_MOST_LINE].rstrip() + " ... (--json has it whole)"


def paste(answer: Answer) -> list[str]:
    """What another person needs to look at an unknown failure."""
    unknown = answer.unknown
    assert unknown is not None
    lines = [_read(answer) or "engine and release: not in the log", *unknown.frames[-3:], *unknown.chain]
    if unknown.earliest not in unknown.chain:
        lines.append(f"line {unknown.number}: {unknown.earliest}")
    return [_short(redacted(text)) for text in lines]


def evidence(record: Record) -> str:
    found = []
    for each in record.evidence:
        if each.url:
            found.append(each.url)
        if each.where:
            release = list(each.where)[-1]
            more = f" and {len(each.where) - 1} more releases" if len(each.where) > 1 else ""
            found.append(f"{each.where[release]} ({release}{more})")
    return "; ".join(found)


def render_json(answer: Answer) -> str:
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "verdict": answer.verdict,
        "exit_code": answer.exit_code,
        "kind": answer.cause.record.kind if answer.cause else None,
        "hazard": answer.cause.record.id if answer.cause else None,
        "how_sure": answer.cause.how_sure if answer.cause else None,
        "why": answer.cause.record.why if answer.cause else answer.why,
        "cause": None,
        "unknown": None if answer.unknown is None else msgspec.to_builtins(answer.unknown),
        "remedies": [_way_dict(way) for way in answer.ways],
        "facts": dict(answer.facts),
        "follows": [{"line": number, "text": text} for number, text in answer.follows],
        "others": list(answer.others),
        "notes": list(answer.notes),
        "starts": answer.starts,
        "start": answer.start,
    }
    if answer.cause is not None:
        cause = answer.cause
        body["cause"] = {
            "line": cause.number, "text": cause.line, "worker": cause.worker, "where": cause.where,
            "figures": dict(cause.figures), "record": msgspec.to_builtins(cause.record),
        }  # fmt: skip
    if answer.unknown is not None:
        body["paste"] = paste(answer)
    return msgspec.json.format(msgspec.json.encode(masked_all(body), enc_hook=str), indent=2).decode() + "\n"


def _way_dict(way: Way) -> dict[str, Any]:
    return {
        "text": way.text,
        "change": way.change,
        "command": list(way.command) if way.command else None,
        "installs": list(way.installs),
        "release": way.release,
        "gives_up": way.gives_up,
        "shows": way.shows,
        "command_from": way.from_,
        "but": way.but,
    }
