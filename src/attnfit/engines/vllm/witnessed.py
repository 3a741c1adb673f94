"""Selector questions answered by the engine's own code in the witness instead of by the rule book."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from attnfit.core import Question, Reason, Selection, Status, Verdict
from attnfit.engines.vllm.book import Book
from attnfit.engines.vllm.distribution import DISTRIBUTION
from attnfit.engines.vllm.witness.client import Witness
from attnfit.errors import UsageError
from attnfit.witness import sources

Select = Callable[..., Selection]


def selector(source: str, version: str, book: Book) -> tuple[Select, str]:
    """A `select` that asks the release at `source` (a tree, a wheel, "installed", "vllm==X"), and what to say of it.

    Raises UsageError if the source is of another release than `version`.
    """
    found = sources.find(DISTRIBUTION, source)
    if found.version != version:
        raise UsageError(f"{source} is vLLM {found.version}, the launch is for {version}; make the two agree")
    witness = Witness(found.root, found.version, found.env)
    atexit.register(witness.close)

    def select(question: Question, env: Mapping[str, bool] | None = None, *, explained: bool = True) -> Selection:
        asked = msgspec.structs.asdict(question) | {"capability": str(question.capability)}
        answer = witness.ask(asked, {**found.env, **(env or {})})
        return _selection(answer, book.select(question, env, explained=explained))

    return select, f"answered by the engine's own code, {found.origin}"


def _selection(answer: Mapping[str, Any], booked: Selection) -> Selection:
    """The witness knows texts; codes and source lines of a reason are the book's, where it gives the same text."""
    known = {(v.backend, reason.text): reason for v in booked.direct or booked.verdicts for reason in v.reasons}
    tried = {*answer["valid"], *answer["refused"]}
    verdicts = []
    for name in dict.fromkeys([*answer["valid"], *answer["refused"], *answer["every"], *answer["unknown_backends"]]):
        texts = answer["refused"].get(name, answer["every"].get(name, []))
        reasons = tuple(known.get((name, text), Reason("engine", text)) for text in texts)
        unknown = answer["unknown_backends"].get(name, "")
        status = Status.UNKNOWN if unknown else Status.REFUSES if reasons else Status.ACCEPTS
        verdicts.append(Verdict(name, status, reasons, unknown, name in tried))
    return Selection(
        chosen=answer["chosen"],
        valid=tuple(answer["valid"]),
        verdicts=tuple(verdicts),
        error=answer["error"],
        unknown=answer["unknown"] or "",
        automatic=booked.automatic,
        direct=tuple(verdicts),
    )
