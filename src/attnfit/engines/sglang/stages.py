"""Where a launch ends, in words. The last one is what costs people twenty minutes."""

from __future__ import annotations

from typing import NamedTuple


class Stage(NamedTuple):
    when: str  # "refuses this launch ..."
    short: str  # beside a candidate


STAGES = {
    "arg-parse": Stage("while it reads the arguments", "argument"),
    "arg-resolve": Stage("while it resolves the arguments, before anything loads", "resolution"),
    "arg-check": Stage("while it checks the arguments, before anything loads", "resolution"),
    "model-config": Stage("while it reads the model's config, before anything loads", "resolution"),
    "publish": Stage("while it publishes the arguments, before anything loads", "resolution"),
    "model-runner-init": Stage("in its worker processes, before the weights load", "workers, before the weights"),
    "backend-init": Stage("after the weights have loaded", "after the weights have loaded"),
}


def when(stage: str | None) -> str:
    """ "after the weights have loaded"; "" for a launch that passes."""
    return STAGES[stage].when if stage in STAGES else ""


def short(stage: str | None) -> str:
    return STAGES[stage].short if stage in STAGES else ""
