"""What a plan says: steps, what would not help, and why nothing does. Plain frozen data, as in core.py."""

from __future__ import annotations

import msgspec


class FlagChange(msgspec.Struct, frozen=True):
    """One line of a flag diff. `before` None: added; `after` None: removed. Values of secrets are never shown."""

    name: str  # of the flag or variable, as it is spelt
    before: str | None = None  # the words as they stand in the command
    after: str | None = None
    variable: bool = False
    together: bool = False  # one thing with the others so marked: `-tp 1` and `-pp 3` in the place of `-tp 3`


class Step(msgspec.Struct, frozen=True):
    """One thing a user can do next. `argv` is the whole command in the user's own form, when there is one."""

    text: str
    argv: tuple[str, ...] | None = None
    gives_up: str = ""
    breaks: bool = False  # never of an offer: kept for programs that read it
    installs: str = ""  # what pip must install first, where the command runs
    env: dict[str, bool] = {}  # environment facts that are then so
    kind: str = ""  # the name of its dearest class of change (engines.move.Cost), lower case; "": no change of a launch
    cost: int = 0  # the sum by which offers are ordered
    doubts: tuple[str, ...] = ()  # what keeps it from being sure: memory in doubt, a hazard that may strike, ...
    changes: tuple[FlagChange, ...] = ()
    engine: str = ""  # another engine's, where it is one
    release: str = ""  # another release, of that engine
    gpu: str = ""  # another GPU that it takes


class Plan(msgspec.Struct, frozen=True):
    """The answer of the planner for one launch. Steps are cheapest first, one of a kind."""

    steps: tuple[Step, ...] = ()
    useless: tuple[str, ...] = ()  # what would not help, and why
    because: tuple[str, ...] = ()  # where nothing helps here: the smallest set of facts that conflict
    tried: int = 0  # launches that were asked
    stopped_early: bool = False  # not every combination was tried
