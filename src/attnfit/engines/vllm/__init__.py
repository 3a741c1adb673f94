"""vLLM: rule books per release, and the way from config.json and flags to selector questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnfit.core import Capability, Launch, Question, Selection
from attnfit.engines import Move


class Release:
    """One vLLM release; see `attnfit.engines.Release`."""

    def __init__(self, version: str | None) -> None:
        from attnfit.engines.vllm import releases

        found = releases.resolve(version)
        self._book = found.book
        self._select = found.book.select
        self.version = found.version
        self.book = found.book.version
        self.exact = found.exact
        self.said: tuple[str, ...] = (found.note,) if found.note else ()

    def backends(self) -> Sequence[tuple[str, str]]:
        return self._book.backends()

    def select(self, question: Question, env: Mapping[str, bool] | None = None) -> Selection:
        return self._select(question, env)

    def witnessed(self, source: str) -> Release:
        from attnfit.engines.vllm.witnessed import selector

        other = Release(self.version)
        other._select, note = selector(source, self.version)
        other.said = (*self.said, note)
        return other

    def launch(
        self,
        config: dict[str, Any],
        hf_quant: dict[str, Any] | None,
        capability: Capability,
        argv: Sequence[str],
        *,
        variables: Mapping[str, str],
        env: Mapping[str, bool] | None = None,
    ) -> Launch:
        from attnfit.engines.vllm.launch import run

        return run(
            config,
            hf_quant,
            capability,
            argv,
            release=self.book,
            variables=dict(variables),
            env=dict(env or {}),
            select=lambda question: self.select(question, env),
        )


class Vllm:
    """See `attnfit.engines.Engine`."""

    name = "vllm"

    def default_command(self, model: str, gpus: int) -> Sequence[str]:
        return ("vllm", "serve", model, *(("--tensor-parallel-size", str(gpus)) if gpus > 1 else ()))

    def moves(self, argv: Sequence[str], launch: Launch) -> Iterator[Move]:
        from attnfit.engines.vllm.moves import moves

        return moves(argv, launch)

    def releases(self) -> Sequence[str]:
        from attnfit.engines.vllm import releases

        return releases.known()

    def release(self, version: str | None) -> Release:
        return Release(version)


ENGINE = Vllm()
