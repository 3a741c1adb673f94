"""Past the options of a wrapper, keeping what they say: variables, environments, releases."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnfit.engines.entry import EntryPoints, entry_points
from attnfit.errors import UsageError
from attnfit.inputs import shell
from attnfit.inputs.layers import Unwrapped
from attnfit.inputs.starts import python_target
from attnfit.inputs.wrappers import MODULE_WRAPPERS, WRAPPERS

ASSIGNMENT = re.compile(r"(?s)([A-Za-z_]\w*)=(.*)")


def requirement(found: Unwrapped, tables: Sequence[EntryPoints], word: str) -> None:
    for table in tables:
        match = table.requirement.match(word)
        if match:
            found.required_release = match[1]


def skip_options(found: Unwrapped, words: list[str], at: int, name: str) -> int:
    """Past the wrapper's own options and words."""
    wrapper = WRAPPERS[name]
    left = wrapper.positional
    at += 1
    pinned = any(w in ("-c", "--cpu-list") or w.startswith("--cpu-list=") for w in words[at : at + 3])
    if name == "taskset" and pinned and "-c" in words[at : at + 3]:
        left = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            at += 1
            if not left:
                break
            continue
        if word == "-m" and wrapper.runs_python:
            break
        if word.startswith("-") and word != "-":
            at = _option(found, words, at, name, wrapper.values)
            continue
        if name in (
            "uv",
            "pipx",
            "poetry",
            "pdm",
            "hatch",
            "pixi",
            "rye",
            "pipenv",
            "conda",
            "mamba",
            "micromamba",
            "apptainer",
            "singularity",
            "nsys",
            "py-spy",
            "ray",
            "accelerate",
            "coverage",
            "direnv",
        ) and word in ("run", "tool", "exec", "profile", "record", "launch", "job", "submit", "shell", "x"):
            at += 1
            continue
        if left and not ASSIGNMENT.fullmatch(word):
            left -= 1
            at += 1
            continue
        break
    return at


def _option(found: Unwrapped, words: list[str], at: int, name: str, values: frozenset[str]) -> int:
    word = words[at]
    key, eq, value = word.partition("=")
    takes = key in values and not eq
    if takes:
        value = words[at + 1] if at + 1 < len(words) else ""
    if name == "env" and key in ("-u", "--unset"):
        found.unset.append(value)
        found.env.pop(value, None)
    elif name == "env" and key in ("-i", "-", "--ignore-environment"):
        found.env.clear()
        found.notes.append("env -i: the server starts with the command's own variables only")
    elif name == "env" and key in ("-S", "--split-string"):
        raise UsageError("env -S splits a string itself; write its words out")
    elif name in ("conda", "mamba", "micromamba") and key in ("-n", "--name"):
        found.conda_env = value
    elif name in ("conda", "mamba", "micromamba") and key in ("-p", "--prefix"):
        found.prefix = value
    elif name == "uv" and key in ("--project", "--directory"):
        found.prefix = value.rstrip("/") + "/.venv"
    elif name in ("uv", "uvx", "pipx") and value:
        requirement(found, entry_points(), value)
        if key == "--with":
            found.beside += [re.split(r"[^\w.-]", each.strip(), maxsplit=1)[0].lower() for each in value.split(",")]
    elif name in ("mpirun", "mpiexec", "systemd-run") and takes and (assigned := ASSIGNMENT.fullmatch(value)):
        found.env[assigned[1]] = assigned[2]
    return at + (2 if takes else 1)


def dash_c(words: list[str], at: int) -> int | None:
    """Index of the string after `-c` (also `-lc`, `-euxo pipefail -c`)."""
    i = at + 1
    while i < len(words):
        word = words[i]
        if not word.startswith(("-", "+")) or word == "--":
            return None
        if not word.startswith("--") and word.endswith("c") and i + 1 < len(words):
            return i + 1
        i += 2 if word in ("-o", "+o", "--rcfile", "--init-file") or re.fullmatch(r"-[a-z]*o", word) else 1
    return None


def skip_python_wrapper(found: Unwrapped, words: list[str], at: int) -> int | None:
    """`python -m torch.distributed.run ...`: how many words to skip."""
    i = python_target(words, at)
    if i is None or i + 1 >= len(words) or words[i] != "-m" or words[i + 1] not in MODULE_WRAPPERS:
        return None
    found.wrappers.append(words[i + 1])
    return skip_options(found, words, i + 1, MODULE_WRAPPERS[words[i + 1]]) - at


def prelude(found: Unwrapped, segment: list[shell.Word], known: dict[str, str]) -> bool:
    """`export A=b`, `A=b`, `source venv/bin/activate`, `cd x`, `set -e`: what the commands after it inherit."""
    first = segment[0].value
    if all(w.assignment for w in segment):
        for word in segment:
            name, _, value = word.value.partition("=")
            known[name] = value
        return True
    if first in ("export", "declare", "typeset", "readonly"):
        for word in segment[1:]:
            if word.assignment:
                name, _, value = word.value.partition("=")
                known[name] = value
        return True
    if first == "unset":
        for word in segment[1:]:
            known.pop(word.value, None)
            found.unset.append(word.value)
        return True
    if first in ("source", ".") and len(segment) > 1:
        path = segment[1].value
        if path.endswith("/bin/activate"):
            found.prefix = path.removesuffix("/bin/activate") or "/"
        else:
            found.notes.append(f"{path} is sourced first; what it sets is not known here")
        return True
    if first == "conda" and len(segment) > 2 and segment[1].value == "activate":
        found.conda_env = segment[2].value
        return True
    if first == "cd":
        found.notes.append(
            f"the command changes to {' '.join(w.value for w in segment[1:]) or '~'} first; "
            "relative paths in it are read from here"
        )
        return True
    return first in ("set", "ulimit", "umask", "module", "ml", "echo", "sleep", "true", ":", "trap", "mkdir", "wait")
