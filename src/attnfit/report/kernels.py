"""Whether kernels fit, for people and as JSON: one line for each kernel and configuration, then what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import click
import msgspec

from attnfit.inputs.kernel_rows import FITS, UNKNOWN, Answer, Outcome, Row
from attnfit.report.plain import WIDTH, printable, wrap

SCHEMA = 1
_SHOWN = 4  # reasons a capability, without --all
_COLOUR = {FITS: "green", UNKNOWN: "yellow"}


def exit_code(answer: Answer) -> int:
    """0 all fit, 1 one does not, 3 something is unknown."""
    word = verdict(answer)
    return 0 if word == FITS else 3 if word == UNKNOWN else 1


def verdict(answer: Answer) -> str:
    """fits | does not fit | unknown, of everything asked."""
    found = {outcome.verdict for outcome in answer.outcomes()}
    if found - {FITS, UNKNOWN}:
        return "does not fit"
    return UNKNOWN if UNKNOWN in found or answer.failures or not answer.rows else FITS


def verdict_line(answer: Answer) -> str:
    """One line: the verdict and its shortest reason."""
    word = verdict(answer)
    outcomes = answer.outcomes()
    capabilities = list(dict.fromkeys(row.capability for row in answer.rows))
    triton = f"Triton {answer.triton}"
    if word == FITS:
        spills = sum(1 for outcome in outcomes if any(row.spill_stores for row in outcome.rows if row.verdict == FITS))
        spilling = f"{spills} of them spill registers" if spills else "none spills registers"
        sentence = f"all {len(outcomes)} launches fit {_listed(capabilities)} ({triton}); {spilling}"
    elif word == UNKNOWN:
        wanting = sum(outcome.verdict == UNKNOWN for outcome in outcomes) + len(answer.failures)
        sentence = f"{wanting} of {len(outcomes) + len(answer.failures)} launches could not be tried ({triton})"
    else:
        failed = [outcome for outcome in outcomes if outcome.verdict not in (FITS, UNKNOWN)]
        where = _listed(list(dict.fromkeys(outcome.rows[0].capability for outcome in failed)))
        sentence = f"{len(failed)} of {len(outcomes)} launches, on {where} ({triton})"
    colour = _COLOUR.get(word, "red")
    return f"{click.style(word, fg=colour, bold=True)}: {printable(sentence)}"


def _listed(capabilities: Sequence[str]) -> str:
    return ", ".join(capabilities)


def render(answer: Answer, capabilities: Iterable[str], *, every: bool = False) -> str:
    """The whole answer as text. every: a line for each launch, not only the largest of each configuration."""
    lines = wrap(verdict_line(answer), "", "  ") if len(verdict_line(answer)) > 100 else [verdict_line(answer)]
    for capability in capabilities:
        rows = [row for row in answer.rows if row.capability == capability]
        lines += ["", *_capability(capability, rows, every)]
        failures = [failure for failure in answer.failures if failure.capability == capability]
        outcomes = [outcome for outcome in answer.outcomes() if outcome.rows[0].capability == capability]
        lines += _reasons(outcomes, every)
        for failure in failures:
            lines += wrap(f"{failure.case or 'everything'}: {failure.message}", "  unknown  ")
    return "\n".join(lines) + "\n"


_HEAD = ("kernel", "config", "shared", "regs", "spill", "warps", "tensor cores")
_WIDEST = (26, 17, 9, 5, 7, 6, 14)


def _capability(capability: str, rows: Sequence[Row], every: bool) -> Iterator[str]:
    if not rows:
        yield f"{capability}: nothing compiled"
        return
    yield f"{capability}, {rows[0].limit:,} bytes of shared memory for a block"
    for note in dict.fromkeys(row.note for row in rows if row.note):
        yield from wrap(note, "  note: ")
    if every:
        groups = [[row] for row in rows]
    else:
        same: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            same.setdefault((row.kernel, _config(row)), []).append(row)
        groups = list(same.values())
    table = [_cells(group) for group in groups]
    widths = [
        min(widest, max(map(len, column)))
        for widest, column in zip(_WIDEST, zip(_HEAD, *table, strict=True), strict=True)
    ]
    yield _line(_HEAD, widths)
    case = ""
    for group, cells in zip(groups, table, strict=True):
        if every and group[0].case != case:
            case = group[0].case
            yield from wrap(case, "  ")
        yield _line(cells, widths)


def _cells(rows: Sequence[Row]) -> tuple[str, ...]:
    """The largest figures of rows that are one kernel in one configuration."""
    stored = [row.spill_stores for row in rows if row.spill_stores is not None]
    occupied = [row.occupancy for row in rows if row.occupancy is not None]
    fewest = min(occupied, key=lambda o: o.warps, default=None)
    opcodes = dict.fromkeys(
        name.partition(".")[0] for row in rows if row.instructions for name in row.instructions.tensor
    )
    return (
        rows[0].kernel.removesuffix("_kernel"),
        _config(rows[0]),
        _most([row.shared for row in rows]),
        _most([row.registers for row in rows]),
        f"{max(stored):,}" if stored else "-",
        f"{fewest.warps}/{fewest.most}" if fewest else "-",
        " ".join(opcodes) or "-",
    )


def _most(figures: Iterable[int | None]) -> str:
    known = [figure for figure in figures if figure is not None]
    return f"{max(known):,}" if known else "-"


def _config(row: Row) -> str:
    """ "16x32 w8 s2": the block sizes among the constexprs, warps, stages."""
    blocks = [str(value) for name, value in row.constexprs.items() if name.upper().startswith(("BLOCK", "B"))]
    sizes = "x".join(blocks[:3])
    warps = "" if row.num_warps is None else f"w{row.num_warps} s{row.num_stages}"
    return f"{sizes} {warps}".strip()


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Words to the left, figures to the right."""
    aligned = [
        cell[:width].rjust(width) if 2 <= at <= 5 else cell[:width].ljust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"  {'  '.join(aligned)}"[:WIDTH].rstrip()


def _reasons(outcomes: Iterable[Outcome], every: bool) -> list[str]:
    """What does not fit or is unknown and why, by reason; what an autotuner leaves out."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for outcome in outcomes:
        if (row := outcome.stopped_by) is not None:
            found.setdefault((row.verdict, row.kernel, _reason(row)), []).append(row.case)
        else:
            for row in outcome.rows:
                if row.verdict == UNKNOWN:
                    found.setdefault((UNKNOWN, row.kernel, _reason(row)), []).append(row.case)
            left_out = [row for row in outcome.rows if row.skipped]
            if left_out:
                kept = len(outcome.rows) - len(left_out)
                why = f"{len(left_out)} of {len(outcome.rows)} configurations are left out by its autotuner, {kept} fit"
                found.setdefault(("note", left_out[0].kernel, why), []).append(left_out[0].case)
    lines: list[str] = []
    shown = list(found.items()) if every else list(found.items())[:_SHOWN]
    for (word, kernel, why), cases in shown:
        others = f" and {len(cases) - 1} more" if len(cases) > 1 else ""
        lines += wrap(f"{kernel} ({cases[0]}{others}):", f"  {word}: ", "    ")
        lines += wrap(why, "    ")
    if len(shown) < len(found):
        lines.append(f"  {len(found) - len(shown)} more reasons (--all lists them)")
    return lines


def _reason(row: Row) -> str:
    """Triton's own words; of a compiler's report, its last line says what is wrong."""
    last = row.message.strip().splitlines()[-1].strip() if row.message.strip() else ""
    return f"{row.exception}: {last}" if row.exception else last


def render_json(answer: Answer, capabilities: Iterable[str]) -> str:
    """docs/json.md, "Kernels"."""
    body = {
        "schema": SCHEMA,
        "verdict": verdict(answer),
        "exit_code": exit_code(answer),
        "capabilities": list(capabilities),
        **msgspec.to_builtins(answer),
    }
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode() + "\n"
