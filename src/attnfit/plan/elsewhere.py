"""What lies outside the command at hand: another release, another checkpoint, the other engine (GPUs: hardware.py).

Looked at only where nothing near helps: each of these is a day's work for somebody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from attnfit.core import Launch, Model, Step
from attnfit.decide import Request, measure
from attnfit.engines import ENGINES, Common, Cost, Engine, Move, Weights, distribution_of, engine
from attnfit.inputs.command import Command
from attnfit.inputs.secrets import hide
from attnfit.inputs.switch import Switched, kept_variables, switched
from attnfit.plan.changes import successors, surer
from attnfit.plan.edits import Origin, Part, Parts, parts_of, start, with_parts
from attnfit.plan.given_up import changed
from attnfit.plan.judge import Judge
from attnfit.plan.offers import then
from attnfit.plan.search import Found, minimal

MOST_RELEASES, MOST_THERE = 24, 1  # releases looked at; changes of each class that are tried in each
MOST_ENGINE = 12
_SERVED = ("api key", "host", "port", "served name", "revision")  # without one of these it is another server


def releases(origin: Origin, judge: Judge) -> Iterator[Found]:
    """Other releases, nearest first and of two as near the newer: as they are, then with one change more.

    Ends at the first that needs nothing which is not in the release.
    """
    request, mine = origin.request, origin.engine
    known = [version for version in mine.at_hand() if version != request.release.version]
    books = {request.release.book}
    ordered = sorted(known, key=lambda version: (abs(_place(known, version, request)), -known.index(version)))
    looked = 0
    for version in ordered:
        release = mine.shipped(version)
        if release.book in books or not release.exact:
            continue
        books.add(release.book)
        if looked == MOST_RELEASES or judge.enough():
            return
        looked += 1
        origin.releases[version] = release
        move = Move("", request.argv, kind="release", cost=Cost.RELEASE + looked, release=version)
        for found in with_one_more(origin, judge, ((move, (Part(release=version),)),)):
            if not any(part.release for part in found.parts):
                continue
            yield found
            if not any(part.installs for part in found.parts):
                return


def _place(known: list[str], version: str, request: Request) -> float:
    """How many releases lie between: those known are in order."""
    from packaging.version import InvalidVersion, Version

    try:
        at = sum(Version(each) < Version(request.release.version) for each in known) - 0.5
    except InvalidVersion:
        at = len(known) - 0.5
    return known.index(version) - at


def with_one_more(origin: Origin, judge: Judge, moves: tuple[tuple[Move, Parts], ...]) -> Iterator[Found]:
    """The launch with these changes, else with one more, the cheapest first."""
    base = tuple(part for _, own in moves for part in own)
    request = with_parts(origin, base)
    after = judge.ask(request)
    if judge.clean(after):
        yield Found(base, moves, after)
        return
    for more in _few(successors(origin.engine)(request, after)):
        parts = parts_of(origin, base, more)
        there = judge.ask(with_parts(origin, parts))
        if judge.clean(there):
            own = tuple(each for each in parts if each not in base)
            yield minimal(origin, judge, Found(parts, (*moves, (more, own)), there))
            if not more.installs:
                return


def _few(moves: Iterator[Move]) -> list[Move]:
    """The first of each class, cheapest first."""
    kept: dict[int, list[Move]] = {}
    for move in sorted(moves, key=lambda each: each.cost):
        if move.cost < Cost.RELEASE:
            kept.setdefault(move.cost, []).append(move)
    return [move for group in kept.values() for move in group[:MOST_THERE]]


def unquantised(origin: Origin, judge: Judge) -> Iterator[Step]:
    """A checkpoint of the same model in its own dtype, where the one at hand is quantised, and as far as its size can
    be told from config.json that size fits: the files at hand are not those that would be served."""
    bare = without_quantisation(origin.request.model)
    if bare is None:
        return
    request = msgspec.structs.replace(origin.request, tried=True, model=bare)
    after = judge.ask(request)
    if after.launch.ok:
        after = after._replace(fit=measure(request, Weights(None, "that checkpoint is not here")))
    too_large = after.fit is not None and after.fit.supposed
    if judge.clean(after) and not too_large:
        text = f"a checkpoint of the same model that is not quantised; {'; '.join(then(after))}"
        yield Step(text, gives_up="the room that quantised weights save", kind="format", cost=Cost.FORMAT,
                   doubts=tuple(after.doubts))  # fmt: skip


def without_quantisation(model: Model) -> Model | None:
    """The same model as it was before; None where it is not quantised, or that is not known."""
    plain = _without(model.config)
    if model.gguf is not None or (plain == model.config and model.hf_quant is None):
        return None
    return msgspec.structs.replace(model, config=plain, hf_quant=None, weight_dtypes=None)


def _without(config: dict[str, object]) -> dict[str, object]:
    return {
        key: _without(value) if key == "text_config" and isinstance(value, dict) else value
        for key, value in config.items()
        if key not in ("quantization_config", "compression_config")
    }


def other_engines(origin: Origin, before: Launch, weights: Callable[[], Weights], tried: list[int]) -> Iterator[Step]:
    """The launch as far as it can be said to another engine, with one change more if that is what it takes."""
    common = origin.engine.common(origin.request.given())
    for name in ENGINES:
        other = engine(name)
        known = other.at_hand() if name != origin.engine.name else ()
        for less in _less(common) if known else ():
            words = tuple(other.translated(less))
            argv, form = server_words(words)
            kept = kept_variables(origin.command) if origin.command is not None else {}
            there = msgspec.structs.replace(
                origin.request, release=other.shipped(known[-1]), argv=argv, form=form, variables=kept, env={},
                stated={}, tried=True,
            )  # fmt: skip
            head = words[: len(words) - len(argv)]
            step = _of_engine(other, there, origin.command, before, head, less, weights, tried)
            if step is not None:
                yield step
                break


def _less(common: Common) -> Iterator[Common]:
    """All that can be said, then without the dtype or the length, then only where it is served and to whom, then the
    plainest command: of what decides who may ask, nothing goes without a word (`_of_engine`)."""
    yield common
    needed = set(common.values) & {"tensor parallel", *_SERVED}
    for kept in (set(common.values) - {"dtype"}, set(common.values) - {"length"}, needed, needed - set(_SERVED)):
        gone = tuple(f"the {name}" for name in common.values if name not in kept)
        if gone:
            values = {name: value for name, value in common.values.items() if name in kept}
            guards = tuple(f"the {name}" for name in _SERVED if name in common.values and name not in kept)
            yield Common(common.model, values, (*gone, *common.left), (*guards, *common.guards))


def server_words(words: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    from attnfit.inputs.command import parse_command

    read = parse_command(words)
    return read.argv, read.form


def _of_engine(
    other: Engine, request: Request, command: Command | None, before: Launch, head: tuple[str, ...], common: Common,
    weights: Callable[[], Weights], tried: list[int],
) -> Step | None:  # fmt: skip
    origin, judge = start(other, request), Judge(weights, MOST_ENGINE)
    after = judge.ask(request)
    version = request.release.version
    found = Found((), (), after)
    if not judge.clean(after):
        moves = sorted(successors(other)(request, after), key=lambda each: each.cost)
        for move in [each for each in moves if each.cost <= Cost.DENSE]:
            if judge.enough():
                break
            parts = parts_of(origin, (), move)
            there = judge.ask(with_parts(origin, parts))
            if judge.clean(there):
                found = Found(parts, ((move, parts),), there)
                break
    tried.append(judge.tried)
    if not judge.clean(found.outcome):
        return None
    found = surer(origin, judge, found)
    more = ", ".join(move.text for move, _ in found.moves)
    argv = with_parts(origin, found.parts).argv
    if common.guards:
        into = Switched(None, f"there is no certain counterpart of {' and '.join(common.guards)}")
    elif command is None:
        into = Switched((*head, *argv))
    else:
        into = switched(command, other.name, head, argv, version)
    said = f"serve it with {other.name} {version} instead{f', {more}' if more else ''}"
    if into.words is None:
        said += f", with a command of your own: {into.why}"
    left = [*common.left, *into.left]
    lost = [move.gives_up for move, _ in found.moves if move.gives_up]
    lost += [*changed(before, found.outcome.launch), *([f"left away: {', '.join(left)}"] if left else [])]
    return Step(
        "; ".join([said, *then(found.outcome)]), tuple(hide(into.words)) if into.words is not None else None,
        "; ".join(lost), installs="" if into.named else f"{distribution_of(other.name).name}=={version}",
        kind="engine", cost=Cost.ENGINE + found.cost, doubts=tuple(found.outcome.doubts), engine=other.name,
        release=version,
    )  # fmt: skip
