"""Whether one release decides exactly as another: equal rules, and agreement on fresh questions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

PLACE = re.compile(r"^(vllm/[\w/]+\.py):\d+$")


def normal(value: Any) -> Any:
    """A book without what may differ between equal books: version, provenance, line numbers, names of shared trees."""
    if not isinstance(value, Mapping):
        return value
    trees = value["trees"]

    def plain(part: Any, named: bool) -> Any:
        if isinstance(part, dict):
            return {
                k: PLACE.sub(r"\1", v) if k == "at" else plain(v, k in ("then", "else"))
                for k, v in part.items()
                if k != "cases"
            } | (
                {"cases": [[values, plain(below, True)] for values, below in part["cases"]]} if "cases" in part else {}
            )
        if isinstance(part, str) and named:
            return plain(trees[part], False)
        return part

    return {
        "environment": value["environment"], "fields": value["fields"], "selector": value["selector"],
        "drops": value["drops"],
        "messages": value["messages"], "priority": plain(value["priority"], True),
        "helpers": {name: plain(tree, True) for name, tree in value["helpers"].items()},
        "backends": {
            name: [
                entry["path"], plain(entry["load"], True),
                [[code, plain(tree, True), PLACE.sub(r"\1", at)] for code, tree, at in entry["rules"]],
            ]
            for name, entry in value["backends"].items()
        },
    }  # fmt: skip


def equal(one: bytes, other: bytes) -> bool:
    """Whether two books hold the same rules, line numbers aside."""
    first, second = (json.dumps(normal(json.loads(raw)), sort_keys=True) for raw in (one, other))
    return first == second
