"""Fresh random launches over a compact form's domain, and some outside it, against the release's own code.

Every field that the form gives is compared: verdict, stage, message and place, backends and classes, fields as parsed
and as resolved, log lines, what the model config says. What the form does not know is counted, not asked.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from attnfit.engines.sglang import needs, releases
from attnfit.engines.sglang.answers import Answer, Case
from attnfit.engines.sglang.compact import IDLE, VERDICT, Form, answer, load, own_file, reference
from attnfit.engines.sglang.compact.command import Flag
from attnfit.engines.sglang.learn import domain
from attnfit.engines.sglang.learn.ask import telling
from attnfit.engines.sglang.learn.build import Say
from attnfit.engines.sglang.learn.domain import Entity
from attnfit.engines.sglang.learn.forks import SHARED, Forks
from attnfit.engines.sglang.witness import Child
from attnfit.gpus import catalogue
from attnfit.witness.cache import Source

OUTSIDE = 0.15  # of the launches
MACHINES = 80  # kinds of GPUs in one run
_PATHS = ("/models/{}", "./{}", "org/{}", "/data/hub/{}-local", "/mnt/a/b/{}.d")
_VARIABLES: tuple[dict[str, str], ...] = ({}, {}, {"HF_HOME": "/cache"}, {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "8"})
_STRANGE = (
    ["--enable-dp-attention", "--dp-size", "2"], ["--quantization", "fp8"], ["--dtype", "float16"],
    ["--context-length", "4096"], ["--attention-backend", "nonsense"], ["--page-size", "3"], ["--ep-size", "2"],
    ["--enable-mixed-chunk"], ["--disable-cuda-graph"], ["--no-such-flag"], ["stray"], ["--load-format", "dummy"],
    ["--port", "none"], ["--host"], ["--chunked-prefill-size", "-1"],
)  # fmt: skip


class Machine(NamedTuple):
    capability: str
    name: str
    memory: float
    gpus: int | None
    variables: dict[str, str]


class Launch(NamedTuple):
    case: Case
    inside: bool


def prove(
    source: Source, version: str, models: Sequence[Entity], launches: int, isolated: int, seed: int, say: Say
) -> int:
    """Prints what was compared; 1 where anything differs."""
    form, chance = load(version), random.Random(seed)
    made = [Draw(form, models, version, chance).launch(machine) for machine in machines(chance, launches)]
    unknown: Counter[str] = Counter()
    asked: list[tuple[Case, Answer]] = []
    refused = wrong = 0
    for each in made:
        told = answer(each.case, version)
        if told["unknown"]:
            unknown["inside" if each.inside else "outside"] += 1
            unknown[f"  {'inside' if each.inside else 'outside'}: {_kind(told)}"] += 1
        else:
            asked.append((each.case, told))
    for case, told, real in _answered(source, version, asked, isolated, say):
        refused += told["ok"] is False
        found = differences(told, real, case["model"])
        if found:
            wrong += 1
            say(f"DIFFERS {case['capability']} {case['gpu_name']!r} {case['argv']} {case['variables']}: {found}")
    inside = sum(each.inside for each in made)
    say(f"seed {seed}: {len(made)} launches, {inside} inside the domain, {len(made) - inside} outside")
    say(f"answered {len(asked)} ({refused} refusals), of them {wrong} other than the release's own code")
    for kind in sorted(unknown):
        say(f"unknown {kind}: {unknown[kind]}")
    return int(wrong > 0)


def _answered(
    source: Source, version: str, asked: list[tuple[Case, Answer]], isolated: int, say: Say
) -> Iterator[tuple[Case, Answer, Answer]]:
    """Each with the release's own answer: the first so many from the isolated child, the rest by forks."""
    if isolated:
        child = Child(source)
        for case, told in asked[:isolated]:
            yield case, told, child.ask(case)
        child.close()
        say(f"{min(isolated, len(asked))} were asked of the isolated child")
    forks = Forks(source.root, version)
    by_machine: dict[str, list[tuple[Case, Answer]]] = {}
    for case, told in asked[isolated:]:
        kind = repr([value for name, value in case.items() if name in SHARED])
        by_machine.setdefault(kind, []).append((case, told))
    done = 0
    for pairs in by_machine.values():
        for (case, told), real in zip(pairs, forks.answers([case for case, _ in pairs]), strict=True):
            yield case, told, real
        done += len(pairs)
        say(f"  {done} compared")


def differences(told: Answer, real: Answer, path: str) -> dict[str, Any]:
    """What the form says and the release does not: field -> both."""
    found: dict[str, Any] = {}
    whole: dict[str, Any] = dict(real)
    mine: dict[str, Any] = dict(told)
    for name in (*VERDICT, "notes"):
        other = whole.get(name) or ([] if name in ("notes", "unknown") else whole.get(name))
        if mine[name] != other:
            found[name] = (mine[name], other)
    for name in ("given", "resolved"):
        other = whole.get(name) or {}
        for field, value in mine[name].items():
            if field not in other or other[field] != value:
                found[f"{name}.{field}"] = (value, other.get(field, "absent"))
        if not mine[name] and other:
            found[name] = ("none", "some")
    lines = telling(whole.get("warnings") or (), path)
    if mine["warnings"] != lines:
        found["warnings"] = (mine["warnings"], lines)
    if mine.get("traits") != whole.get("traits"):
        found["traits"] = (mine.get("traits"), whole.get("traits"))
    return found


