"""The areas of a machine, a line each and what to run; or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
import msgspec

from attnfit.doctor import ATTENTION, READY, UNKNOWN, Area, exit_code
from attnfit.report.plain import wrap

SCHEMA = 1
_COLOUR = {READY: "green", ATTENTION: "red", UNKNOWN: "yellow"}


def render(areas: Sequence[Area]) -> str:
    return "\n".join(_lines(areas)) + "\n"


def render_json(areas: Sequence[Area]) -> str:
    body = {"schema": SCHEMA, "exit_code": exit_code(areas), "areas": [msgspec.structs.asdict(area) for area in areas]}
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode() + "\n"


def verdict_line(areas: Sequence[Area]) -> str:
    """ "attention: NVIDIA driver, ptxas", or that nothing is to be mended."""
    wrong = [area.name for area in areas if area.state == ATTENTION]
    if wrong:
        return f"{click.style(ATTENTION, fg=_COLOUR[ATTENTION], bold=True)}: {', '.join(wrong)}"
    unknown = sum(area.state == UNKNOWN for area in areas)
    rest = f"; {unknown} of {len(areas)} areas are not known" if unknown else ""
    return f"{click.style(READY, fg=_COLOUR[READY], bold=True)}: nothing found that is to be mended{rest}"


def _lines(areas: Sequence[Area]) -> Iterator[str]:
    width = max(len(area.name) for area in areas)
    for area in areas:
        head, *more = wrap(area.seen, f"{area.state:<9}  {area.name:<{width}}  ")
        yield click.style(head[:9], fg=_COLOUR[area.state]) + head[9:]
        yield from more
        if area.run:
            yield from wrap(area.run, " " * (width + 13) + "-> ", " " * (width + 16))
    yield ""
    yield verdict_line(areas)
