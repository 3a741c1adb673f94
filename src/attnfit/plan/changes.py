"""Where changes come from: the engine's moves, the remedies of hazards, and what needs less memory."""

from __future__ import annotations

from collections.abc import Iterator

from attnfit.core import Hazard, Step
from attnfit.decide import Request
from attnfit.engines import Cost, Engine, Move
from attnfit.plan.edits import Origin, parts_of, with_parts
from attnfit.plan.judge import Judge, Outcome
from attnfit.plan.search import Found, Successors


def successors(engine: Engine) -> Successors:
    """What may be changed of a launch that does not start, or starts with flags that do nothing."""

    def of(request: Request, outcome: Outcome) -> Iterator[Move]:
        if outcome.launch.ok is None:
            return
        yield from engine.moves(request.given(), outcome.launch)
        for hazard in outcome.breaking:
            yield from _remedies(engine, request, hazard)
        if outcome.fit is not None and outcome.too_large and not outcome.fit.files:
            yield from engine.room(request.given(), outcome.fit)

    return of


def _remedies(engine: Engine, request: Request, hazard: Hazard) -> Iterator[Move]:
    """Of the record's ways out those that are a matter of flags and variables."""
    from attnfit.engines.log import Edit, log_words
    from attnfit.hazards.catalogue import records_of
    from attnfit.hazards.words import meant, remedy_line

    words = next(log for log in log_words() if log.engine == engine.name)
    release = request.release.version
    known = records_of(engine.name)
    records = [known[hazard.code]] if hazard.code in known else known.values()  # a code may stand for several records
    remedies = [
        each
        for record in records
        for predicate in dict.fromkeys(["", *(when for one in record.remedies for when in one.when)])
        for each in meant(record, engine.name, release, predicate)
        if each.when or not predicate
    ]
    for remedy in remedies:
        if remedy_line(remedy) not in hazard.remedies or remedy.installs:
            continue
        edit = words.spelt(Edit(remedy.set, remedy.drop, remedy.variables), release)
        if isinstance(edit, str):
            continue  # this release has nothing of the kind
        argv = words.edited(request.argv, request.form, release, edit)
        variables = {k: v for k, v in edit.variables.items() if v is not None or k in request.variables}
        if tuple(argv) != request.argv or variables:
            prices = [*(engine.price(flag) for flag in (*edit.set, *edit.drop)), *(Cost.BACKEND for _ in variables)]
            yield Move(remedy.text, argv, remedy.gives_up, variables, cost=max(prices), kind=hazard.code)


def surer_ways(origin: Origin, judge: Judge, outcome: Outcome) -> list[Found]:
    """Remedies of hazards that only may strike, with which the launch starts and does not meet that hazard; where the
    memory of weights that are known may not do, what needs less of it."""
    request, found = origin.request, []
    known = {hazard.code for hazard in outcome.launch.hazards if hazard.may_break}
    for hazard in outcome.launch.hazards:
        for move in _remedies(origin.engine, request, hazard) if hazard.may_break else ():
            parts = parts_of(origin, (), move)
            after = judge.ask(with_parts(origin, parts))
            left = {each.code for each in after.launch.hazards if each.may_break}
            if after.starts and hazard.code not in left and left <= known:
                found.append(Found(parts, ((move, parts),), after))
    fit = outcome.fit
    if fit is not None and outcome.tight and "config.json" not in fit.weights_from:  # else the size is a guess already
        for move in origin.engine.room(request.given(), fit):
            parts = parts_of(origin, (), move)
            after = judge.ask(with_parts(origin, parts))
            if after.starts and not after.tight and after.fit is not None and after.fit.verdict == "fits":
                found.append(Found(parts, ((move, parts),), after))
    return found


def surer(origin: Origin, judge: Judge, found: Found) -> Found:
    """The offer with a remedy of each hazard that it may meet, where it passes with it and meets no other.

    A doubt may stay nevertheless: a remedy that was reported to help elsewhere is better than none."""
    for hazard in found.outcome.launch.hazards:
        request = with_parts(origin, found.parts)
        for move in _remedies(origin.engine, request, hazard) if hazard.may_break else ():
            parts = parts_of(origin, found.parts, move)
            after = judge.ask(with_parts(origin, parts))
            left = {each.code for each in after.launch.hazards if each.may_break}
            known = {each.code for each in found.outcome.launch.hazards if each.may_break}
            if judge.clean(after) and left <= known:
                own = tuple(part for part in parts if part not in found.parts)
                found = Found(parts, (*found.moves, (move, own)), after)
                break
    return found


def text_only(engine: Engine, request: Request, outcome: Outcome) -> list[Step]:
    """Ways out that are no matter of flags: packages, drivers, other releases, as the records have them."""
    from attnfit.hazards.catalogue import records_of
    from attnfit.hazards.words import meant, remedy_line

    found = []
    for hazard in outcome.breaking:
        record = records_of(engine.name).get(hazard.code)
        for remedy in meant(record, engine.name, request.release.version) if record is not None else ():
            line = remedy_line(remedy)
            if line in hazard.remedies and not (remedy.set or remedy.drop or remedy.variables):
                found.append(Step(line))
    return found
