"""What changed for one launch between two releases."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec

from attnfit.core import LayerQuestion, Report, Status, Verdict
from attnfit.report.json import as_dict
from attnfit.report.plain import printable
from attnfit.report.text import WIDTH, verdict_line

SCHEMA = 1
_FACTS = ("stage", "dtype", "kv_cache_dtype", "kv_cache_dtype_after_init", "block_size", "block_size_after_load")


def render(old: Report, new: Report, *, as_json: bool = False) -> str:
    if as_json:
        both: dict[str, Any] = {"schema": SCHEMA, "old": as_dict(old), "new": as_dict(new)}
        both["changes"] = list(changes(old, new))
        return msgspec.json.format(msgspec.json.encode(both), indent=2).decode() + "\n"
    lines = [verdict_line(old), verdict_line(new), ""]
    missing = [f"unknown for {report.release}: {text}" for report in (old, new) for text in report.launch.unknown]
    for sentence in [*missing, *changes(old, new)]:
        said = printable(sentence)
        lines += textwrap.wrap(said, WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    if len(lines) == 3:
        lines.append("  nothing else changes for this launch")
    return "\n".join(lines) + "\n"


def changes(old: Report, new: Report) -> Iterator[str]:
    """One sentence for each difference, launch first, then layer by layer, backend by backend."""
    for name in _FACTS:
        was, now = getattr(old.launch, name), getattr(new.launch, name)
        if was != now:
            yield f"{name}: {was} -> {now}"
    before, after = dict(old.launch.chosen), dict(new.launch.chosen)
    for role in dict.fromkeys([*before, *after]):
        if before.get(role) != after.get(role):
            yield f"{role}: {before.get(role) or 'nothing'} -> {after.get(role) or 'nothing'}"
    yield from _choices(old, new)
    for index in range(max(len(old.launch.layers), len(new.launch.layers))):
        before_layer = _at(old.launch.layers, index)
        after_layer = _at(new.launch.layers, index)
        if before_layer is None or after_layer is None:
            which = new if before_layer is None else old
            yield f"question {index + 1} is asked only by {which.release}"
            continue
        yield from _layer(f"question {index + 1}", before_layer, after_layer)


def _choices(old: Report, new: Report) -> Iterator[str]:
    """By what is chosen, not by the name of its flag: that changes, too."""
    before = {choice.what: choice for choice in old.launch.choices}
    after = {choice.what: choice for choice in new.launch.choices}
    for what in before:
        if what in after:
            yield from _verdicts(what, before[what].verdicts, after[what].verdicts)


def _layer(who: str, old: LayerQuestion, new: LayerQuestion) -> Iterator[str]:
    if old.selection.chosen != new.selection.chosen:
        yield f"{who}: picks {old.selection.chosen or 'nothing'} -> {new.selection.chosen or 'nothing'}"
    yield from _verdicts(who, old.selection.verdicts, new.selection.verdicts)


def _verdicts(who: str, old: tuple[Verdict, ...], new: tuple[Verdict, ...]) -> Iterator[str]:
    before = {v.backend: v for v in old if not v.brought_by}
    after = {v.backend: v for v in new if not v.brought_by}
    for name in before:
        if name in after and before[name].status != after[name].status:
            yield f"{who}: {name} {before[name].status.value} -> {after[name].status.value}{_why(after[name])}"
    fresh = [v for name, v in after.items() if name not in before]
    for verdict in fresh:
        if verdict.status is not Status.REFUSES or verdict.candidate:
            yield f"{who}: {verdict.backend} is new and {verdict.status.value}{_why(verdict)}"
    rest = [v.backend for v in fresh if v.status is Status.REFUSES and not v.candidate]
    for words, names in (("new, and refuse", rest), ("gone", [name for name in before if name not in after])):
        if names:
            yield f"{who}: {len(names)} are {words}: {', '.join(names)}"


def _why(verdict: Any) -> str:
    reasons = "; ".join(reason.text for reason in verdict.reasons)
    return f" ({reasons})" if reasons else ""


def _at(layers: tuple[LayerQuestion, ...], index: int) -> LayerQuestion | None:
    return layers[index] if index < len(layers) else None
