"""Where a launch ends, in words. The last one is what costs people twenty minutes."""

from __future__ import annotations

from typing import NamedTuple


class Stage(NamedTuple):
    when: str  # "refuses this launch ..."
    short: str  # beside a candidate


STAGES = {
    "arg-parse": Stage("at its arguments", "argument"),
    "arg-resolve": Stage("at resolution, before anything loads", "resolution"),
    "arg-check": Stage("at resolution, before anything loads", "resolution"),
    "model-config": Stage("at the model's config, before anything loads", "resolution"),
    "publish": Stage("at resolution, before anything loads", "resolution"),
    "init-device": Stage("in its workers, before the weights load", "workers, before the weights"),
    "model-runner-init": Stage("in its workers, before the weights load", "workers, before the weights"),
    "backend-init": Stage("after the weights have loaded", "after the weights have loaded"),
}


def when(stage: str | None) -> str:
    """ "after the weights have loaded"; "" for a launch that passes."""
    return STAGES[stage].when if stage in STAGES else ""


def short(stage: str | None) -> str:
    return STAGES[stage].short if stage in STAGES else ""
