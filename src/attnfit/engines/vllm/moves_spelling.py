"""Words of a launch that its parser does not know, spelt as they were probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from attnfit.engines import Cost, Move
from attnfit.engines.move import close
from attnfit.engines.vllm.moves_flags import Flags, name_of
from attnfit.inputs.secrets import is_secret

_DASHES = "-\u2010\u2011\u2012\u2013\u2014\u2015\u2212"  # what word processors and chats make of a hyphen
_GLUED = re.compile(r"-([A-Za-z]+)=?(\d+)")  # -tp8
_SIZE = re.compile("tp|pp|dp|dcp|pcp|parallel")  # that a word of it begins with
_NO_FLAG = "the words that belong to no flag"


def spelling(flags: Flags) -> Iterator[Move]:
    """Every misspelt flag put right at once; then also without the words that belong to no flag."""
    right = {i: put for i in flags.strays if (put := _meant(flags, i)) is not None}
    loose = [
        i for i in flags.strays if not flags.argv[i].startswith(tuple(_DASHES)) and i - 1 not in {*right, *_odd(flags)}
    ]
    if 0 in loose:  # the model, beside another one that --model names: which is meant is not ours to say
        loose = []
    put_right = ", ".join(f"{_shown(new)} instead of {_shown((flags.argv[i],))}" for i, new in right.items())
    if right:
        yield Move(put_right, _applied(flags, right, []), cost=Cost.NOTHING, whole=True)
    if loose:
        text = f"{put_right}, and drop {_NO_FLAG}" if right else f"drop {_NO_FLAG}"
        yield Move(text, _applied(flags, right, loose), cost=Cost.NOTHING + 1)


def misspelt(flags: Flags) -> Mapping[int, str]:
    """Where misspelt flags stand, and what each was meant to be; "" where that is not clear."""
    found = {i: _meant(flags, i) for i in _odd(flags)}
    return {i: "" if meant is None else name_of(meant[0]) for i, meant in found.items()}


def like_a_size(word: str) -> bool:
    """Whether a flag nobody knows may be one that says how many GPUs share the model."""
    return any(_SIZE.match(part) for part in word.lstrip(_DASHES).replace("_", "-").split("-"))


def _odd(flags: Flags) -> set[int]:
    return {i for i in flags.strays if flags.argv[i].startswith(tuple(_DASHES))}


def _meant(flags: Flags, at: int) -> tuple[str, ...] | None:
    """The words that `argv[at]` was meant to be; None where that is not clear."""
    word = flags.argv[at]
    if not word.startswith(tuple(_DASHES)):
        return None
    if (glued := _GLUED.fullmatch(word)) and f"-{glued[1]}" in flags.options:
        return f"-{glued[1]}", glued[2]
    name, equals, value = word.partition("=")
    bare = name.lstrip(_DASHES).replace("_", "-")
    found = next((o for o in (f"--{bare}", f"-{bare}", f"--{bare}".lower()) if o in flags.options), None)
    if found is None:
        short = not name.startswith("--") and len(bare) <= 4
        known = {o.lstrip("-"): o for o in flags.options if o.startswith("--") != short}
        near = close(bare, known, 0.75)
        if not near or (short and len(near) > 1):
            return None
        found = known[near[0]]
    if is_secret(name) != is_secret(found):
        return None
    return (found + equals + value,)


def _applied(flags: Flags, right: dict[int, tuple[str, ...]], loose: list[int]) -> tuple[str, ...]:
    return tuple(w for i, word in enumerate(flags.argv) if i not in loose for w in right.get(i, (word,)))


def _shown(words: tuple[str, ...]) -> str:
    """Names only: what stands behind `=` may be a key."""
    return " ".join([name_of(words[0]) if "=" in words[0] else words[0].replace("_", "_"), *words[1:]])
