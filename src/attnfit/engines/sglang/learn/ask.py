"""Asks a release for single cells of the compact form, and keeps the answers: an interrupted build goes on."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from attnfit.engines.sglang import needs, releases
from attnfit.engines.sglang.answers import Answer, Case
from attnfit.engines.sglang.compact import MODEL, PLAIN, VERDICT
from attnfit.engines.sglang.learn.domain import BESIDE, FIELDS, PATH, Entity, Profile, words
from attnfit.engines.sglang.learn.forks import Forks

# Log lines that speak of what the form gives.
TELLING = re.compile(
    r"attention|backend|page[ _-]?size|kv[ _-]?cache|radix|mamba|overlap|deterministic|all-?reduce|hybrid|dtype", re.I
)

# Of these, lines that depend on how many GPUs share the model, or on a flag that decides nothing but itself.
SIZED = re.compile(r"tp_size=|TP size|all-?reduce[ _-]fusion", re.I)
CHUNK = 150  # cells between two notes of how far it is


class Cell(NamedTuple):
    """One launch."""

    entity: Entity
    capability: str
    profile: Profile
    tensor_parallel: int = 8
    memory: float = 80.0
    beside: bool = False  # with the files that lie beside config.json in a whole checkpoint

    @property
    def key(self) -> str:
        parts: list[Any] = [self.entity.key, self.capability, self.profile, self.tensor_parallel, self.memory]
        parts += [True] if self.beside else []
        return json.dumps(parts, separators=(",", ":"))


class Release:
    """A release's answers to cells, each asked once."""

    def __init__(self, root: str, version: str, kept: Path, say: Callable[[str], None] = print) -> None:
        self.version, self._forks, self._kept = version, Forks(root, version), kept
        self.facts = needs.brought(releases.entry(version))
        self._known: dict[str, Any] = {}
        self._say = say
        if kept.is_file():
            for line in kept.read_text("utf-8").splitlines():
                key, value = json.loads(line)
                self._known[key] = value

    def ask(self, cells: Iterable[Cell]) -> list[dict[str, Any]]:
        """What the release answers, in the form's terms (`told`)."""
        asked = list(cells)
        pending: dict[tuple[str, float], dict[str, Cell]] = {}
        for cell in asked:
            if cell.key not in self._known:
                pending.setdefault((cell.capability, cell.memory), {})[cell.key] = cell
        with self._kept.open("a", encoding="utf-8") as file:
            for batch in _chunks(pending):
                answers = self._forks.answers([self.case(cell) for cell in batch.values()])
                for key, answer in zip(batch, answers, strict=True):
                    self._known[key] = told(answer, PATH)
                    file.write(json.dumps([key, self._known[key]], separators=(",", ":")) + "\n")
                file.flush()
                self._say(f"  {len(self._known)} answers")
        answers = (self._known[cell.key] for cell in asked)
        return [
            {
                **answer,
                "warnings": telling(answer["warnings"], PATH),
                **{name: _given(answer[name]) for name in ("given", "resolved")},
            }
            for answer in answers
        ]

    def knows(self, cell: Cell) -> bool:
        return cell.key in self._known

    def case(self, cell: Cell) -> Case:
        entity = cell.entity
        trust = ["--trust-remote-code"] if entity.variant == "trusted" else []
        argv = ["--model-path", PATH, "--tp-size", str(cell.tensor_parallel), *trust, *words(cell.profile)]
        return Case(
            model=PATH,
            config=entity.config,
            hf_quant=entity.hf_quant,
            files=sorted([*entity.files, *BESIDE] if cell.beside else entity.files),
            capability=cell.capability,
            gpu_name="",
            gpu_mem_gb=cell.memory,
            gpus=8,
            argv=argv,
            variables={},
            facts=self.facts,
        )

    def options(self, entity: Entity) -> list[dict[str, Any]]:
        """Every action of the release's parser (any model will do to have it built)."""
        parser = self._forks.parser_of(self.case(Cell(entity, "9.0", ())))
        return [
            {"names": list(each.option_strings), "field": each.dest, "kind": type(each).__name__,
             "choices": list(each.choices) if each.choices else None, "default": each.default,
             "type": getattr(each.type, "__name__", "")}
            for each in parser._actions
        ]  # fmt: skip


def _chunks(pending: Mapping[Any, Mapping[str, Cell]]) -> Iterator[dict[str, Cell]]:
    """At most so many cells at once: they are written down after each."""
    for batch in pending.values():
        items = list(batch.items())
        for start in range(0, len(items), CHUNK):
            yield dict(items[start : start + CHUNK])


def told(answer: Answer, path: str) -> dict[str, Any]:
    """An answer as the form gives it: the path as a placeholder, the fields of FIELDS, the log lines that matter."""
    whole: dict[str, Any] = json.loads(json.dumps(answer))
    found = {name: whole.get(name) for name in VERDICT}
    if found["message"]:
        found["message"] = found["message"].replace(path, MODEL).replace(posixpath.normpath(path), PLAIN)
    found["notes"] = whole.get("notes") or []
    found["warnings"] = telling(whole.get("warnings") or (), path)
    for name in ("given", "resolved"):
        found[name] = _given(whole.get(name) or {})
    found["traits"] = whole.get("traits")
    return found


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {field: values[field] for field in FIELDS if field in values}


def telling(lines: Iterable[list[str]], path: str) -> list[list[str]]:
    """The log lines that the form gives: not those that name the model's path or depend on the number of GPUs."""
    paths = [each for each in (path, posixpath.normpath(path)) if "/" in each]  # a bare name may be the model's own
    return [
        line
        for line in lines
        if TELLING.search(line[1]) and not SIZED.search(line[1]) and not any(each in line[1] for each in paths)
    ]
