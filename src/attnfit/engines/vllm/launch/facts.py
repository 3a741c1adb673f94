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
    name = "transformers-4.57.6.json" if "<5," in f"{pin}," else "transformers-5.20.2.json"
    table = _table(name)
    if table is None:
        raise Unknown(f"no table of config classes ({name})")
    own = _table(f"configs-{release}.json")
    if own is None:
        own = {"model_types": release_facts(release).get("config_classes", {}), "classes": {}}
    return ClassTables(table, own)
