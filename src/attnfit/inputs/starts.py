"""Does a server start here? Matching words against the entry points of the engines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from attnfit.engines.entry import EntryPoints
from attnfit.errors import UsageError, did_you_mean
from attnfit.inputs.wrappers import CONTAINERS, PYTHON_VALUES, SHELLS

PYTHON = re.compile(r"^(?:python|pypy)(?:\d+(?:\.\d+)*)?$")

_PINNED = re.compile(r"(?:\[[^\]]*\])?@[\w.]+$")  # `uvx NAME@VERSION`


def base_name(word: str) -> str:
    return word.rstrip("/").rpartition("/")[2]


def match_entry(tables: Sequence[EntryPoints], words: Sequence[str], at: int) -> tuple[EntryPoints, str, int] | None:
    """(engine's table, form, number of words) if a server starts at `words[at]`."""
    base = _PINNED.sub("", base_name(words[at]))
    for table in tables:
        if base in table.programs:
            return _with_subcommand(table, table.programs[base], words, at + 1, at)
        for script, form in table.scripts.items():
            if words[at].endswith(script):
                return table, form, 1
        if words[at] != "-m" and not PYTHON.match(base):
            continue
        # a bare `-m` is what torchrun and its like leave
        i = at if words[at] == "-m" else python_target(words, at)
        if i is None:
            continue
        if words[i] == "-m" and i + 1 < len(words) and words[i + 1] in table.modules:
            return _with_subcommand(table, table.modules[words[i + 1]], words, i + 2, at)
        if words[i].startswith("-m") and words[i][2:] in table.modules:
            return _with_subcommand(table, table.modules[words[i][2:]], words, i + 1, at)
        if base_name(words[i]) in table.programs:
            return _with_subcommand(table, table.programs[base_name(words[i])], words, i + 1, at)
        for script, form in table.scripts.items():
            if words[i].endswith(script):
                return table, form, i + 1 - at
    return None


def _with_subcommand(
    table: EntryPoints, subcommands: Mapping[str, str], words: Sequence[str], i: int, at: int
) -> tuple[EntryPoints, str, int] | None:
    if i < len(words) and words[i] in subcommands:
        return table, subcommands[words[i]], i + 1 - at
    if "" in subcommands:
        return table, subcommands[""], i - at
    return None


def python_target(words: Sequence[str], at: int) -> int | None:
    """Index of `-m`, `-mNAME` or the script after a python executable and its switches."""
    i = at + 1
    while i < len(words):
        word = words[i]
        if not word.startswith("-") or word.startswith("-m"):
            return i
        if word.startswith("-c"):
            return None
        if not word.startswith("--") and word.endswith("m") and set(word[1:-1]) <= set("bBdEhiIOqsSuvVx"):
            return None  # `-um module` is legal but nobody writes it
        i += 2 if word in PYTHON_VALUES else 1
    return None


def nothing_started(tables: Sequence[EntryPoints], words: list[str], at: int) -> UsageError:
    first = words[at] if at < len(words) else ""
    starts = [f"{p} {s}".strip() for t in tables for p, subs in t.programs.items() for s in subs]
    for table in tables:
        for i, word in enumerate(words):
            subs = table.programs.get(base_name(word))
            if subs and i + 1 < len(words):
                hint = did_you_mean(words[i + 1], subs)
                return UsageError(
                    f"`{base_name(word)} {words[i + 1][:60]}` starts no server{hint or f'; give `{starts[0]} MODEL`'}"
                )
            if subs:
                return UsageError(f"`{base_name(word)}` alone starts no server; give `{starts[0]} MODEL`")
    base = base_name(first)
    if base in SHELLS:
        return UsageError(f"{first} runs a script, which is not read; give the command inside it, or {base} -c '...'")
    if base in CONTAINERS:
        return UsageError(f"only `{base} run IMAGE ...` is understood; give that, or the command inside the container")
    names = {p for t in tables for p in t.programs}
    shown = first if len(first) <= 60 else first[:57] + "..."
    return UsageError(f"no server is started by {shown!r}{did_you_mean(base, names)}; expected `{starts[0]} MODEL`")
