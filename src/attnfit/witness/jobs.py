"""What the isolated child can be asked to do, by name. Standard library only.

A job takes the worker's state and its own keyword arguments (all JSON values) and returns a JSON value. A generator
sends each item as it comes. Stdlib-only modules of an engine add jobs: they import `job` from here and are named in
`Witness(modules=[...])`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

JOBS: dict[str, Callable[..., Any]] = {}


class State:
    """What one child keeps between jobs."""

    def __init__(self, root: str = "", version: str = "", env: dict[str, Any] | None = None) -> None:
        self.isolation: dict[str, Any] = {}
        self.root, self.version = root, version
        self.env: dict[str, Any] = env or {}
        self.kept: dict[str, Any] = {}  # whatever the engine's jobs want to have ready for the next one


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
