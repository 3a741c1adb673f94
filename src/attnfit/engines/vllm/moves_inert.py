"""Flags and variables that do nothing in a launch: taken out of it, whole or in the JSON that holds them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from attnfit.core import Launch
from attnfit.engines import Cost, Move
from attnfit.engines.vllm.moves_flags import Flags, name_of, words


def moves(flags: Flags, launch: Launch) -> Iterator[Move]:
    for name in dict.fromkeys(hazard.flag for hazard in launch.hazards if hazard.flag):
        if name in flags.given.variables:
            yield Move(f"unset {name}", flags.argv, variables={name: None}, cost=Cost.NOTHING, kind="inert")
            continue
        for span in flags.spans:
            argv = _without(flags, span, name)
            if argv is not None:
                yield Move(f"drop {words(flags.argv, span)}", argv, cost=Cost.NOTHING, kind="inert")


def _without(flags: Flags, span: range, name: str) -> tuple[str, ...] | None:
    """None: the flag does not hold it."""
    word = flags.argv[span.start]
    if name in name_of(word).replace("-", "_").split("."):  # -cc.pass_config.NAME=True
        return flags.without(span)
    head, equals, glued = word.partition("=")
    given = [glued] if equals else list(flags.argv[span.start + 1 : span.stop])
    if len(given) != 1 or name not in given[0]:
        return None
    try:
        held = json.loads(given[0])
    except ValueError:
        return None
    left = _less(held, name)
    if left == held:
        return None
    if not left:
        return flags.without(span)
    text = json.dumps(left)
    put = (f"{head}={text}",) if equals else (head, text)
    return (*flags.argv[: span.start], *put, *flags.argv[span.stop :])


def _less(held: Any, name: str) -> Any:
    """The object without the key, and without what is empty then."""
    if not isinstance(held, dict):
        return held
    kept = {key: _less(value, name) for key, value in held.items() if key != name}
    return {key: value for key, value in kept.items() if value != {} or held[key] == {}}
