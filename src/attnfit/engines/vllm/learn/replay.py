"""Ask a book and the witness the same fresh questions and compare everything they say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from attnfit.engines.vllm.book import Book
from attnfit.engines.vllm.learn.coverage import Coverage
from attnfit.engines.vllm.learn.generate import Generator
from attnfit.engines.vllm.row import question_of, row
from attnfit.engines.vllm.witness.client import Witness

ENVIRONMENTS = 40
KEPT = 5  # disagreements shown


class Replay(msgspec.Struct, kw_only=True):
    """What a replay found. `branches` and `texts` are (reached, all)."""

    version: str
    seed: int
    questions: int = 0
    disagreements: int = 0
    first: list[dict[str, Any]] = msgspec.field(default_factory=list)
    unknown: int = 0  # questions to which the book has no answer, or none for some backend
    environments: int = 0
    branches: tuple[int, int] = (0, 0)
    texts: tuple[int, int] = (0, 0)
    missed: list[str] = msgspec.field(default_factory=list)


def replay(
    book: Book,
    witness: Witness,
    count: int,
    seed: int,
    facts: Mapping[str, bool],
    tell: Callable[[int], None] = lambda n: None,
) -> Replay:
    """`count` questions through both. `facts` are all facts the witness wants stated; `tell` hears of progress."""
    generator, coverage = Generator(book, seed), Coverage(book)
    environments = generator.environments(ENVIRONMENTS)
    result = Replay(version=book.version, seed=seed, environments=len(environments))
    own = count // 2  # half of all questions under the release's own environment
    shares = [own, *[-(-(count - own) // (len(environments) - 1))] * (len(environments) - 1)]
    for env, share in zip(environments, shares, strict=True):
        questions = list(generator.questions(share, env))
        stated = {**facts, **env}
        variables = {"VLLM_BATCH_INVARIANT": stated.pop("VLLM_BATCH_INVARIANT", False)}
        answers = witness.stream("ask_many", questions=questions, env=stated, variables=variables)
        for question, answer in zip(questions, answers, strict=True):
            _compare(book, coverage, question, env, answer, result)
            if result.questions % 1000 == 0:
                tell(result.questions)
    found = coverage.report()
    result.branches, result.texts, result.missed = tuple(found["branches"]), tuple(found["texts"]), found["missed"]
    return result


def _compare(
    book: Book,
    coverage: Coverage,
    question: dict[str, Any],
    env: Mapping[str, bool],
    answer: Mapping[str, Any],
    result: Replay,
) -> None:
    q = question_of(question)
    coverage.see(book.values_of(q, {**book.environment, **env}))
    ours, theirs = row(q, book.select(q, env, explained=False)), as_row(answer)
    result.questions += 1
    result.unknown += "unknown" in ours or "unknown_backends" in ours
    wrong = difference(ours, theirs)
    if wrong:
        result.disagreements += 1
        if len(result.first) < KEPT:
            result.first.append(
                {"question": question, "env": dict(env), "book": ours, "witness": theirs, "differs": wrong}
            )


def as_row(answer: Mapping[str, Any]) -> dict[str, Any]:
    """A witness's answer in the shape of `row`."""
    out: dict[str, Any] = {
        "chosen": answer["chosen"], "valid": answer["valid"], "refused": answer["refused"],
        "every_backend": {n: texts for n,
        texts in answer["every"].items() if not texts or not texts[0].startswith("RAISES ")},
    }  # fmt: skip
    if answer["error"] is not None:
        out["engine_message"] = answer["error"]
    if answer["unknown"]:
        out["unknown"] = answer["unknown"]
    if answer["unknown_backends"]:
        out["unknown_backends"] = answer["unknown_backends"]
    return out


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """The first key in which the two differ, order of backends and reasons included; "" if none.

    Where the witness has no answer to the whole question, only the single backends are compared.
    """
    keys: tuple[str, ...] = ("chosen", "valid", "refused", "engine_message") if "unknown" not in theirs else ()
    for key in (*keys, "every_backend"):
        one, other = ours.get(key), theirs.get(key)
        if one != other or (key == "refused" and list(one or ()) != list(other or ())):
            return key
    if "unknown" in ours and "unknown" not in theirs:
        return "unknown"
    if ours.get("unknown_backends", {}).keys() != theirs.get("unknown_backends", {}).keys():
        return "unknown_backends"
    return ""
