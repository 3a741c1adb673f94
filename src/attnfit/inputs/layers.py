"""What unwrapping a command finds: how each wrapper holds the next, and what was learned on the way."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from attnfit.engines.entry import EntryPoints
from attnfit.inputs import shell


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

    def starting(self, before: Sequence[str]) -> Layer:
        """The same with other words in front."""
        return msgspec.structs.replace(self, before=tuple(before))


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
        self.beside: list[str] = []  # other packages that it demands
        self.executable: str | None = None
        self.prefix: str | None = None
        self.conda_env: str | None = None
        self.gpus: tuple[str, ...] | int | None = None  # ids, or how many; None: all, or not said
        self.remote = False
        self.wrappers: list[str] = []
        self.notes: list[str] = []
        self.layers: list[Layer] = []
