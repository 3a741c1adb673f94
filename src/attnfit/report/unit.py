"""A systemd unit for people and as JSON: where its settings stand and what it starts, keys never shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from attnfit.inputs.secrets import hide, line
from attnfit.inputs.units.unit import Unit
from attnfit.report.plain import printable, wrap

SCHEMA = 1
_SETTINGS = ("Type", "User", "WorkingDirectory", "Restart", "TimeoutStartSec", "KillMode")


def render(unit: Unit, state: Mapping[str, str]) -> str:
    return "\n".join(_lines(unit, state)) + "\n"


def head(unit: Unit) -> list[str]:
    """The files of a unit, as the first lines of what is said of it."""
    lines = wrap(unit.name + (" of this user" if unit.user else ""), "unit     ")
    lines += wrap(unit.fragment, "file     ")
    for path in unit.dropins:
        lines += wrap(path, "drop-in  ")
    return lines


def _lines(unit: Unit, state: Mapping[str, str]) -> Iterator[str]:
    yield from head(unit)
    if state:
        yield from wrap("; ".join(value for value in state.values() if value), "state    ")
    for name in _SETTINGS:
        if value := unit.last(name):
            yield from wrap(value, f"{name:<8} ")
    for name, origin in unit.variables.origin.items():
        shown = hide([f"{name}={unit.variables.values[name]}"])[0]
        yield from wrap(f"{shown}  ({origin})", "sets     ")
    for path in unit.variables.unread:
        yield from wrap(f"{path} may not be read by this user; what it sets is not known", "sets     ")
    for found in unit.execs:
        flags = f" {found.flags}" if found.flags else ""
        yield ""
        yield f"starts{flags}  ({printable(found.place)})"
        yield "  " + printable(line(found.argv))
        for name in dict.fromkeys(found.missing):
            yield from wrap(f"${name} is set by nobody; systemd puts nothing in its place", "  note: ")


def as_dict(unit: Unit, state: Mapping[str, str]) -> dict[str, Any]:
    values = unit.variables
    return {
        "schema": SCHEMA,
        "unit": unit.name,
        "user": unit.user,
        "file": unit.fragment,
        "drop_ins": list(unit.dropins),
        "state": dict(state) or None,
        "settings": {name: unit.last(name) for name in _SETTINGS if unit.last(name)},
        "variables": [
            {"name": name, "value": hide([f"{name}={values.values[name]}"])[0].partition("=")[2], "from": origin}
            for name, origin in values.origin.items()
        ],
        "not_read": list(values.unread),
        "ignored": list(unit.notes),
        "starts": [
            {
                "command": hide(each.argv),
                "prefixes": each.flags,
                "from": each.place,
                "not_set": sorted(set(each.missing)),
            }
            for each in unit.execs
        ],
    }


def dump(body: Mapping[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode() + "\n"
