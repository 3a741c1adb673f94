"""What the isolated child can be asked of SGLang. Standard library only."""

from __future__ import annotations

import gc
import sys
import typing
from typing import Any

from attnfit.witness import stubs
from attnfit.witness.jobs import State, job

from .launch import launch
from .world import Sources

# The standard library's modules that are imported late and may not be read once the child is shut in.
import argparse  # noqa: F401  isort: skip
import encodings.idna  # noqa: F401  isort: skip


WORLDS = 10  # left behind at most, of some 10 MB each


sys.argv[:] = ["launch_server.py"]  # the name argparse gives in its errors, where the release states none


@job("sglang launch")
def answer(state: State, case: dict[str, Any]) -> dict[str, Any]:
    """One launch; see `attnfit.engines.sglang.answers`."""
    try:
        if "sources" not in state.kept:
            state.kept["sources"] = Sources(state.root, state.version)
    except stubs.StubLeak as found:
        return {"ok": None, "stage": None, "unknown": [str(found)]}
    answered = state.kept["answered"] = state.kept.get("answered", 0) + 1
    gc.disable()  # a world is all cycles: looking for them while it is in use is a third of a launch
    try:
        return launch(state.kept["sources"], case)
    finally:
        if answered % WORLDS == 0:
            for forget in getattr(typing, "_cleanups", ()):  # `Optional[X]` is remembered, and so the world of X
                forget()
            gc.collect()
