"""What the isolated child can be asked to do, by name. Standard library only.

A job takes the worker's state and its own keyword arguments (all JSON values) and returns a JSON value. A generator
sends each item as it comes. Other stdlib-only modules add jobs: they import `job` from here and are named in
`Witness(modules=[...])`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

JOBS: dict[str, Callable[..., Any]] = {}


class State:
    """What one child keeps between jobs."""

    def __init__(self) -> None:
        self.isolation: dict[str, Any] = {}
        self.root = self.version = ""
        self.env: dict[str, bool] = {}
        self.release: Any = None  # witness.release.Release, plain (untransformed)

    def opened(self) -> Any:
        """The release, loaded at first use."""
        if self.release is None:
            from .release import Release

            self.release = Release(self.root, self.version, self.env)
        return self.release


def job(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the job `name`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        JOBS[name] = function
        return function

    return register


@job("isolation")
def isolation(state: State) -> dict[str, Any]:
    """Which measures hold in this child."""
    return state.isolation


@job("backends")
def backends(state: State) -> list[str]:
    """Every CUDA backend name of the release, in its own order."""
    names: list[str] = state.opened().names
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
    answer: dict[str, Any] = state.opened().ask(question, env, variables, every).as_dict()
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
    release = state.opened()
    for question in questions:
        yield release.ask(question, env, variables, every).as_dict()
