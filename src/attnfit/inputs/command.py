"""Reading a launch command in any form people use, and writing it back in the same form.

    parse_command(["CUDA_VISIBLE_DEVICES=0,1", "PROGRAM", "serve", "./m", "-tp", "2"])
    parse_command("docker run --gpus all ORG/IMAGE:v0.16.0 --model ./m")

Nothing is run. What engine is started, and how, comes from the table in `attnfit.engines.entry`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from attnfit.engines.entry import entry_of
from attnfit.errors import UsageError
from attnfit.inputs import secrets, shell
from attnfit.inputs.layers import Layer, Unwrapped
from attnfit.inputs.unwrap import unwrap

MAX_CHARS = 4 << 20


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A launch command, understood. Words are as the server's process would get them."""

    engine: str  # its name, as in engines.ENGINES
    form: str  # which of the engine's parsers reads `argv`: "serve" | "module"
    argv: tuple[str, ...]  # the server's own arguments, after the subcommand
    model: str | None  # as the command names it; None: not named, or only inside a --config file
    env: dict[str, str]  # variables the command sets for the server
    unset: tuple[str, ...] = ()  # variables it takes away (`env -u X`)
    image: str | None = None  # container image, tag included
    image_release: str | None = None  # the release its tag names
    required_release: str | None = None  # from `uv run --with NAME==X` and the like
    beside: tuple[str, ...] = ()  # distributions that it demands in the same environment, by name
    executable: str | None = None  # program or interpreter that starts the server, as written
    prefix: str | None = None  # environment the path of the executable, VIRTUAL_ENV or `activate` points into
    conda_env: str | None = None  # `conda run -n NAME`
    wrappers: tuple[str, ...] = ()  # programs in front, outermost first
    visible_gpus: tuple[str, ...] | None = None  # CUDA_VISIBLE_DEVICES, or --gpus device=...
    gpu_count: int | None = None  # as far as the command says
    files_here: bool = True  # False: paths in it are those of a container or another machine
    notes: tuple[str, ...] = ()
    original: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()

    def render(self, argv: Sequence[str]) -> list[str]:
        """The whole command with `argv` in place of the server's arguments, wrappers and quoting kept.

        `render(self.argv)` is the command as it was given. One word comes back where one string was given.
        """
        if tuple(argv) == self.argv:
            return list(self.original)
        inner = list(argv)
        for layer in reversed(self.layers):
            inner = layer.wrap(inner)
        return inner

    def display(self, argv: Sequence[str] | None = None) -> str:
        """`render` as one line for people, keys and tokens shown as $NAME."""
        return secrets.line(self.render(self.argv if argv is None else argv))


def parse_command(command: Sequence[str] | str) -> Command:
    """Understand a launch command given as words, or as one string.

    Raises UsageError, one sentence with what to do, for what starts no engine we know and for what cannot be read
    without running it.
    """
    given = [command] if isinstance(command, str) else list(command)
    if not given or not any(isinstance(w, str) and w.strip() for w in given):
        raise UsageError(f"no command: give the launch command, for example `{entry_of().start} MODEL`")
    for word in given:
        if not isinstance(word, str):
            raise UsageError(f"a command is a list of strings, not {type(word).__name__}")
        if "\0" in word:
            raise UsageError("the command holds a NUL byte; it cannot be run like that")
    if sum(map(len, given)) > MAX_CHARS:
        raise UsageError(f"the command is longer than {MAX_CHARS >> 20} MiB; give large values in files")
    found = unwrap(given)
    argv = tuple(found.argv)
    visible, count = _gpus(found)
    return Command(
        engine=found.entry.engine,
        form=found.form,
        argv=argv,
        model=_model(argv, found),
        env=found.env,
        unset=tuple(found.unset),
        image=found.image,
        image_release=found.image_release,
        required_release=found.required_release,
        beside=tuple(found.beside),
        executable=found.executable,
        prefix=_prefix(found),
        conda_env=found.conda_env,
        wrappers=tuple(found.wrappers),
        visible_gpus=visible,
        gpu_count=count,
        files_here=found.image is None and not found.remote,
        notes=tuple(found.notes),
        original=tuple(given),
        layers=tuple(found.layers),
    )


def _model(argv: Sequence[str], found: Unwrapped) -> str | None:
    if found.form != "module" and argv and argv[0] and not argv[0].startswith("-"):
        return argv[0]
    chosen = None
    for i, word in enumerate(argv):
        if word == "--":
            break
        for option in found.entry.model_options:
            if word == option and i + 1 < len(argv):
                chosen = argv[i + 1]
            elif word.startswith(option + "="):
                chosen = word[len(option) + 1 :]
    return chosen or (found.entry.find_model(argv, found.form) if argv else None)


def _prefix(found: Unwrapped) -> str | None:
    """The environment's directory: the one above bin/ of an executable given by path, else what was activated."""
    if found.image is not None or found.remote:
        return None
    if found.executable and "/" in found.executable:
        folder, _, _ = found.executable.rpartition("/")
        if folder.rpartition("/")[2] in ("bin", "Scripts"):
            return folder.rpartition("/")[0] or "/"
    return found.prefix or found.env.get("VIRTUAL_ENV") or found.env.get("CONDA_PREFIX") or None


def _gpus(found: Unwrapped) -> tuple[tuple[str, ...] | None, int | None]:
    visible = found.env.get("CUDA_VISIBLE_DEVICES", found.env.get("NVIDIA_VISIBLE_DEVICES"))
    if visible is not None and "$" not in visible and visible not in ("all", "void", "none"):
        ids = tuple(p.strip() for p in visible.split(",") if p.strip())
        if "-1" in ids:  # CUDA stops at the first id it cannot use
            ids = ids[: ids.index("-1")]
        return ids, len(ids)
    if found.gpus is None or isinstance(found.gpus, int):
        return None, found.gpus
    return found.gpus, len(found.gpus)


def split(text: str, variables: Mapping[str, str] | None = None) -> list[str]:
    """The words of one simple shell command. Raises UsageError as `parse_command` does."""
    return [w.value for w in shell.words(text, variables or {}) if not w.operator]
