"""What a release changes by itself: the difference between the arguments as parsed and as resolved."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from attnfit.core import Change
from attnfit.engines.sglang.answers import Answer

# Filled in for the run, not decided: ports, names and seeds.
_FILLED = frozenset({
    "model_path", "tokenizer_path", "served_model_name", "random_seed", "device", "port", "nccl_port", "host",
    "tool_call_parser", "reasoning_parser", "weight_version", "log_level_http",
})  # fmt: skip


def changes(answer: Answer) -> Iterator[Change]:
    """Every setting that comes out of resolution other than it went in, with the engine's own sentence on it."""
    given = answer.get("given") or {}
    said = [str(entry[1]) for entry in answer.get("warnings") or () if len(entry) > 1]
    for field, value in (answer.get("resolved") or {}).items():
        if field in given and field not in _FILLED and _plain(given[field]) != _plain(value):
            yield Change(field, given[field], value, _sentence(field, value, said))


def _sentence(field: str, value: Any, said: Sequence[str]) -> str:
    """The log line that names the setting; of several the one that also names the value."""
    names = re.compile(rf"(?<![\w-])(?:--)?{field.replace('_', '[-_ ]')}(?![\w-])", re.IGNORECASE)
    naming = [line for line in said if names.search(line)]
    exact = [line for line in naming if str(value) in line]
    found = (exact or naming or [""])[0]
    return " ".join(found.split())


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
