"""Builds a release's compact form: which models and capabilities behave alike is found by probes, and every flag of the
domain is run for one of each kind. `prove.py` then runs fresh launches of all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from attnfit.engines.sglang import releases
from attnfit.engines.sglang.compact import VERDICT
from attnfit.engines.sglang.learn import domain
from attnfit.engines.sglang.learn.ask import Cell, Release
from attnfit.engines.sglang.learn.domain import CAPABILITIES, Entity, Profile

Say = Callable[[str], None]

# Profiles that tell models apart, and those that tell capabilities apart.
PROBES: tuple[Profile, ...] = (
    (),
    (("attention_backend", "trtllm_mha"),),
    (("kv_cache_dtype", "fp8_e4m3"),),
    (("attention_backend", "flashinfer"),),
    (("enable_deterministic_inference", True),),
)
PROBED = ("12.0", "10.0", "9.0")
BLOCKS = (("7.5",), ("8.0", "8.6", "8.9"), ("9.0",), ("10.0", "10.3"), ("11.0",), ("12.0", "12.1"))
FINER: tuple[Profile, ...] = (
    (),
    (("kv_cache_dtype", "fp8_e4m3"),),
    (("attention_backend", "fa4"),),
    (("attention_backend", "trtllm_mha"),),
    (("attention_backend", "flashinfer"),),
    (("enable_deterministic_inference", True),),
    (("attention_backend", "trtllm_mla"),),
)
# Memory of a GPU beside each tensor-parallel size when it is found whether the two matter.
SIZES = ((8, 80.0), (4, 40.0), (2, 192.0), (1, 24.0))


class Builder:
    """One build."""

    def __init__(self, release: Release, entities: Sequence[Entity], say: Say, probes: int | None) -> None:
        self.release, self.say = release, say
        self.probes, self.finer = PROBES[:probes], FINER[:probes]
        self.notes: dict[str, list[str]] = {}
        self.alone: dict[str, bool] = {}  # whether further files of the checkpoint change the answer
        self.entities = {entity.key: entity for entity in entities}
        self.tensor_parallel: dict[str, list[int]] = {}
        self.traits: dict[str, dict[str, Any]] = {}
        self.groups: list[list[str]] = []  # keys; the first of each is the one that is run

    def cells(self, keys: Iterable[str], capabilities: Iterable[str], profiles: Iterable[Profile]) -> list[Cell]:
        wanted = list(profiles)
        pairs = [(capability, key) for capability in capabilities for key in keys]
        return [
            Cell(self.entities[key], capability, profile, max(self.tensor_parallel.get(key, [8])))
            for capability, key in pairs
            for profile in wanted
        ]

    def shape(self, key: str, told: dict[str, Any]) -> str:
        """What is compared of two models' answers: all but what the model itself says."""
        base, traits = self.traits.get(key, {}), told["traits"]
        own = None if traits is None else {name: value for name, value in traits.items() if base.get(name) != value}
        return json.dumps({**told, "traits": own, "notes": self.odd_notes(key, told)}, sort_keys=True)

    def odd_notes(self, key: str, told: dict[str, Any]) -> bool:
        """Whether an answer lacks its model's notes although it came past the parser, or has others."""
        return bool(told["notes"] != ([] if told["stage"] == "arg-parse" else self.notes[key]))

    def sizes(self) -> None:
        """The tensor-parallel sizes with which a model's answer is the same, whatever the memory."""
        everyone = self.entities.values()
        cells = [Cell(each, "9.0", (), tp, memory) for each in everyone for tp, memory in SIZES]
        self.release.ask(Cell(each, "9.0", (), beside=True) for each in everyone)
        answers = dict(zip(cells_keys(cells), self.release.ask(cells), strict=True))
        for key, entity in self.entities.items():
            kinds: dict[str, list[int]] = {}
            for tp, memory in SIZES:
                told = answers[Cell(entity, "9.0", (), tp, memory).key]
                self.traits.setdefault(key, told["traits"] or {})
                self.notes.setdefault(key, told["notes"])
                kinds.setdefault(self.shape(key, told), []).append(tp)
            best = max(kinds, key=lambda kind: (json.loads(kind)["ok"] is True, len(kinds[kind])))
            heads = self.traits[key].get("num_attention_heads") or 0  # what does not divide them fails sooner or later
            self.tensor_parallel[key] = sorted(tp for tp in kinds[best] if heads % tp == 0)
            alone = Cell(entity, "9.0", (), max(self.tensor_parallel[key]))
            pair = self.release.ask([alone, alone._replace(beside=True)])
            self.alone[key] = self.shape(key, pair[0]) != self.shape(key, pair[1])
            if self.alone[key]:
                self.say(f"{entity.name}: what lies beside config.json matters")
            if len(kinds) > 1:
                self.say(f"{entity.name} {entity.variant}: by size {list(kinds.values())}")

    def grouped(self) -> None:
        keys = list(self.entities)
        cells = self.cells(keys, PROBED, self.probes)
        self.say(f"{len(cells)} probes of models")
        found: dict[str, list[str]] = {key: [] for key in keys}
        for cell, told in zip(cells, self.release.ask(cells), strict=True):
            key = cell.entity.key
            if not self.traits[key]:
                self.traits[key] = told["traits"] or {}
            found[key].append(self.shape(key, told))
        kinds: dict[Hashable, list[str]] = {}
        for key in keys:
            kinds.setdefault((domain.extras(self.entities[key]), tuple(found[key])), []).append(key)
        self.groups = [sorted(group, key=lambda key: not self.notes[key]) for group in kinds.values()]
        self.say(f"{len(keys)} models in {len(self.groups)} groups")
        for group in self.groups:
            self.say("  " + ", ".join(self.entities[key].name + self.entities[key].variant for key in group))

    def alike(self, key: str) -> list[list[str]]:
        """Capabilities on which the model answered every probe in the same way: of one block, or refused on all."""
        kinds: dict[Hashable, list[str]] = {}
        found = []
        for capability in CAPABILITIES:
            answers = self.release.ask(self.cells([key], [capability], self.finer))
            found.append(
                (capability, tuple(self.shape(key, told) for told in answers), [told["ok"] for told in answers])
            )
        nowhere = len({shapes for _, shapes, _ in found}) == 1 and not any(True in verdicts for *_, verdicts in found)
        for capability, shapes, _ in found:
            block = "" if nowhere else next(each for each in BLOCKS if capability in each)
            kinds.setdefault((block, shapes), []).append(capability)
        return list(kinds.values())

    def rows(self, tiers: Sequence[dict[str, list[Profile]]]) -> dict[tuple[int, str], dict[Profile, dict[str, Any]]]:
        """(group, capability) -> profile -> answer."""
        firsts = [group[0] for group in self.groups]
        self.release.ask(self.cells(firsts, CAPABILITIES, self.finer))
        kinds = [(number, same) for number, key in enumerate(firsts) for same in self.alike(key)]
        self.say(f"{len(kinds)} kinds of model and capability")
        found: dict[tuple[int, str], dict[Profile, dict[str, Any]]] = {}
        for tier in tiers:
            plan: dict[str, list[Cell]] = {}
            for number, same in kinds:
                key = firsts[number]
                families = ("", *domain.extras(self.entities[key]))
                profiles = dict.fromkeys(profile for family in families for profile in tier[family])
                plan.setdefault(same[-1], []).extend(self.cells([key], [same[-1]], profiles))
            self.say(f"{sum(map(len, plan.values()))} cells")
            self.release.ask(cell for cells in plan.values() for cell in cells)
            for number, same in kinds:
                mine = [cell for cell in plan[same[-1]] if cell.entity.key == firsts[number]]
                mine = [cell for cell in mine if self.release.knows(cell)]
                answers = dict(zip([cell.profile for cell in mine], self.release.ask(mine), strict=True))
                for capability in same:
                    found.setdefault((number, capability), {}).update(answers)
        return found


