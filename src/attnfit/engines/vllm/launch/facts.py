"""The tables of a release, loaded once: architectures, config classes, hooks."""

from __future__ import annotations

import functools
from pathlib import Path  # importlib.resources would cost a tenth of a check
from typing import Any

import msgspec

from attnfit import hf
from attnfit.engines.vllm.launch.state import Unknown
from attnfit.hf.config import ClassFile, ClassTables

#: releases whose derivation was compared with the real engine, see docs
PROVEN = ("0.33.0",)
_OLD, _NEW = "transformers-4.57.6.json", "transformers-5.20.2.json"


class _Raw(msgspec.Struct):
    """A table as it is written; its classes stay undecoded."""

    source: str = ""
    model_types: dict[str, str] = {}
    classes: dict[str, msgspec.Raw] = {}
    base_models: dict[str, str] = {}
    generation_keys: list[str] = []
    model_classes: list[str] = []


def _bytes(name: str) -> bytes | None:
    home = Path(hf.__file__) if name in (_OLD, _NEW) else Path(__file__)
    try:
        return (home.parent / "tables" / name).read_bytes()
    except FileNotFoundError:
        return None


@functools.cache
def release_facts(release: str) -> dict[str, Any]:
    """What `attnfit.engines.vllm.learn.tables` read from the release. Raises Unknown for a release without tables."""
    data = _bytes(f"release-{release}.json")
    if data is None:
        raise Unknown(f"vLLM {release} has no model tables here")
    table: dict[str, Any] = msgspec.json.decode(data)
    return table


@functools.cache
def _class_file(name: str) -> ClassFile | None:
    data = _bytes(name)
    if data is None:
        return None
    raw = msgspec.json.decode(data, type=_Raw)
    return ClassFile(
        source=raw.source,
        model_types=raw.model_types,
        classes=raw.classes,
        base_models=raw.base_models,
        generation_keys=frozenset(raw.generation_keys),
        model_classes=frozenset(raw.model_classes),
    )


@functools.cache
def class_tables(release: str) -> ClassTables:
    """The release's config classes, with the transformers that its requirement brings (of those we have tables of)."""
    facts = release_facts(release)
    name = _OLD if ">=4." in facts.get("transformers", "") else _NEW
    table = _class_file(name)
    if table is None:
        raise Unknown(f"no table of config classes ({name})")
    if newer := newer_types(release):
        table = _with(table, _class_file(_NEW), newer)
    # the class names are the release's own; what a class does, for a release not probed, is the nearest one's that
    # has the class
    names: dict[str, str] = facts.get("config_classes", {})
    lent = set(names.values())
    own: dict[str, msgspec.Raw] = {}
    by_distance = [release] if release in PROBED else sorted(PROBED, key=lambda r: -_distance(r, release))
    for probed in by_distance:
        found = _class_file(f"configs-{probed}.json") or ClassFile()
        nearest = probed == by_distance[-1]
        own.update({c: raw for c, raw in found.classes.items() if nearest or c in lent or c not in table.classes})
    return ClassTables(table, names, ClassFile(classes=own), decode=msgspec.json.decode)


@functools.cache
def newer_types(release: str) -> frozenset[str]:
    """Model types that transformers 4 does not know and 5 does, where the release takes either.

    0.19.1 to 0.23.0 ask for 4.56 or newer without an upper bound: a checkpoint that 4 cannot read is launched with 5.
    """
    wanted: str = release_facts(release).get("transformers", "")
    if ">=4." not in wanted or "<5" in wanted:
        return frozenset()  # before the tables are read: each costs as much as a whole answer
    old, new = _class_file(_OLD), _class_file(_NEW)
    if old is None or new is None:
        return frozenset()
    return frozenset(new.model_types.keys() - old.model_types.keys())


def _with(table: ClassFile, other: ClassFile | None, types: frozenset[str]) -> ClassFile:
    """The table, with these model types and the classes it lacks from another one."""
    if other is None:
        return table
    return table._replace(
        model_types={**table.model_types, **{t: other.model_types[t] for t in types}},
        classes={**other.classes, **table.classes},
    )


#: releases whose own config classes were probed
PROBED = ("0.16.0", "0.23.0", "0.33.0")


def _distance(probed: str, release: str) -> int:
    """How many minor releases lie between."""
    return abs(int(probed.split(".")[1]) - int(release.split(".")[1]))
