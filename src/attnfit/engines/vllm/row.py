"""A selection as a line of the truth files: chosen, valid, refused, every_backend, engine_message."""

from __future__ import annotations

from typing import Any

import msgspec

from attnfit.core import Capability, Question, Selection, Status, Verdict
from attnfit.errors import InputError

_FIELDS = {f.name for f in msgspec.structs.fields(Question)}


def question_of(config: dict[str, Any]) -> Question:
    """A question as the truth files and `--batch` state one. Unknown names are ignored; InputError for wrong types."""
    given = {name: value for name, value in config.items() if name in _FIELDS}
    try:
        capability = given.get("capability")
        if isinstance(capability, str):
            given["capability"] = Capability.parse(capability)
        return msgspec.convert(given, Question)
    except (ValueError, msgspec.ValidationError) as why:
        raise InputError(f"not a selector question: {why}") from why


def row(q: Question, selection: Selection) -> dict[str, Any]:
    """The answer as in truth/vllm-*.jsonl: with an explicit backend, `valid` and `refused` are the backends' answers to
    the question as given; otherwise those that the engine's own choice saw."""
    seen = selection.direct if q.backend is not None else selection.verdicts
    candidates = [v for v in seen if v.candidate]
    if any(_raises(v) for v in candidates):
        candidates = []  # the engine ends there, before it has listed anything
    out: dict[str, Any] = {
        "chosen": selection.chosen,
        "valid": [v.backend for v in candidates if v.status is Status.ACCEPTS],
        "refused": {v.backend: _texts(v) for v in candidates if v.status is Status.REFUSES},
        "every_backend": {
            v.backend: [f"LOAD {v.reasons[0].observed}"] if _code(v) == "unavailable" else _texts(v)
            for v in selection.direct
            if v.status is not Status.UNKNOWN and not _raises(v)
        },
    }
    if selection.error is not None:
        out["engine_message"] = selection.error
    if selection.unknown:
        out["unknown"] = selection.unknown
    unknown = {v.backend: v.unknown for v in selection.direct if v.status is Status.UNKNOWN}
    if unknown:
        out["unknown_backends"] = unknown
    return out


def _code(verdict: Verdict) -> str:
    return verdict.reasons[0].code if verdict.reasons else ""


def _raises(verdict: Verdict) -> bool:
    return _code(verdict) == "raises"


def _texts(verdict: Verdict) -> list[str]:
    return [reason.text for reason in verdict.reasons]
