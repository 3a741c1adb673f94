"""The tables of a release, loaded once: architectures, config classes, hooks."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

import msgspec

from attnfit.engines.vllm.launch.hf import ClassFile, ClassTables
from attnfit.engines.vllm.launch.state import Unknown

#: releases whose derivation was compared with the real engine, see docs
PROVEN = ("0.33.0",)


def _bytes(name: str) -> bytes | None:
    path = resources.files("attnfit.engines.vllm.launch") / "tables" / name
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


@functools.cache
def release_facts(release: str) -> dict[str, Any]:
    """What `attnfit.learn.tables` read from the release. Raises Unknown for a release without tables."""
    data = _bytes(f"release-{release}.json")
    if data is None:
        raise Unknown(f"vLLM {release} has no model tables here")
    table: dict[str, Any] = msgspec.json.decode(data)
    return table


@functools.cache
def _class_file(name: str) -> ClassFile | None:
    data = _bytes(name)
    return None if data is None else msgspec.json.decode(data, type=ClassFile)


@functools.cache
def class_tables(release: str) -> ClassTables:
    """The release's config classes, with the transformers that its requirement brings (of those we have tables of)."""
    facts = release_facts(release)
    old = ">=4." in facts.get("transformers", "")  # up to 0.23 a 4.x satisfies it, and is what came with it
    name = "transformers-4.57.6.json" if old else "transformers-5.20.2.json"
    table = _class_file(name)
    if table is None:
        raise Unknown(f"no table of config classes ({name})")
    # the class names are the release's own; what a class does, for a release not probed, is the nearest one's
    own = _class_file(f"configs-{release}.json") or _class_file(f"configs-{_nearest(release)}.json")
    return ClassTables(table, facts.get("config_classes", {}), own or ClassFile())


#: releases whose own config classes were probed
PROBED = ("0.16.0", "0.23.0", "0.33.0")


def _nearest(release: str) -> str:
    """The probed release with the closest minor number."""
    minor = int(release.split(".")[1])
    return min(PROBED, key=lambda r: abs(int(r.split(".")[1]) - minor))
