"""The tables of a release, loaded once: architectures, config classes, hooks."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

import msgspec

from attnfit.engines.vllm.launch.hf import ClassTables
from attnfit.engines.vllm.launch.state import Unknown

#: releases whose derivation was compared with the real engine, see docs
PROVEN = ("0.33.0",)


@functools.cache
def _table(name: str) -> dict[str, Any] | None:
    path = resources.files("attnfit.engines.vllm.launch") / "tables" / name
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    loaded: dict[str, Any] = msgspec.json.decode(data)
    return loaded


@functools.cache
def release_facts(release: str) -> dict[str, Any]:
    """What `attnfit.learn.tables` read from the release. Raises Unknown for a release without tables."""
    table = _table(f"release-{release}.json")
    if table is None:
        raise Unknown(f"vLLM {release} has no model tables here")
    return table


@functools.cache
def class_tables(release: str) -> ClassTables:
    """The release's config classes, with the newest transformers its requirement allows that we have tables of."""
    pin: str = release_facts(release).get("transformers", "")
    old = ">=4." in pin  # up to 0.23 a 4.x satisfies the requirement, and is what was installed with it
    name = "transformers-4.57.6.json" if old else "transformers-5.20.2.json"
    table = _table(name)
    if table is None:
        raise Unknown(f"no table of config classes ({name})")
    own = _table(f"configs-{release}.json")
    if own is None:  # the class names are the release's own, what they do is the nearest proven release's
        types: dict[str, str] = release_facts(release).get("config_classes", {})
        near = _table(f"configs-{_nearest(release)}.json") or {"classes": {}}
        own = {"model_types": types, "classes": near["classes"]}
    return ClassTables(table, own)


#: releases whose own config classes were probed
PROBED = ("0.16.0", "0.23.0", "0.33.0")


def _nearest(release: str) -> str:
    """The probed release with the closest minor number."""
    minor = int(release.split(".")[1])
    return min(PROBED, key=lambda r: abs(int(r.split(".")[1]) - minor))