def machines(chance: random.Random, launches: int) -> Iterator[Machine]:
    """One for each launch, of a few dozen."""
    gpus = [gpu for gpu in catalogue() if str(gpu.capability) in domain.CAPABILITIES]
    made = []
    for number in range(MACHINES):
        capability = domain.CAPABILITIES[number % len(domain.CAPABILITIES)]
        names = ["", *(gpu.name for gpu in gpus if str(gpu.capability) == capability)]
        made.append(
            Machine(
                capability,
                chance.choice(names),
                chance.choice(domain.MEMORY),
                chance.choice((None, 1, 2, 4, 8, 8)),
                dict(chance.choice(_VARIABLES)),
            )
        )
    return (chance.choice(made) for _ in range(launches))


class Draw:
    """Random launches."""

    def __init__(self, form: Form, models: Sequence[Entity], version: str, chance: random.Random) -> None:
        self.form, self.models, self.chance = form, models, chance
        self.facts = needs.brought(releases.entry(version))
        self.names: dict[str, list[str]] = {}
        for option, field in form.options.items():
            if option.startswith("--"):
                self.names.setdefault(field, []).append(option)

    def launch(self, machine: Machine) -> Launch:
        chance, form = self.chance, self.form
        entity = chance.choice(self.models)
        row = form.rows[form.grid[form.models[entity.key].group][form.capabilities.index(machine.capability)]]
        profile = form.profiles[chance.choice([number for number, each in enumerate(row) if each >= 0])]
        path = chance.choice(_PATHS).format(entity.name.rpartition("/")[2].replace(" ", ""))
        groups = [self.spelt(field, value) for field, value in profile]
        groups.append([chance.choice(["--model-path", "--model"]), path])
        groups += [self.spelt("tp_size", chance.choice(form.models[entity.key].tensor_parallel))]
        inert = [field for field, flag in form.flags.items() if flag.use == "inert" and field != "trust_remote_code"]
        groups += [
            self.spelt(name, self.value(form.flags[name])) for name in chance.sample(inert, chance.randint(0, 3))
        ]
        if entity.variant == "trusted" or (not entity.variant and chance.random() < 0.2):
            groups.append(["--trust-remote-code"])
        case = Case(
            model=path,
            config=self.idle(entity.config),
            hf_quant=entity.hf_quant,
            files=self.files(entity),
            capability=machine.capability,
            gpu_name=machine.name,
            gpu_mem_gb=machine.memory,
            gpus=machine.gpus,
            argv=[],
            variables=machine.variables,
            facts=self.facts,
        )
        inside = chance.random() >= OUTSIDE
        if not inside:
            self.strange(case, groups)
        chance.shuffle(groups)
        case["argv"] = [word for group in groups for word in group]
        return Launch(case, inside)

    def strange(self, case: Case, groups: list[list[str]]) -> None:
        """One thing that the form was not run with, or a combination that it may not know."""
        chance = self.chance
        match chance.randrange(5):
            case 0:
                groups.append(list(chance.choice(_STRANGE)))
            case 1:
                case["config"] = self.changed(case["config"])
            case 2:
                case["files"] = [*(case["files"] or []), "adapter_config.json"]
            case 3:
                groups += [self.spelt(*chance.choice([pair for each in self.form.profiles for pair in each]))]
            case _:
                groups += [self.spelt("tp_size", chance.choice((1, 2, 3, 4, 8, 16)))]

    def changed(self, config: dict[str, Any]) -> dict[str, Any]:
        """The config with one number in it changed."""
        found = copy.deepcopy(config)
        holders = [found, *(value for value in found.values() if isinstance(value, dict))]
        numbers = [(holder, key) for holder in holders for key, value in holder.items() if type(value) is int]
        if numbers:
            holder, key = self.chance.choice(numbers)
            holder[key] += self.chance.choice((-1, 1))
        return found

    def idle(self, config: dict[str, Any]) -> dict[str, Any]:
        """The config with other values of what says nothing of how it is served."""
        others = {"_name_or_path": "x", "transformers_version": "4.40.0", "initializer_range": 0.5, "use_cache": False}
        return {**config, **{key: others[key] for key in sorted(IDLE) if self.chance.random() < 0.2}}

    def files(self, entity: Entity) -> list[str] | None:
        own = own_file(reference(entity.config))
        if self.chance.random() < 0.3:
            return None
        known = self.form.models[entity.key]
        more = self.chance.sample(domain.BESIDE, 0 if known.alone else self.chance.randint(0, 4))
        unused = [own] if own and entity.variant == "own" and self.chance.random() < 0.5 else []
        there = [name for name in entity.files if entity.variant != "own" or name != own]
        return sorted({*there, *more, *unused})

    def spelt(self, field: str, value: Any) -> list[str]:
        """A flag in one of its spellings: a name of several, a beginning that is enough, a value behind `=`."""
        chance = self.chance
        names = self.names.get(field) or self.names["tensor_parallel_size"]
        name = chance.choice(names)
        if chance.random() < 0.1:
            options = list(self.form.options)
            short = [
                name[:end]
                for end in range(3, len(name))
                if [option for option in options if option.startswith(name[:end])] == [name]
            ]
            name = chance.choice(short or [name])
        if value is True:
            return [name]
        return [f"{name}={value}"] if chance.random() < 0.2 else [name, str(value)]

    def value(self, flag: Flag) -> Any:
        chance = self.chance
        match flag.kind:
            case "list":
                return chance.choice(flag.values)
            case "word":
                return chance.choice(("0.0.0.0", "abc", "my-model", "a/b.c"))
            case "whole":
                return chance.randint(int(flag.values[0]), int(flag.values[1]))
            case "decimal":
                return round(chance.uniform(flag.values[0], flag.values[1]), 3)
            case _:
                return True


def _kind(told: Answer) -> str:
    return told["unknown"][0].partition(": the compact form")[0][:70]
