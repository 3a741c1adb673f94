"""vLLM's jobs in the isolated child: its backends, one question, many questions. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnfit.witness.jobs import State, job

from .release import Release


def opened(state: State) -> Release:
    """The release, plain (untransformed), loaded at first use."""
    if "release" not in state.kept:
        state.kept["release"] = Release(state.root, state.version, state.env)
    release: Release = state.kept["release"]
    return release


@job("backends")
def backends(state: State) -> list[str]:
    """Every CUDA backend name of the release, in its own order."""
    names: list[str] = opened(state).names
    return names


@job("ask")
def ask(
    state: State,
    question: dict[str, Any],
    env: dict[str, bool] | None = None,
    variables: dict[str, Any] | None = None,
    every: bool = True,
) -> dict[str, Any]:
    """One question, answered in full."""
    answer: dict[str, Any] = opened(state).ask(question, env, variables, every).as_dict()
    return answer


@job("ask_many")
def ask_many(
    state: State,
    questions: list[dict[str, Any]],
    env: dict[str, bool] | None = None,
    variables: dict[str, Any] | None = None,
    every: bool = True,
) -> Iterator[dict[str, Any]]:
    """Many questions under the same environment facts, one item each, in order."""
    release = opened(state)
    for question in questions:
        yield release.ask(question, env, variables, every).as_dict()
