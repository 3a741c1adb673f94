"""Editing a list of `vllm serve` flags, with the release's own parser table to say how many words a flag takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property

from attnfit.engines import Given, Piece
from attnfit.engines.vllm.flags import prepare
from attnfit.engines.vllm.flags.convert import EngineError
from attnfit.engines.vllm.flags.parse import Lenient
from attnfit.engines.vllm.flags.parser import ParserError
from attnfit.engines.vllm.flags.table import Flag, load_table
from attnfit.engines.vllm.releases import walked_as
from attnfit.errors import InputError


class Flags:
    """The flags of one launch, where each stands, and what the parser makes of them without judging."""

    def __init__(self, given: Given) -> None:
        self.given, self.argv = given, given.argv

    @cached_property
    def options(self) -> Mapping[str, Flag]:
        return _options(walked_as(self.given.book))

    @cached_property
    def _read(self) -> tuple[Mapping[str, object], list[str]]:
        table = load_table(walked_as(self.given.book))
        parser = Lenient(table, lambda flag, text: text)
        words, form = list(self.argv), self.given.form
        if form == "auto":
            form = "serve" if words and not words[0].startswith("-") else "module"
        try:
            ready = prepare.prepare(["serve", *words] if form == "serve" else words, parser.options, table.syntax)
            parser.parse(ready[1:] if form == "serve" else ready)
        except (EngineError, ParserError, InputError):
            pass  # what was read up to there
        return parser.values, parser.extras

    @property
    def values(self) -> Mapping[str, object]:
        """The text each flag was given, a --config file included."""
        return self._read[0]

    @cached_property
    def strays(self) -> list[int]:
        """Where words stand that the parser knows nothing to do with."""
        found: list[int] = []
        at = 0
        for extra in self._read[1]:
            here = next((i for i in range(at, len(self.argv)) if name_of(self.argv[i]) == name_of(extra)), None)
            if here is not None:
                found.append(here)
                at = here + 1
        return found

    @cached_property
    def spans(self) -> list[range]:
        """Each flag with its values. A word that starts with a dash and a digit is a value, not a flag."""
        starts = [i for i, w in enumerate(self.argv) if w.startswith("-") and not w[1:2].isdigit() and w != "-"]
        return [range(i, min(stop, i + 1 + self._takes(self.argv[i]))) for i, stop in _followed(starts, len(self.argv))]

    def _takes(self, word: str) -> int:
        """The most words that belong to the flag `word` behind it."""
        flag = self.options.get(name_of(word))
        if "=" in word or (flag is not None and flag.action in ("bool", "true", "false", "help", "version")):
            return 0
        if flag is None or flag.nargs is None or flag.nargs == "?":
            return 1
        return len(self.argv) if isinstance(flag.nargs, str) else flag.nargs

    def pieces(self) -> list[Piece]:
        """Every word, a flag together with its values."""
        found: list[Piece] = []
        at = 0
        for span in self.spans:
            found += [Piece("", (word,), False) for word in self.argv[at : span.start]]
            name = self.whole(self.argv[span.start])
            known = name.partition(".")[0] in self.options
            found.append(Piece(name, self.argv[span.start : span.stop], known))
            at = span.stop
        return found + [Piece("", (word,), False) for word in self.argv[at:]]

    def whole(self, word: str) -> str:
        """The flag that a word names: by the name of its setting, else by its longest name."""
        name = name_of(word)
        flag = self.options.get(name) or self.options.get(name.partition(".")[0])
        if flag is None or "." in name:
            return name
        no = name in flag.negative  # one that says no stays one
        own = f"--{flag.dest.replace('_', '-')}"
        names = [each for each in flag.options if (each in flag.negative) is no]
        return own if own in names else max(names, key=len)

    def span_of(self, *spellings: str) -> range | None:
        return next((span for span in self.spans if name_of(self.argv[span.start]) in spellings), None)

    def without(self, *spans: range) -> tuple[str, ...]:
        gone = {i for span in spans for i in span}
        return tuple(word for i, word in enumerate(self.argv) if i not in gone)

    def put(self, flag: str, value: str, *spellings: str) -> tuple[str, ...]:
        """The flags with `flag` set, where it stands and as it is spelt there, else at the end."""
        span = self.span_of(flag, *spellings)
        if span is None:
            return (*self.argv, flag, value)
        spelt, equals, _ = self.argv[span.start].partition("=")
        put = (f"{spelt}={value}",) if equals else (spelt, value)
        return (*self.argv[: span.start], *put, *self.argv[span.stop :])


@cache
def _options(release: str) -> Mapping[str, Flag]:
    return load_table(release).by_option()


def name_of(word: str) -> str:
    if not word.startswith("--"):
        return word.partition("=")[0] if word.startswith("-") else word
    return word.partition("=")[0].replace("_", "-")


def words(argv: Sequence[str], span: range) -> str:
    return " ".join(argv[span.start : span.stop])


def _followed(starts: list[int], end: int) -> zip[tuple[int, int]]:
    return zip(starts, [*starts, end][1:], strict=True)