def cells_keys(cells: Iterable[Cell]) -> list[str]:
    return [cell.key for cell in cells]


class Table:
    """Distinct values, numbered in the order they come."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[str, int] = {}

    def number(self, value: Any) -> int:
        key = json.dumps(value, sort_keys=True)
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(value)
        return self._numbers[key]


def build(
    release: Release,
    entities: Sequence[Entity],
    made: dict[str, Any],
    say: Say,
    tiers: int | None = None,
    probes: int | None = None,
) -> dict[str, Any]:
    """The form, as plain JSON (`attnfit.engines.sglang.compact.Form`). `tiers`, `probes`: so many, or all."""
    builder = Builder(release, entities, say, probes)
    builder.sizes()
    builder.grouped()
    options = release.options(entities[0])
    entry = releases.entry(release.version)
    kv_dtypes = next(each["choices"] for each in options if each["field"] == "kv_cache_dtype")
    wanted = domain.profiles(entry, kv_dtypes)[:tiers]
    every = list(dict.fromkeys(profile for tier in wanted for family in tier.values() for profile in family))
    rows = builder.rows(wanted)
    fields = next(told["given"] for row in rows.values() for told in (row.get(()),) if told and told["given"])
    outcomes, verdicts, changed, warnings, traits, lines = Table(), Table(), Table(), Table(), Table(), Table()

    def outcome(key: str, profile: Profile, told: dict[str, Any]) -> int:
        if builder.odd_notes(key, told):
            return -1
        set_by = dict(profile)
        given = {field: set_by.get(field, value) for field, value in fields.items()} if told["given"] else {}
        if told["given"] not in ({}, given) or (told["resolved"] and set(given) - set(told["resolved"])):
            raise RuntimeError(f"what {profile} sets is not what it says: {told['given']}")
        own = {name: value for name, value in told["resolved"].items() if name not in given or given[name] != value}
        base = builder.traits[key]
        differs = None if told["traits"] is None else {k: v for k, v in told["traits"].items() if base.get(k) != v}
        return outcomes.number([
            verdicts.number([told[name] for name in VERDICT]),
            changed.number(own) if told["resolved"] else -1,
            [warnings.number(line) for line in told["warnings"]],
            -1 if differs is None else traits.number(differs),
            bool(told["given"]),
        ])  # fmt: skip

    grid = [[-1] * len(CAPABILITIES) for _ in builder.groups]
    for (number, capability), row in rows.items():
        key = builder.groups[number][0]
        line = [outcome(key, profile, row[profile]) if profile in row else -1 for profile in every]
        grid[number][CAPABILITIES.index(capability)] = lines.number(line)
    models = {
        key: {
            "group": number,
            "tensor_parallel": builder.tensor_parallel[key],
            "traits": builder.traits[key],
            "notes": builder.notes[key],
            "alone": builder.alone[key],
        }
        for number, group in enumerate(builder.groups)
        for key in group
    }
    return {
        "release": release.version,
        "made": {**made, "models": sorted({entity.name for entity in entities})},
        "facts": release.facts,
        "options": {name: each["field"] for each in options for name in each["names"]},
        "flags": flags(options, every),
        "fields": fields,
        "path_words": domain.PATH_WORDS,
        "named": domain.NAMED,
        "memory": [domain.MEMORY[0], domain.MEMORY[-1]],
        "capabilities": list(CAPABILITIES),
        "profiles": every,
        "models": models,
        "grid": grid,
        "rows": lines.values,
        "outcomes": outcomes.values,
        "verdicts": verdicts.values,
        "changed": changed.values,
        "warnings": warnings.values,
        "traits": traits.values,
    }


def flags(options: Sequence[dict[str, Any]], profiles: Iterable[Profile]) -> dict[str, Any]:
    """What the form knows of each field's flag (`command.Flag`). Flags that a release has not are left out."""
    plain = {each["field"]: each for each in options if each["kind"] in ("_StoreAction", "_StoreTrueAction")}
    found: dict[str, Any] = {
        "model_path": {"use": "model", "kind": "path"},
        "tp_size": {"use": "tensor_parallel", "kind": "list", "values": list(domain.TENSOR_PARALLEL)},
    }
    if "tensor_parallel_size" in plain:
        found["tensor_parallel_size"] = found.pop("tp_size")
    for field, value in (pair for profile in profiles for pair in profile):
        flag = found.setdefault(field, {"use": "profile", **({} if value is True else {"kind": "list", "values": []})})
        if value is not True and value not in flag["values"]:
            flag["values"].append(value)
    for field, kind in domain.INERT.items():
        if field not in plain:
            continue
        flag = found.setdefault(field, {"use": "inert"})
        if kind == "choices":
            flag.update(kind="list", values=[name for name in plain[field]["choices"] if name != "auto"])
        elif isinstance(kind, list):
            flag.update(kind="list", values=kind)
        elif isinstance(kind, dict):
            whole = isinstance(kind["min"], int)
            flag.update(kind="whole" if whole else "decimal", values=[kind["min"], kind["max"]])
        elif kind is not None:
            flag["kind"] = kind
        if field in domain.WITHDRAWN:
            flag["withdraws"] = domain.WITHDRAWN[field]
    return found
