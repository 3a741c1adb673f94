"""A launch command as a process is started with it, and its secrets: shown as $NAME, put back before a start."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence

from attnfit.errors import UsageError
from attnfit.inputs.command import Command, parse_command
from attnfit.inputs.secrets import given as given_to_server
from attnfit.inputs.secrets import hide, is_secret, values
from attnfit.report.redact import masked

_ASSIGNMENT = re.compile(r"(?s)([A-Za-z_]\w*)=(.*)")
_SHOWN = re.compile(r"\$[A-Z_][A-Z0-9_]*")
_LEAST = 4  # characters: what is shorter is found everywhere, and is no secret worth the name
_LEAST_AROUND = 8  # of one that the command does not give: its variable may hold something else


class Launch:
    """words: as the user gave them, behind `--`. Raises UsageError for what starts no engine we know, or elsewhere."""

    def __init__(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        if len(words) == 1 and re.search(r"\s", words[0].strip()):
            raise UsageError("give the command as words behind --, without quotes around the whole: no shell reads it")
        self.words = tuple(words)
        self.command: Command = parse_command(list(words))
        if not self.command.files_here and self.command.image is None:
            raise UsageError("the server would start on another machine; run attnfit there")
        if self.command.image in words and {"-d", "--detach"} & set(words[: words.index(self.command.image)]):
            raise UsageError("the container would be left to itself; leave -d away, or give it to attnfit run --detach")
        self._environ = environ
        self.env = dict(environ)
        at = 0
        while at < len(words) and (assigned := _ASSIGNMENT.fullmatch(words[at])):
            self.env[assigned[1]] = assigned[2]
            at += 1
        self.argv = tuple(words[at:])
        self.secrets = secrets_of(words, self.env)

    @property
    def shown(self) -> tuple[str, ...]:
        return tuple(hide(self.words))

    @property
    def kept(self) -> tuple[str, ...]:
        """As it may be written down and printed: also what only looks like a secret stands as a name. `shown` can be
        put back, this cannot."""
        return tuple(self.clean(word) for word in self.shown)

    @property
    def engine(self) -> str:
        return self.command.engine

    @property
    def server_env(self) -> dict[str, str]:
        """The environment as the server sees it, as far as the command says."""
        env = {**self.env, **self.command.env}
        return {name: value for name, value in env.items() if name not in self.command.unset}

    @property
    def in_container(self) -> bool:
        return self.command.image is not None

    @property
    def published(self) -> dict[int, int] | None:
        """Port of the container -> port here; None: it has this machine's own network, or there is no container."""
        if self.command.image is None:
            return None
        words, found = self.words[: self.words.index(self.command.image)], {}
        for at, word in enumerate(words):
            name, _, value = word.partition("=")
            value = value or (words[at + 1] if at + 1 < len(words) else "")
            if name in ("--network", "--net") and value == "host":
                return None
            if name in ("-p", "--publish"):
                *_, here, inside = f"0:{value.partition('/')[0]}".split(":")
                if here.isdecimal() and inside.isdecimal() and int(here):
                    found[int(inside)] = int(here)
        return found

    def findable(self) -> None:
        """Raises UsageError where there is no such program."""
        program = self.argv[0] if self.argv else ""
        if shutil.which(program, path=self.env.get("PATH")) is None:
            raise UsageError(f"{program!r} is no program that can be started here; give its path, or check PATH")

    def changed(self, shown: Sequence[str]) -> Launch | None:
        """The same launch as another command that was made of it, in which secrets stand as $NAME; None: they cannot
        be put back."""
        words = restored(shown, self.words)
        try:
            return None if words is None else Launch(words, self._environ)
        except UsageError:
            return None

    def clean(self, text: str) -> str:
        """`text` without any secret of this launch, and without what else looks like one."""
        for value, name in self.secrets.items():
            text = text.replace(value, name)
        return masked(text)


def secrets_of(words: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Value -> what stands for it; longest first, so that one which holds another goes before it."""
    found = dict.fromkeys(values(words), "$HIDDEN") | given_to_server(words, env)
    for given, shown in zip(words, hide(words), strict=True):
        for value, name in _pairs(given, shown) or ():
            found[value] = name
    for name, value in env.items():
        if is_secret(name) and len(value) >= _LEAST_AROUND:
            found.setdefault(value, f"${name}")
    return {v: found[v] for v in sorted(found, key=len, reverse=True) if len(v) >= _LEAST and not v.isspace()}


def _pairs(given: str, shown: str) -> list[tuple[str, str]] | None:
    """(secret, what is shown for it) of one word, in order; None: it cannot be told."""
    if given == shown:
        return []
    names = _SHOWN.findall(shown)
    pattern = "(.+?)".join(re.escape(piece) for piece in _SHOWN.split(shown))
    found = re.fullmatch(pattern, given, re.DOTALL)
    return None if found is None else list(zip(found.groups(), names, strict=True))


def restored(shown: Sequence[str], given: Sequence[str]) -> tuple[str, ...] | None:
    """`shown` with the secrets of `given` in place of their names."""
    kept: dict[str, list[str]] = {}
    for word, its_shown in zip(given, hide(given), strict=True):
        pairs = _pairs(word, its_shown)
        if pairs is None:
            return None
        for value, name in pairs:
            kept.setdefault(name, []).append(value)
        if word == its_shown:  # what the user wrote as $NAME stays so
            for name in _SHOWN.findall(word):
                kept.setdefault(name, []).append(name)
    wanted: dict[str, int] = {}
    for word in shown:
        for name in _SHOWN.findall(word):
            wanted[name] = wanted.get(name, 0) + 1
    for name, count in wanted.items():
        if name in kept and len(set(kept[name])) > 1 and len(kept[name]) != count:
            return None
    turn = dict.fromkeys(kept, 0)

    def put(match: re.Match[str]) -> str:
        name = match[0]
        if name not in kept:
            return name
        value = kept[name][turn[name] % len(kept[name])]
        turn[name] += 1
        return value

    return tuple(_SHOWN.sub(put, word) for word in shown)
