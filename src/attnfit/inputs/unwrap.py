"""From a whole command down to the server's own arguments, one wrapper at a time, remembering the way back up."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from attnfit.engines.entry import EntryPoints, entry_points
from attnfit.errors import UsageError
from attnfit.inputs import shell
from attnfit.inputs.container import container_option, gpu_request, run_at
from attnfit.inputs.starts import PYTHON, base_name, match_entry, nothing_started, python_target
from attnfit.inputs.wrappers import CONTAINERS, MODULE_WRAPPERS, SHELLS, WRAPPERS

MAX_NESTING = 8
_ASSIGNMENT = re.compile(r"(?s)([A-Za-z_]\w*)=(.*)")
_DEVICE = re.compile(r"nvidia\.com/gpu=(.+)")


class Layer(msgspec.Struct, frozen=True):
    """How a list of words sits inside the one around it."""

    before: tuple[str, ...] = ()  # words in front
    after: tuple[str, ...] = ()
    skip: int = 0  # leading inner words that are not written (a container's --entrypoint)
    text: tuple[str, str] | None = None  # the inner words are one shell string: text before and after them
    raw: tuple[tuple[str, str], ...] = ()  # how that string writes a word

    def wrap(self, inner: Sequence[str]) -> list[str]:
        words = list(inner)[self.skip :]
        if self.text is not None:
            spelled = dict(self.raw)
            joined = " ".join(spelled.get(w) or shell.quote(w) for w in words)
            words = [self.text[0] + joined + self.text[1]]
        return [*self.before, *words, *self.after]


class Unwrapped:
    """What was met on the way."""

    def __init__(self) -> None:
        self.entry: EntryPoints
        self.form = ""
        self.argv: list[str] = []
        self.env: dict[str, str] = {}
        self.unset: list[str] = []
        self.image: str | None = None
        self.image_release: str | None = None
        self.required_release: str | None = None
        self.executable: str | None = None
        self.prefix: str | None = None
        self.conda_env: str | None = None
        self.gpus: str | None = None
        self.remote = False
        self.wrappers: list[str] = []
        self.notes: list[str] = []
        self.layers: list[Layer] = []


def unwrap(words: list[str]) -> Unwrapped:
    """Find the server in `words`. Raises UsageError."""
    found = Unwrapped()
    tables = entry_points()
    if len(words) == 1 and re.search(r"\s", words[0].strip()):
        _shell_string(found, tables, (), words[0], (), 0)
    else:
        _words(found, tables, words, 0)
    return found


def _words(found: Unwrapped, tables: Sequence[EntryPoints], words: list[str], depth: int) -> None:
    if depth > MAX_NESTING:
        raise UsageError(f"the command is wrapped more than {MAX_NESTING} times; give the inner one")
    at = 0
    seen_program = False
    while at < len(words):
        word = words[at]
        _requirement(found, tables, word)
        assigned = _ASSIGNMENT.fullmatch(word)
        if assigned:
            found.env[assigned[1]] = assigned[2]
            at += 1
            continue
        base = base_name(word)
        if (size := _entry(found, tables, words, at)) is not None:
            found.layers.append(Layer(before=tuple(words[: at + size])))
            found.argv = words[at + size :]
            return
        if base in SHELLS and (where := _dash_c(words, at)) is not None:
            found.wrappers.append(base)
            return _shell_string(found, tables, tuple(words[:where]), words[where], tuple(words[where + 1 :]), depth)
        if base in CONTAINERS and (run := run_at(words, at)) is not None:
            found.wrappers.append(base)
            return _container(found, tables, words, run, depth)
        if base == "ssh":
            found.wrappers.append(base)
            return _ssh(found, tables, words, at, depth)
        if base in WRAPPERS:
            found.wrappers.append(base)
            at = _options(found, words, at, base)
            seen_program = True
            continue
        if PYTHON.match(base) and (size := _python_wrapper(found, words, at)) is not None:
            at += size
            seen_program = True
            continue
        following = _next_start(tables, words, at + 1)
        if following is None:
            raise nothing_started(tables, words, at)
        if not seen_program:
            found.wrappers.append(base)
            found.notes.append(f"{base} in front of the server is not known; taken as a wrapper")
        seen_program = True
        at = following
    raise nothing_started(tables, words, 0)


def _entry(found: Unwrapped, tables: Sequence[EntryPoints], words: list[str], at: int) -> int | None:
    """How many words at `at` start a server, if they do."""
    match = match_entry(tables, words, at)
    if match is None:
        return None
    found.entry, found.form, size = match
    found.executable = None if words[at] == "-m" else words[at]
    return size


def _python_wrapper(found: Unwrapped, words: list[str], at: int) -> int | None:
    """`python -m torch.distributed.run ...`: how many words to skip."""
    i = python_target(words, at)
    if i is None or i + 1 >= len(words) or words[i] != "-m" or words[i + 1] not in MODULE_WRAPPERS:
        return None
    found.wrappers.append(words[i + 1])
    return _options(found, words, i + 1, MODULE_WRAPPERS[words[i + 1]]) - at


def _next_start(tables: Sequence[EntryPoints], words: list[str], at: int) -> int | None:
    for i in range(at, len(words)):
        base = base_name(words[i])
        if match_entry(tables, words, i) is not None:
            return i
        if base in SHELLS and _dash_c(words, i) is not None:
            return i
        if base in CONTAINERS and run_at(words, i) is not None:
            return i
        if base in WRAPPERS and not words[i - 1].startswith("-"):
            return i
        if any(t.requirement.match(words[i]) for t in tables):
            return i
    return None


def _requirement(found: Unwrapped, tables: Sequence[EntryPoints], word: str) -> None:
    for table in tables:
        match = table.requirement.match(word)
        if match:
            found.required_release = match[1]


# ---- wrappers --------------------------------------------------------------------------------------------------


def _options(found: Unwrapped, words: list[str], at: int, name: str) -> int:
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
        if left and not _ASSIGNMENT.fullmatch(word):
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
        _requirement(found, entry_points(), value)
    elif name in ("mpirun", "mpiexec", "systemd-run") and takes and (assigned := _ASSIGNMENT.fullmatch(value)):
        found.env[assigned[1]] = assigned[2]
    return at + (2 if takes else 1)


def _dash_c(words: list[str], at: int) -> int | None:
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


def _shell_string(
    found: Unwrapped,
    tables: Sequence[EntryPoints],
    before: tuple[str, ...],
    text: str,
    after: tuple[str, ...],
    depth: int,
) -> None:
    """`bash -c "..."`, or a command given as one string: the simple command in it that starts the server."""
    parsed = shell.words(text, found.env)
    known = dict(found.env)
    last_error: UsageError | None = None
    for segment, _ in shell.segments(parsed):
        plain = [w.value for w in segment]
        if _prelude(found, segment, known):
            parsed_again = shell.segments(shell.words(text, known))
            segment = next((s for s, _ in parsed_again if s[0].start == segment[0].start), segment)
            continue
        again = next(
            (s for s, _ in shell.segments(shell.words(text, known)) if s[0].start == segment[0].start), segment
        )
        segment, plain = again, [w.value for w in again]
        inner = Unwrapped()
        inner.env, inner.prefix, inner.notes = dict(known), found.prefix, list(found.notes)
        inner.conda_env, inner.image, inner.image_release = found.conda_env, found.image, found.image_release
        inner.gpus, inner.remote, inner.wrappers = found.gpus, found.remote, list(found.wrappers)
        inner.required_release, inner.unset = found.required_release, list(found.unset)
        try:
            _words(inner, tables, plain, depth + 1)
        except UsageError as e:
            last_error = e
            continue
        layers = found.layers
        found.__dict__.update(inner.__dict__)
        raw = tuple((w.value, w.raw) for w in segment)
        whole = (text[: segment[0].start], text[segment[-1].end :])
        found.layers = [*layers, Layer(before=before, after=after, text=whole, raw=raw), *inner.layers]
        names = sorted({n for w in segment for n in w.unset})
        if names:
            found.notes.append(f"{', '.join('$' + n for n in names)} is not set in the command; taken as it stands")
        return
    raise last_error or UsageError("the shell string holds no command; give `vllm serve MODEL` inside it")


def _prelude(found: Unwrapped, segment: list[shell.Word], known: dict[str, str]) -> bool:
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


def _ssh(found: Unwrapped, tables: Sequence[EntryPoints], words: list[str], at: int, depth: int) -> None:
    i = at + 1
    while i < len(words) and words[i].startswith("-"):
        i += 2 if words[i] in ("-i", "-p", "-l", "-o", "-F", "-J", "-L", "-R", "-W", "-b", "-c", "-e", "-m") else 1
    if i + 1 >= len(words):
        raise UsageError("ssh with no command starts no server; give the command it should run")
    found.remote = True
    found.notes.append(f"the server runs on {words[i]}; what is installed there is not known here")
    rest = words[i + 1 :]
    if len(rest) == 1 and re.search(r"\s", rest[0]):
        return _shell_string(found, tables, tuple(words[: i + 1]), rest[0], (), depth)
    found.layers.append(Layer(before=tuple(words[: i + 1])))
    return _words(found, tables, rest, depth + 1)


# ---- containers ------------------------------------------------------------------------------------------------


def _container(found: Unwrapped, tables: Sequence[EntryPoints], words: list[str], run: int, depth: int) -> None:
    entrypoint: str | None = None
    outer, found.env = found.env, {}  # variables of the client do not reach the container
    i = run + 1
    devices: list[str] = []
    while i < len(words) and words[i].startswith("-"):
        key, value, step = container_option(words, i)
        i += step
        if key == "--entrypoint":
            entrypoint = value
        elif key in ("-e", "--env"):
            name, eq, text = value.partition("=")
            if eq:
                found.env[name] = text
            elif name in outer:
                found.env[name] = outer[name]
            else:
                found.notes.append(f"${name} is handed to the container; its value is not known here")
        elif key == "--env-file":
            found.notes.append(f"--env-file {value}: what it sets is not read")
        elif key == "--gpus":
            found.gpus = gpu_request(value)
        elif key == "--device" and (device := _DEVICE.search(value)):
            devices.append(device[1])
    if devices:
        found.gpus = "all" if "all" in devices else ",".join(devices)
    if i >= len(words):
        raise UsageError("docker run without an image; give the image and the server's arguments")
    image, rest = words[i], words[i + 1 :]
    found.image = image
    if words[run] == "exec":
        found.notes.append(f"runs in the container {image}; its release is not known here")
        found.layers.append(Layer(before=tuple(words[: i + 1])))
        return _words(found, tables, rest, depth + 1)
    table = _image(found, tables, image)
    if entrypoint:
        found.layers.append(Layer(before=tuple(words[: i + 1]), skip=1))
        return _words(found, tables, [entrypoint, *rest], depth + 1)
    found.layers.append(Layer(before=tuple(words[: i + 1])))
    if table is not None and entrypoint is None:
        found.entry, found.form, found.argv = table, table.image_form, rest
        return None
    try:
        return _words(found, tables, rest, depth + 1)
    except UsageError:
        if rest and _next_start(tables, rest, 0) is not None:
            raise
        raise UsageError(
            f"the entry point of the image {image} is not known; give the server's command after it, or --entrypoint"
        ) from None


def _image(found: Unwrapped, tables: Sequence[EntryPoints], image: str) -> EntryPoints | None:
    name, _, _ = image.partition("@")
    path, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        path, tag = name, ""
    for table in tables:
        if table.images.search(path):
            release = table.image_tag.match(tag)
            if release:
                found.image_release = release[1]
            else:
                found.notes.append(f"the tag of the image {image} names no release")
            return table
    return None
