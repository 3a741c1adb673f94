"""Changes of a launch as atomic parts: what two launches differ in, and a launch with some of those parts.

Parts are always those of the launch as it was given. So two ways to one launch are one, and any part of an offer can be
taken back to see whether it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

import msgspec

from attnfit.decide import Request
from attnfit.engines import Engine, Given, Move, Piece, Release
from attnfit.engines.move import close
from attnfit.inputs.command import Command


class Part(msgspec.Struct, frozen=True):
    """One thing that is changed: a flag, a word, a variable, a package or the release."""

    at: int = -1  # of the pieces given, those from `at` to `stop` ...
    stop: int = -1
    put: tuple[tuple[str, ...], ...] = ()  # ... become these
    variable: str = ""
    value: str | None = None  # of the variable; None takes it away
    gpus: int | None = None  # that the server sees then
    installs: str = ""
    env: tuple[tuple[str, bool], ...] = ()
    release: str = ""


Parts = tuple[Part, ...]


class Origin(msgspec.Struct, frozen=True):
    """A launch as it was given, cut into pieces once."""

    engine: Engine
    request: Request
    pieces: tuple[Piece, ...]
    releases: dict[str, Release]  # others that were looked at
    command: Command | None = None  # what it was written in

    def pieces_of(self, argv: Sequence[str]) -> tuple[Piece, ...]:
        return tuple(self.engine.pieces(given_of(self.request, argv)))


def start(engine: Engine, request: Request, command: Command | None = None) -> Origin:
    return Origin(engine, request, tuple(engine.pieces(request.given())), {}, command)


def given_of(request: Request, argv: Sequence[str]) -> Given:
    return request.given()._replace(argv=tuple(argv))


def parts_of(origin: Origin, before: Parts, move: Move) -> Parts:
    """The parts of a launch that had `before` already, after one more move."""
    variables = {part.variable: part for part in before if part.variable}
    for name, value in move.variables.items():
        if origin.request.variables.get(name) == value:
            variables.pop(name, None)
        else:
            variables[name] = Part(variable=name, value=value, gpus=move.gpus)
    installs = {part.installs: part for part in before if part.installs}
    if move.installs:
        installs[move.installs] = Part(installs=move.installs, env=tuple(sorted(move.env.items())))
    release = tuple(part for part in before if part.release)
    words = _words(origin.pieces, origin.pieces_of(move.argv))
    return (*release, *installs.values(), *variables.values(), *words)


def with_parts(origin: Origin, parts: Parts) -> Request:
    """The launch with those parts changed, and no others."""
    request = origin.request
    argv = _put(origin.pieces, [part for part in parts if part.at >= 0])
    variables = dict(request.variables)
    env, counted, release = dict(request.env or {}), request.counted, request.release
    for part in parts:
        if part.release:
            release = origin.releases[part.release]
            env = {name: said for name, said in request.stated.items() if name in release.facts()}
    for part in parts:
        if part.variable and part.value is None:
            variables.pop(part.variable, None)
        elif part.variable:
            variables[part.variable] = str(part.value)
        if part.gpus is not None and counted is not None:
            counted = part.gpus
        env.update(part.env)
    return msgspec.structs.replace(
        request, argv=argv, variables=variables, env=env, counted=counted, release=release, tried=True
    )


def _put(pieces: tuple[Piece, ...], words: list[Part]) -> tuple[str, ...]:
    out: list[str] = []
    at = 0
    for part in sorted(words, key=lambda part: (part.at, part.stop)):
        for piece in pieces[at : part.at]:
            out += piece.words
        for group in part.put:
            out += group
        at = max(at, part.stop)
    for piece in pieces[at:]:
        out += piece.words
    return tuple(out)


def _words(old: tuple[Piece, ...], new: tuple[Piece, ...]) -> Iterator[Part]:
    """Where two lists of pieces differ, one flag at a time: one that goes here and comes back there is one change."""
    before, after = [p.words for p in old], [p.words for p in new]
    parts = [
        part
        for tag, i, j, k, m in SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        if tag != "equal"
        for part in _block(old, new, range(i, j), range(k, m))
    ]
    gone = {old[part.at].flag: part for part in parts if part.stop == part.at + 1 and not part.put}
    flags = {piece.words: piece.flag for piece in new}
    for part in [part for part in parts if part.at == part.stop]:
        left = gone.pop(flags[part.put[0]], None) if flags[part.put[0]] else None
        if left is not None:
            parts[parts.index(left)] = Part(at=left.at, stop=left.stop, put=part.put)
            parts.remove(part)
    yield from parts


def _block(old: tuple[Piece, ...], new: tuple[Piece, ...], gone: range, come: range) -> Iterator[Part]:
    """Pieces in the place of others: those of one flag belong together; words nobody knows become what was meant."""
    left = list(come)
    pairs: dict[int, int] = {}
    for i in gone:
        match = next((k for k in left if new[k].flag and new[k].flag == old[i].flag), None)
        if match is not None:
            pairs[i] = match
            left.remove(match)
    odd = [i for i in gone if i not in pairs and not old[i].known]
    whole: Part | None = None
    alike = _alike([old[i] for i in odd], [new[k] for k in left])
    if alike and len(odd) == len(left):
        pairs |= dict(zip(odd, left, strict=True))
        left = []
    elif alike and odd == list(range(odd[0], odd[-1] + 1)):  # -tp8 becomes -tp 8
        whole = Part(at=odd[0], stop=odd[-1] + 1, put=tuple(new[k].words for k in left))
        left = []
    if whole is not None:
        yield whole
    for k in list(left):  # of several that nobody knows some go, and some were misspelt
        match = next((i for i in odd if i not in pairs and _alike([old[i]], [new[k]])), None)
        if match is not None and whole is None:
            pairs[match] = k
            left.remove(k)
    alone = [i for i in gone if i not in pairs and not (whole is not None and i in odd)]
    for i in gone:
        if i in pairs:
            yield Part(at=i, stop=i + 1, put=(new[pairs[i]].words,))
        elif i in alone:
            yield Part(at=i, stop=i + 1)
    for k in left:
        yield Part(at=gone.stop, stop=gone.stop, put=(new[k].words,))


def _alike(old: Sequence[Piece], new: Sequence[Piece]) -> bool:
    """Whether words are others put right, and not some that go and some that come."""
    if not old or not new:
        return False
    before, after = (" ".join(word for piece in pieces for word in piece.words) for pieces in (old, new))
    if SequenceMatcher(None, before, after, autojunk=False).ratio() > 0.7:
        return True
    names = [pieces[0].flag.lstrip("-").replace("_", "-") for pieces in (old, new)]
    return all(names) and bool(close(names[0], names[1:], 0.6))
