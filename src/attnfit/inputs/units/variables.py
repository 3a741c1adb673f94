"""`$NAME` and `${NAME}` in a command line, as systemd replaces them just before it starts the program."""

from __future__ import annotations

import re
from collections.abc import Mapping

from attnfit.inputs.units.words import split_relaxed

_CURLY = re.compile(r"(?s)\$\$|\$\{([^}]*)\}|\$\{.*")


def expand(word: str, variables: Mapping[str, str]) -> tuple[list[str], tuple[str, ...]]:
    """(the arguments that `word` becomes, names it asks for that are not set: those become nothing).

    `$NAME` is a variable only as a word of its own, and is split at spaces; `${NAME}` may stand anywhere and is not.
    """
    if word.startswith("$") and word[1:2] not in ("{", "$"):
        value = variables.get(word[1:])
        return (split_relaxed(value), ()) if value is not None else ([], (word[1:],))
    missing: list[str] = []

    def put(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        if match[1] is None:
            return match[0]  # never closed: the rest stays as it stands
        if match[1] not in variables:
            missing.append(match[1])
        return variables.get(match[1], "")

    return [_CURLY.sub(put, word)], tuple(missing)
