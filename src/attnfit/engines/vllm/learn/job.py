"""The witness's job `learn`: one release explored, as the body of a book. Stdlib only."""

from __future__ import annotations

from typing import Any

from attnfit.engines.vllm.learn import survey, write
from attnfit.witness.jobs import State, job


@job("learn")
def learn(state: State) -> dict[str, Any]:
    """The body of the release's rule book (see write.body)."""
    return write.body(survey.load(state.root, state.version, state.env))
