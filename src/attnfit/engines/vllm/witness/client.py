"""The parent's side of vLLM's witness: questions instead of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnfit.witness import client
from attnfit.witness.client import WitnessError

JOBS = "attnfit.engines.vllm.witness.jobs"


class Witness(client.Witness):
    """One vLLM release in one isolated child; arguments as those of `attnfit.witness.client.Witness`."""

    def __init__(
        self, root: str | Path, version: str, env: Mapping[str, Any], *, modules: Sequence[str] = (), **limits: Any
    ) -> None:
        super().__init__(root, version, env, modules=[JOBS, *modules], **limits)

    def ask(
        self,
        question: Mapping[str, Any],
        env: Mapping[str, bool] | None = None,
        variables: Mapping[str, Any] | None = None,
        every: bool = True,
    ) -> dict[str, Any]:
        """One question (fields of core.Question). The keys of the answer are those of `release.WitnessAnswer`."""
        answer: dict[str, Any] = self.call(
            "ask", question=dict(question), env=_plain(env), variables=_plain(variables), every=every
        )
        return answer

    def ask_many(
        self,
        questions: Iterable[Mapping[str, Any]],
        env: Mapping[str, bool] | None = None,
        every: bool = True,
    ) -> Iterator[dict[str, Any]]:
        """Answers in order; the wall limit counts anew for each."""
        yield from self.stream("ask_many", questions=[dict(q) for q in questions], env=_plain(env), every=every)


def _plain(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if values is None else dict(values)


__all__ = ["Witness", "WitnessError"]
