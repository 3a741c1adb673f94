"""`attnfit which`: the releases that serve a launch, in spans that answer alike; or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import click
import msgspec

from attnfit.fleet.cell import AS_IS, NO, TOO_SMALL, UNKNOWN, WITH_A_CHANGE, Cell
from attnfit.fleet.which import Answered, Span
from attnfit.inputs.gpu import GpuInput
from attnfit.inputs.secrets import line
from attnfit.report.plain import printable, wrap
from attnfit.report.text import describe_gpu
from attnfit.report.where import shortened

SCHEMA = 1
_COLOUR = {AS_IS: "green", WITH_A_CHANGE: "yellow", NO: "red", UNKNOWN: "yellow"}
_MEMORY = {
    TOO_SMALL: "too little memory on so few GPUs",
    "may break": "it may run out of memory",
    "unknown": "whether it fits is not known",
    "": "memory not measured",
}
_WORDS = {AS_IS: "serves", WITH_A_CHANGE: "refused", NO: "refused", UNKNOWN: "unknown"}


def render(answers: Sequence[Answered], on: GpuInput) -> str:
    lines: list[str] = []
    for gpu, count in on.gpus:
        lines += wrap(describe_gpu(gpu, count), "gpu     ")
    for sentence in (*on.notes, *([] if on.counted else ["no number of GPUs given (-n): taken as one of each"])):
        lines += wrap(sentence, "        ")
    for answered in answers:
        lines += ["", *_engine(answered)]
    return "\n".join(lines) + "\n"


def quiet(answers: Sequence[Answered]) -> str:
    return "".join(f"{headline(answered)}\n" for answered in answers)


def render_json(answers: Sequence[Answered], on: GpuInput) -> str:
    body = {
        "schema": SCHEMA,
        "exit_code": exit_code(answers),
        "gpus": [{"name": gpu.name, "count": count} for gpu, count in on.gpus],
        "counted": on.counted,
        "engines": [_answered(answered) for answered in answers],
    }
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode() + "\n"


def _answered(answered: Answered) -> dict[str, object]:
    return {
        "engine": answered.engine,
        "asked": answered.asked,
        "nearest": answered.nearest(),
        "nearest_with_a_change": answered.nearest(WITH_A_CHANGE),
        "launched": answered.launched,
        "releases": answered.releases,
        "spans": [
            {
                "releases": span.releases,
                "first": span.releases[0],
                "last": span.releases[-1],
                "release": span.release,
                **_cell(span.cell),
            }
            for span in answered.spans
        ],
    }


def _cell(cell: Cell) -> dict[str, object]:
    return msgspec.structs.asdict(cell)


def exit_code(answers: Sequence[Answered]) -> int:
    """3 where nothing is known of any release."""
    return 0 if any(span.cell.answer != UNKNOWN for each in answers for span in each.spans) else 3


def headline(answered: Answered) -> str:
    """ "ENGINE: served by 0.24.0 to 0.33.0; nearest to 0.16.0: 0.24.0"."""
    good = [span for span in answered.spans if span.cell.answer == AS_IS and span.cell.memory != TOO_SMALL]
    small = [span for span in answered.spans if span.cell.answer == AS_IS and span.cell.memory == TOO_SMALL]
    silent = sum(len(span.releases) for span in answered.spans if span.cell.answer == UNKNOWN)
    rest = f"; {silent} of {len(answered.releases)} are not known" if silent else ""
    rest = f"; too little memory in {', '.join(_runs(small, answered))}{rest}" if small and good else rest
    if small and not good:
        runs = ", ".join(_runs(small, answered))
        return printable(f"{answered.engine}: too little memory, else served by {runs}{rest}")
    if not good:
        changed = answered.nearest(WITH_A_CHANGE)
        other = f"; with a change by {changed}" if changed else ""
        none = "no release serves it as is" if silent < len(answered.releases) else "what decides is missing"
        return printable(f"{answered.engine}: {none}{other}{rest if silent < len(answered.releases) else ''}")
    near = answered.nearest()
    nearest = f"; nearest to {answered.asked}: {near}" if near != answered.asked else ""
    return printable(f"{answered.engine}: served by {', '.join(_runs(good, answered))}{nearest}{rest}")


def _runs(good: Sequence[Span], answered: Answered) -> Iterator[str]:
    """The releases that serve, one after the other as one, whatever serves in each."""
    names = {release for span in good for release in span.releases}
    for serves, run in groupby(answered.releases, lambda release: release in names):
        if serves:
            yield _range(list(run))


def _engine(answered: Answered) -> Iterator[str]:
    first, *more = wrap(headline(answered), "", "  ")
    yield click.style(first, bold=True)
    yield from more
    if answered.launched:
        yield from wrap(line(answered.launched), "  launch  ")
    known = [span for span in answered.spans if span.cell.answer != UNKNOWN]
    width = max((len(_range(span.releases)) for span in known), default=0)
    for span in known:
        yield from _span(span, answered, width)
    for span in answered.spans:
        if span not in known:
            yield from wrap(f"{', '.join(span.releases)}: {shortened(_why(span))}", "  unknown  ")


def _span(span: Span, answered: Answered, width: int) -> Iterator[str]:
    cell = span.cell
    word = "breaks" if cell.verdict == "breaks" else _WORDS[cell.answer]
    said = [cell.serves] if cell.answer == AS_IS else [shortened(_why(span))]
    if cell.answer == AS_IS:
        said += [_MEMORY[cell.memory]] if cell.memory in _MEMORY else []
        said += [f"it may break: {', '.join(cell.doubts)}"] if cell.doubts else []
    if between := _between(span, answered):
        said.append(f"not known between them: {', '.join(between)}")
    start = f"  {_range(span.releases):<{width}}  {word:<8} "
    head, *more = wrap("; ".join(part for part in said if part), start)
    at = len(start) - 9
    yield head[:at] + click.style(head[at : at + 8], fg=_COLOUR[cell.answer]) + head[at + 8 :]
    yield from more
    if cell.answer == WITH_A_CHANGE:
        change = f"{cell.change}; then {cell.serves} serves it" if cell.serves else cell.change
        small = ", with too little memory on so few GPUs" if cell.memory == TOO_SMALL else ""
        which = f"change, in {span.release}: " if len(span.releases) > 1 else "change: "
        yield from wrap(f"{which}{change}{small}", " " * len(start))


def _why(span: Span) -> str:
    """Of several releases the text speaks of each."""
    return span.cell.why.replace(span.release, "X") if len(span.releases) > 1 else span.cell.why


def _between(span: Span, answered: Answered) -> list[str]:
    """Unknown releases between the first and the last of a span that is known."""
    first, last = (answered.releases.index(each) for each in (span.releases[0], span.releases[-1]))
    return [release for release in answered.releases[first:last] if release not in span.releases]


def _range(releases: Sequence[str]) -> str:
    return releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"
