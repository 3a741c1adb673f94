"""From a whole command down to the server's own arguments, one wrapper at a time, remembering the way back up."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from attnfit.engines.entry import EntryPoints, entry_points
from attnfit.errors import UsageError
from attnfit.inputs import shell
from attnfit.inputs.container import container_option, gpu_request, of_service, run_at
from attnfit.inputs.layers import Layer, Unwrapped
from attnfit.inputs.options import ASSIGNMENT, dash_c, prelude, requirement, skip_options, skip_python_wrapper
from attnfit.inputs.starts import PYTHON, base_name, match_entry, nothing_started
from attnfit.inputs.wrappers import CLEANS_ENVIRONMENT, CONTAINERS, IMAGE_RUNNERS, OWN_ENVIRONMENT, SHELLS, WRAPPERS

MAX_NESTING = 8
MAX_COMMANDS = 100  # in one shell string
_FOR_INSIDE = re.compile(r"(?:APPTAINER|SINGULARITY)ENV_(\w+)")
_DEVICE = re.compile(r"nvidia\.com/gpu=(.+)")


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
        requirement(found, tables, word)
        assigned = ASSIGNMENT.fullmatch(word)
        if assigned:
            found.env[assigned[1]] = assigned[2]
            at += 1
            continue
        base = base_name(word)
        if (size := _entry(found, tables, words, at)) is not None:
            found.layers.append(Layer(before=tuple(words[: at + size])))
            found.argv = words[at + size :]
            return
        if base in SHELLS and (where := dash_c(words, at)) is not None:
            found.wrappers.append(base)
            return _shell_string(found, tables, tuple(words[:where]), words[where], tuple(words[where + 1 :]), depth)
        if base in CONTAINERS and (run := run_at(words, at)) is not None:
            found.wrappers.append(base)
            return _container(found, tables, words, at, run, depth)
        if base == "ssh":
            found.wrappers.append(base)
            return _ssh(found, tables, words, at, depth)
        if base in WRAPPERS:
            found.wrappers.append(base)
            start, at = at, skip_options(found, words, at, base)
            if base in OWN_ENVIRONMENT:
                _env_reset(found, base, words[start + 1 : at])
            elif base in IMAGE_RUNNERS:
                _into_image(found, base, words[start + 1 : at])
            seen_program = True
            continue
        if PYTHON.match(base) and (size := skip_python_wrapper(found, words, at)) is not None:
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


def _env_reset(found: Unwrapped, program: str, options: Sequence[str]) -> None:
    """What stands in front of sudo does not pass it, unless it is asked to keep the environment (its env_reset)."""
    kept: set[str] = set()
    for option in options:
        name, eq, value = option.partition("=")
        if name == "--preserve-env" and eq:
            kept |= set(value.split(","))
        elif name == "--preserve-env" or (program == "sudo" and re.fullmatch(r"-[A-Za-z]*E[A-Za-z]*", option)):
            return
    lost = [name for name in found.env if name not in kept]
    for name in lost:
        del found.env[name]
    if lost:
        found.notes.append(
            f"{', '.join(lost)} stands in front of {program}, which starts with an environment of its own; "
            f"taken as not set: write it behind {program}"
        )


def _into_image(found: Unwrapped, program: str, options: Sequence[str]) -> None:
    """What apptainer hands on: what stands in front of it, but where it cleans that; and what is meant for inside."""
    inside = {m[1]: value for name, value in found.env.items() if (m := _FOR_INSIDE.fullmatch(name))}
    for option, following in itertools.pairwise([*options, ""]):
        name, eq, value = option.partition("=")
        for each in (value if eq else following).split(",") if name == "--env" else ():
            if assigned := ASSIGNMENT.fullmatch(each):
                inside[assigned[1]] = assigned[2]
    if CLEANS_ENVIRONMENT & set(options):
        found.env = {name: value for name, value in found.env.items() if not _FOR_INSIDE.fullmatch(name)}
        _env_reset(found, program, ())
    found.env |= inside


def _entry(found: Unwrapped, tables: Sequence[EntryPoints], words: list[str], at: int) -> int | None:
    """How many words at `at` start a server, if they do."""
    match = match_entry(tables, words, at)
    if match is None:
        return None
    found.entry, found.form, size = match
    found.executable = None if words[at] == "-m" else words[at]
    return size


def _next_start(tables: Sequence[EntryPoints], words: list[str], at: int) -> int | None:
    for i in range(at, len(words)):
        base = base_name(words[i])
        if match_entry(tables, words, i) is not None:
            return i
        if base in SHELLS and dash_c(words, i) is not None:
            return i
        if base in CONTAINERS and run_at(words, i) is not None:
            return i
        if base in WRAPPERS and (words[i - 1] == "--" or not words[i - 1].startswith("-")):
            return i
        if any(t.requirement.match(words[i]) for t in tables):
            return i
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
    known = dict(found.env)
    last_error: UsageError | None = None
    parsed = shell.words(text, known)
    count = len(shell.segments(parsed))
    if count > MAX_COMMANDS:
        raise UsageError(f"the string holds {count} commands; give only the one that starts the server")
    for n in range(count):
        parsed = shell.words(text, known)  # again: earlier commands may have set variables
        segment, _ = shell.segments(parsed)[n]
        if prelude(found, segment, known):
            continue
        plain = [w.value for w in segment]
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
        start, end = segment[0].start, segment[-1].end
        whole = (text[:start], shell.redirections(parsed, text, start, end) + text[end:])
        found.layers = [*layers, Layer(before=before, after=after, text=whole, raw=raw), *inner.layers]
        names = sorted({n for w in segment for n in w.unset})
        if names:
            found.notes.append(f"{', '.join('$' + n for n in names)} is not set in the command; taken as it stands")
        for more, _ in shell.segments(parsed)[n + 1 :]:
            if _starts_server(tables, more):
                raise UsageError("the string starts more than one server; give the command of one at a time")
        return
    raise last_error or UsageError(f"the shell string holds no command; give `{tables[0].start} MODEL` inside it")


def _starts_server(tables: Sequence[EntryPoints], segment: list[shell.Word]) -> bool:
    """Whether one more command of a shell string starts a server as well."""
    words = [word.value for word in segment]
    if prelude(Unwrapped(), segment, {}) or _next_start(tables, words, 0) is None:
        return False
    try:
        _words(Unwrapped(), tables, words, 1)
    except UsageError:
        return False
    return True


def _ssh(found: Unwrapped, tables: Sequence[EntryPoints], words: list[str], at: int, depth: int) -> None:
    i = at + 1
    while i < len(words) and words[i].startswith("-"):
        i += 2 if words[i] in ("-i", "-p", "-l", "-o", "-F", "-J", "-L", "-R", "-W", "-b", "-c", "-e", "-m") else 1
    if i + 1 >= len(words):
        raise UsageError("ssh with no command starts no server; give the command it should run")
    found.remote = True
    found.env = {}  # what is set here does not reach the other machine
    found.notes.append(f"the server runs on {words[i]}; what is installed there is not known here")
    rest = words[i + 1 :]
    if len(rest) == 1 and re.search(r"\s", rest[0]):
        return _shell_string(found, tables, tuple(words[: i + 1]), rest[0], (), depth)
    found.layers.append(Layer(before=tuple(words[: i + 1])))
    return _words(found, tables, rest, depth + 1)


# ---- containers ------------------------------------------------------------------------------------------------


def _container(
    found: Unwrapped, tables: Sequence[EntryPoints], words: list[str], at: int, run: int, depth: int
) -> None:
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
        found.gpus = None if "all" in devices else tuple(devices)
    if i >= len(words):
        raise UsageError("docker run without an image; give the image and the server's arguments")
    image, rest = words[i], words[i + 1 :]
    found.image = image
    if words[run] == "exec":
        found.notes.append(f"runs in the container {image}; its release is not known here")
        found.layers.append(Layer(before=tuple(words[: i + 1])))
        return _words(found, tables, rest, depth + 1)
    service = of_service(words, at, run)
    if service:
        found.notes.append(f"runs in a container of the service {image}; its file and its release are not read here")
    table = None if service else _image(found, tables, image)
    if entrypoint:
        found.layers.append(Layer(before=tuple(words[: i + 1]), skip=1))
        return _words(found, tables, [entrypoint, *rest], depth + 1)
    found.layers.append(Layer(before=tuple(words[: i + 1])))
    if table is not None and table.image_form is not None:
        found.entry, found.form, found.argv = table, table.image_form, rest
        return None
    try:
        _words(found, tables, rest, depth + 1)
        if table is not None and found.entry is not table:
            found.image_release = None  # another engine's server, in this one's image
        return None
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
