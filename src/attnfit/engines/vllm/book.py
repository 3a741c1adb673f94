"""A release's rule book: every verdict and every reason, in the engine's own order and words.

    load(version) -> Book          Book.select(question, env) -> core.Selection

Pure: no I/O after loading, no torch, no engine. docs/books.md describes the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from attnfit.core import Question, Selection, Status, Verdict
from attnfit.engines.vllm import rules
from attnfit.engines.vllm.tree import ABSENT, Forest, Outside, Values, walk
from attnfit.engines.vllm.verdicts import Verdicts
from attnfit.errors import InputError

BOOKS = Path(__file__).with_name("books")
FORMAT = 1


class Written(msgspec.Struct):
    """The file as it is written; trees stay plain data until they are compiled."""

    format: int
    engine: str
    version: str
    provenance: dict[str, Any]
    environment: dict[str, bool]  # facts the rules read, with what `pip install vllm==X` brings
    fields: dict[str, list[Any]]  # finite fields: the values that were explored
    selector: list[str]  # AttentionSelectorConfig of this release
    drops: list[str]  # fields the platform sets to None before it validates
    messages: dict[str, str]
    priority: Any
    helpers: dict[str, Any]
    trees: dict[str, Any]
    backends: dict[str, Any]


_DECODE = msgspec.json.Decoder(Written)
_ASKED = attrgetter(*rules.ASKED)


class Book:
    """One release. Build it with `load`, or from the bytes of a book file (InputError if they are none)."""

    def __init__(self, raw: bytes) -> None:
        try:
            self.written = _DECODE.decode(raw)
        except msgspec.MsgspecError as why:
            raise InputError(f"not a rule book: {why}; learn it again with `attnfit learn`") from why
        if self.written.format != FORMAT:
            raise InputError(f"rule book format {self.written.format}, this attnfit reads {FORMAT}; learn it again")
        self.version, self.environment = self.written.version, self.written.environment
        names = (*rules.ASKED, "capability", "model_config")
        self.numbers: dict[str, int] = {name: i for i, name in enumerate(names)}
        self.forest = Forest(self.written.trees, lambda field: self.numbers.setdefault(field, len(self.numbers)))
        self.helpers = [
            (self.numbers.setdefault(name, len(self.numbers)), self.forest.node(tree))
            for name, tree in self.written.helpers.items()
        ]
        self.priority = self.forest.node(self.written.priority)
        self.verdicts = Verdicts(self)
        self.names = list(self.numbers)
        self._hf = [(i, n[3:]) for i, n in enumerate(self.names) if n.startswith("hf.")]
        self._env = [(i, n[4:]) for i, n in enumerate(self.names) if n.startswith("env.")]
        self._context = [(i, rules.CONTEXT[n]) for i, n in enumerate(self.names) if n in rules.CONTEXT]
        for name in self.names[len(names) :]:
            if not name.startswith(("hf.", "env.")) and name not in rules.CONTEXT and name not in self.written.helpers:
                raise InputError(f"the book of vLLM {self.version} asks about {name}, which this attnfit does not know")

    def select(self, q: Question, env: Mapping[str, bool] | None = None, *, explained: bool = True) -> Selection:
        """What the engine does with this question. `env` overrides facts of `environment`; it may also state
        VLLM_BATCH_INVARIANT (default: not set). In bulk leave the reasons' `required` and `observed` away: not
        `explained`."""
        facts = self.environment if env is None else {**self.environment, **env}
        values = self.values_of(q, facts)
        direct = found = self.verdicts.of(values, explained)
        dropped = [name for name in self.written.drops if getattr(q, name) is not None]
        if dropped:
            values = self.values_of(msgspec.structs.replace(q, **dict.fromkeys(dropped)), facts)
            found = self.verdicts.of(values, explained)
        try:
            priority = walk(self.priority, values)
            unknown = "" if priority.kind == "reasons" else str(priority.value)
        except (Outside, rules.NoNumber) as why:
            unknown = self.outside(why) if isinstance(why, Outside) else str(why)
        if unknown:
            return Selection(None, (), tuple(found), unknown=unknown, direct=tuple(direct))
        names = priority.texts
        verdicts = _ordered(found, names)
        candidates = verdicts[: len(names)]
        automatic, error, unknown = self._automatic(q, candidates)
        chosen = automatic
        if q.backend is not None:
            chosen, error, unknown = self._explicit(q, verdicts)
        return Selection(
            chosen, tuple(v.backend for v in candidates if v.status is Status.ACCEPTS), verdicts, error, unknown,
            automatic,
            verdicts if direct is found else _ordered(direct, names),
        )  # fmt: skip

    def _automatic(self, q: Question, candidates: tuple[Verdict, ...]) -> tuple[str | None, str | None, str]:
        """(choice, error, unknown) without a backend given: the engine asks all candidates, then takes the first."""
        for verdict in candidates:
            if verdict.reasons and verdict.reasons[0].code == "raises":
                return None, verdict.reasons[0].text, ""
        for verdict in candidates:
            if verdict.status is Status.ACCEPTS:
                return verdict.backend, None, ""
            if verdict.status is Status.UNKNOWN:
                return None, None, f"{verdict.backend}: {verdict.unknown}"
        listed = ", ".join(f"{v.backend}: [{', '.join(r.text for r in v.reasons)}]" for v in candidates)
        return None, rules.fill(self.written.messages["none"], q, {"reasons": "{" + listed + "}"}), ""

    def _explicit(self, q: Question, verdicts: tuple[Verdict, ...]) -> tuple[str | None, str | None, str]:
        """(choice, error, unknown) with --attention-backend: that backend alone."""
        verdict = next((v for v in verdicts if v.backend == q.backend), None)
        if verdict is None:
            return None, None, f"{q.backend} is no CUDA backend of vLLM {self.version}"
        if verdict.status is Status.ACCEPTS:
            return verdict.backend, None, ""
        if verdict.status is Status.UNKNOWN:
            return None, None, f"{verdict.backend}: {verdict.unknown}"
        first, messages = verdict.reasons[0], self.written.messages
        if first.code == "raises":
            return None, first.text, ""
        if first.code == "unavailable":
            kind, _, text = first.observed.partition(": ")
            more: dict[str, Any] = {"backend": verdict.backend, "type": kind, "error": text}
            return None, rules.fill(messages["explicit_unavailable"], q, more), ""
        more = {"backend": verdict.backend, "reasons": [reason.text for reason in verdict.reasons]}
        return None, rules.fill(messages["explicit"], q, more), ""

    def values_of(self, q: Question, facts: Mapping[str, bool]) -> Values:
        """The question as field values, in the order of `names`."""
        hf = q.hf
        values: Values = [*_ASKED(q), tuple(q.capability), hf is not None]
        values += [None] * (len(self.names) - len(values))
        for i, context in self._context:
            values[i] = context(q)
        for i, name in self._env:
            values[i] = facts.get(name, False)
        for i, name in self._hf:
            value = hf.get(name, ABSENT) if hf is not None else ABSENT
            if value.__class__ not in rules.NUMBERS and value is not ABSENT:
                value = rules.NotNumber(name, value)
            values[i] = value
        for i, tree in self.helpers:
            try:
                leaf = walk(tree, values)
                values[i] = leaf.value if leaf.kind == "value" else ABSENT
            except (Outside, rules.NoNumber):
                values[i] = ABSENT  # no tree has a case for it: unknown
        return values

    def outside(self, outside: Outside) -> str:
        """Why a value leaves a tree without an answer."""
        name = self.names[outside.field]
        if name in self.written.helpers:
            return f"{name.partition('(')[0]} is not known for this question"
        shown = ".".join(map(str, outside.value)) if name == "capability" else repr(outside.value)
        return f"{name} {shown} is not among the values explored for vLLM {self.version}"


def _ordered(found: list[Verdict], names: tuple[str, ...]) -> tuple[Verdict, ...]:
    """Candidates first, in the order of the priority list; then the others in the engine's own."""
    by_name = {v.backend: v for v in found}
    listed = [by_name.pop(n) for n in names]
    return (*[Verdict(v.backend, v.status, v.reasons, v.unknown, True) for v in listed], *by_name.values())


def load(version: str, folder: Path = BOOKS) -> Book:
    """The book of a release, e.g. "0.33.0". FileNotFoundError where there is none (see releases.resolve)."""
    return Book((folder / f"{version}.json").read_bytes())
