"""Why nothing helps where no selector was asked: which of flags, quantisation, GPU and release conflict for this model.

Like conflict.py, with whole launches in place of questions: a few GPUs and releases stand for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import msgspec

from attnfit import gpus
from attnfit.core import Capability, Gpu
from attnfit.decide import Request
from attnfit.engines import Common
from attnfit.plan.edits import Origin
from attnfit.plan.judge import Judge, Outcome

MOST_ASKED = 60  # launches
_CAPABILITIES = ("9.0", "10.0", "12.0", "8.0")
_PARSING = ("parse_flags", "arg-parse")

Change = Callable[[Request], Request]


class Fact(NamedTuple):
    kind: str
    name: str
    otherwise: Sequence[tuple[str, Change]]  # what it is instead, and the launch with that


def because(origin: Origin, outcome: Outcome, judge: Judge) -> Iterator[str]:
    """A chain of sentences; nothing where flags that no parser takes alone are at fault, or too much would have to be
    asked."""
    if outcome.launch.ok is not False:
        return
    facts = list(_facts(origin))
    kept = list(facts)
    for fact in facts:
        free = [each for each in facts if each not in kept or each is fact]
        if _served(origin, judge, free) is None:
            kept.remove(fact)
        if judge.enough():
            return
    if [fact.kind for fact in kept] == ["flags"] and outcome.launch.stage in _PARSING:
        return
    names, rest = [fact.name for fact in kept], [fact for fact in facts if fact not in kept]
    whatever = f", whatever the {' and the '.join(fact.kind for fact in rest)}" if rest else ""
    if not kept:
        kinds = [f"the {fact.kind}" for fact in rest]
        divided = " so divided" if "tensor parallel" in origin.engine.common(origin.request.given()).values else ""
        yield f"nothing that was asked serves this model{divided}, whatever {', '.join(kinds[:-1])} and {kinds[-1]}"
    elif len(kept) == 1:
        yield f"{names[0]} and this model exclude each other{whatever}"
    else:
        yield f"{', '.join(names)} and this model exclude each other{whatever}"
    if rest:
        yield f"(asked of {', '.join(name for fact in rest for name, _ in fact.otherwise)}, and combined)"
    for fact in kept:
        found = _served(origin, judge, [fact])
        if found:
            yield f"without {fact.name} it is served: {found}"


def _served(origin: Origin, judge: Judge, free: Sequence[Fact]) -> str | None:
    """What is so instead where something serves; None where nothing does."""
    for ways in product(*([("", _same), *fact.otherwise] for fact in free)):
        request = origin.request
        for _, change in ways:
            request = change(request)
        if request is origin.request:
            continue
        if judge.enough():
            return None
        after = judge.ask(msgspec.structs.replace(request, tried=True))
        if after.launch.ok and not after.breaking:
            return ", ".join(name for name, _ in ways if name)
    return None


def _same(request: Request) -> Request:
    return request


def _facts(origin: Origin) -> Iterator[Fact]:
    """In the order in which they are let go of."""
    from attnfit.plan.elsewhere import server_words, without_quantisation

    engine, request = origin.engine, origin.request
    common = engine.common(request.given())
    size = {name: value for name, value in common.values.items() if name == "tensor parallel"}
    plain, form = server_words(tuple(engine.translated(Common(common.model, size))))
    if sorted(plain) != sorted(request.argv):

        def flags(request: Request) -> Request:
            return msgspec.structs.replace(request, argv=plain, form=form, variables={})

        yield Fact("flags", "the flags given", [("no flag but the split", flags)])
    bare = without_quantisation(request.model)
    if bare is not None:

        def quantised(request: Request) -> Request:
            return msgspec.structs.replace(request, model=bare)

        yield Fact(
            "quantisation", "the quantisation of these weights", [("a checkpoint that is not quantised", quantised)]
        )
    mine = request.gpus[0][0]
    others = [gpus.by_capability(Capability.parse(text)) for text in _CAPABILITIES]
    other = [(f"compute capability {gpu.capability}", _on(gpu)) for gpu in others if gpu.capability != mine.capability]
    yield Fact("GPU", mine.name, other)
    known = [version for version in engine.at_hand() if version != request.release.version]
    some = list(dict.fromkeys([*known[-1:], *known[len(known) // 2 :][:1], *known[:1]]))
    later = [(f"{engine.name} {each}", _in(origin, each)) for each in some]
    yield Fact("release", f"{engine.name} {request.release.version}", later)


def _on(gpu: Gpu) -> Change:
    return lambda request: msgspec.structs.replace(
        request, gpus=((gpu, sum(count for _, count in request.gpus)),), driver=""
    )


def _in(origin: Origin, version: str) -> Change:
    def change(request: Request) -> Request:
        release = origin.engine.shipped(version)
        env = {name: said for name, said in request.stated.items() if name in release.facts()}
        return msgspec.structs.replace(request, release=release, env=env)

    return change
