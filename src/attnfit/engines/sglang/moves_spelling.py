"""Words that the release's parser does not take, put as they were probably meant: read off its own message."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from packaging.version import Version

from attnfit.engines import Cost, Move, Piece
from attnfit.engines.move import close
from attnfit.engines.sglang import words
from attnfit.engines.sglang.moves_costs import gives_up, price
from attnfit.inputs.secrets import is_secret

OPTIONS = Path(__file__).with_name("options.json")

_STRAY = re.compile(r"unrecognized arguments: (.+)", re.DOTALL)
_AMBIGUOUS = re.compile(r"ambiguous option: (\S+) could match (.+)")
_CHOICE = re.compile(r"argument (\S+): invalid choice: '?([^'\s]+)'? \(choose from (.+)\)", re.DOTALL)


@functools.cache
def options(version: str) -> tuple[str, ...]:
    """Every option of a release, with its aliases (options.json: the first and the last release that has it)."""
    table = msgspec.json.decode(OPTIONS.read_bytes(), type=dict[str, tuple[str, str]])
    this = Version(version)
    return tuple(name for name, (first, last) in table.items() if Version(first) <= this <= Version(last))


def pieces(argv: Sequence[str], version: str) -> list[Piece]:
    """Every word, a flag together with its values."""
    spans, known = words.spans(argv), {words.full(name) for name in options(version)}
    front = argv[: spans[0].start] if spans else argv
    flags = [Piece(span.flag, tuple(argv[span.start : span.stop]), span.flag in known) for span in spans]
    return [*(Piece("", (word,), False) for word in front), *flags]


def spelling(argv: Sequence[str], version: str, message: str) -> Iterator[Move]:
    """Changes of the words that the message names."""
    if match := _AMBIGUOUS.search(message):
        meant = match[2].replace(",", " ").split()
        for name in [name for name in meant if name == f"{match[1]}-size"] or meant:
            yield _renamed(argv, {match[1]: name})
    if match := _CHOICE.search(message):
        flag, given = words.full(match[1].partition("/")[0]), match[2]
        names = [name.strip(" '\"") for name in match[3].split(",")]
        for name in _close(given, names):
            yield Move(f"{flag} {name} instead of {given}", words.put(argv, flag, name), cost=Cost.NOTHING)
        yield Move(f"drop {words.shown(argv, flag)}", words.without(argv, flag), cost=price(flag))
    if match := _STRAY.search(message):
        yield from _strays(argv, version, match[1].split())


def _strays(argv: Sequence[str], version: str, found: Sequence[str]) -> Iterator[Move]:
    flags = [word.partition("=")[0] for word in found if words.is_flag(word)]
    known = [name for name in options(version) if not is_secret(name)]
    right = {flag: near[0] for flag in flags if not is_secret(flag) and (near := _close(flag, known))}
    if right:
        yield _renamed(argv, right)
    rest = [flag for flag in flags if flag not in right]
    if rest:
        text = f"drop {', '.join(rest)}, which this release does not know"
        renamed = _renamed(argv, right) if right else None
        both = text if renamed is None else f"{renamed.text}, and {text}"
        lost = "; ".join(gives_up(flag) or f"what {flag} asks for" for flag in rest)
        yield Move(
            both, words.without(argv if renamed is None else renamed.argv, *rest), lost, whole=renamed is not None
        )


def _renamed(argv: Sequence[str], names: dict[str, str]) -> Move:
    """The words with flags spelt otherwise, their values as they stand."""
    changed = []
    for word in argv:
        name, equals, value = word.partition("=")
        changed.append(names.get(name, name) + equals + value if words.is_flag(word) else word)
    text = ", ".join(f"{new} instead of {old}" for old, new in names.items())
    return Move(text, tuple(changed), cost=Cost.NOTHING, whole=True)


def _close(word: str, names: Sequence[str]) -> list[str]:
    """Names that were probably meant: underscores for dashes, capitals, a letter or two."""
    plain = word.lower().replace("_", "-") if word.startswith("-") else word.lower()
    if plain in names and plain != word:
        return [plain]
    return close(plain, names, 0.8)
