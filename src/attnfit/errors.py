"""Everything attnfit raises on purpose. Each message ends with what to do next."""

from __future__ import annotations

from collections.abc import Iterable


class AttnfitError(Exception):
    """Base of all errors shown to the user as one sentence; never as a traceback."""

    exit_code = 2


class UsageError(AttnfitError):
    """The command line or a file the user named cannot be used as given."""


class InputError(AttnfitError):
    """A file the user named is missing, unreadable, or not what it should be."""


class UnknownAnswer(AttnfitError):
    """The question is sound but cannot be answered here (unknown release, gated repository, offline)."""

    exit_code = 3


def did_you_mean(word: str, valid: Iterable[str], *, cutoff: float = 0.6, beginning: bool = False) -> str:
    """`; did you mean 'x'?` or an empty string. beginning: of several close names, the one that begins like `word`."""
    import difflib  # only for those who misspelt

    close = difflib.get_close_matches(word, list(valid), n=5 if beginning else 1, cutoff=cutoff)
    if beginning:
        close.sort(key=lambda name: -sum(word.startswith(name[:n]) for n in range(1, len(name) + 1)))
    return f"; did you mean {close[0]!r}?" if close else ""
