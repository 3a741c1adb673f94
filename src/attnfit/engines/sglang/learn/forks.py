"""Many launches of one release, faster: what they have in common is run once, and each goes on in a process of its own.

A launch of the witness builds a world, loads the release's modules and builds its argument parser before it looks at
the first word. Up to there launches on the same GPUs do not differ. So one goes up to the parser, and from there every
case is a fork that takes its own words and its own model. Nothing one launch sets is seen by another.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from attnfit.engines.sglang.answers import Answer, Case
from attnfit.engines.sglang.witness import launch as launches
from attnfit.engines.sglang.witness.files import Files
from attnfit.engines.sglang.witness.world import Sources, World
from attnfit.witness import stubs
from attnfit.witness.lazy import LazyModule

SHARED = ("capability", "gpu_name", "gpu_mem_gb", "gpus", "variables", "facts")  # the same for all of one call
_PURE = (types.FunctionType, type, types.ModuleType)  # what a definition or an import leaves
_IN_ORDER = ("sglang.srt.environ",)  # its statements must run as a launch makes them run
Wanted = list[tuple[str, str]]  # (module, name)


class _Ended(BaseException):
    """All cases of a call were answered."""


class _Again(BaseException):
    """This world is spoilt: something cannot be defined beforehand. It is left out from now on."""


class Forks:
    """One release's sources, and what its launches load."""

    def __init__(self, root: str, version: str) -> None:
        self.sources = Sources(root, version)
        self._wanted: dict[tuple[str, str], None] = {}
        self._seen: set[str] = set()
        self._never: set[tuple[str, str]] = set()  # cannot be defined beforehand

    def answers(self, cases: Iterable[Case]) -> Iterator[Answer]:
        """The witness's answers, in order. The cases agree in `SHARED`."""
        pending = list(cases)
        found: dict[int, Answer] = {}
        for number, case in enumerate(pending):
            marks = {json.dumps(case["config"], sort_keys=True), *case["argv"]}
            if not marks <= self._seen:  # what is new is run here: what it compiles is there for all that follow
                self._seen |= marks
                found[number] = self._plain(case)
        rest = [number for number in range(len(pending)) if number not in found]
        if rest:
            answered: list[Answer] = []
            self._all([pending[number] for number in rest], answered.append)
            found.update(zip(rest, answered, strict=True))
        yield from (found[number] for number in range(len(pending)))

    def parser_of(self, case: Case) -> argparse.ArgumentParser:
        """The release's own parser, as a launch builds it."""
        self._plain(case)
        found: argparse.ArgumentParser = next(iter(self.sources.parsers.values()))
        return found

    def _plain(self, case: Case) -> Answer:
        """One launch in this process."""
        worlds: list[World] = []

        def made(sources: Sources, case: Any) -> World:
            worlds.append(World(sources, case))
            return worlds[-1]

        vars(launches)["World"] = made
        try:
            answer: Answer = json.loads(json.dumps(launches.launch(self.sources, case)))
        finally:
            vars(launches)["World"] = World
        self._wanted.update(dict.fromkeys(name for name in _loaded(worlds[0]) if name not in self._never))
        return answer

    def _all(self, cases: list[Case], take: Callable[[Answer], None]) -> None:
        worlds: list[World] = []

        def made(sources: Sources, case: Any) -> World:
            worlds.append(World(sources, case))
            return worlds[-1]

        here = os.getpid()
        out: int | None = None

        def parse_args(parser: Any, argv: Any = None, namespace: Any = None) -> Any:
            nonlocal out
            if os.getpid() != here or not worlds:
                return kept(parser, argv, namespace)
            self._load(worlds[0])
            gc.collect()
            gc.freeze()
            for case in cases:
                reader, writer = os.pipe()
                if not (child := os.fork()):
                    gc.disable()
                    os.close(reader)
                    out = writer
                    _enter(worlds[0], case)
                    return kept(parser, list(case["argv"]), namespace)
                os.close(writer)
                with os.fdopen(reader, "rb") as pipe:
                    text = pipe.read()
                os.waitpid(child, 0)
                take(json.loads(text))
            raise _Ended

        parsers: Any = argparse.ArgumentParser
        kept = parsers.parse_args
        vars(launches)["World"] = made
        parsers.parse_args = parse_args
        try:
            answer = launches.launch(self.sources, cases[0])
            if os.getpid() != here and out is not None:
                with os.fdopen(out, "w") as pipe:
                    json.dump(answer, pipe)
                os._exit(0)
            if answer.get("error_type") == "_Again":
                return self._all(cases, take)
            if answer.get("error_type") != "_Ended":
                raise RuntimeError(f"the parser was not reached: {answer}")
        finally:
            if os.getpid() != here:
                os._exit(1)
            vars(launches)["World"] = World
            parsers.parse_args = kept
            gc.unfreeze()

    def _load(self, world: World) -> None:
        """Define beforehand what other launches wanted of the release's modules."""
        for wanted in self._wanted:
            name, leaf = wanted
            if name in _IN_ORDER:
                continue
            try:
                world.loader.source(name).demand(leaf)
            except (Exception, stubs.StubLeak):
                self._never.add(wanted)
            if stubs.STATE.leaks:
                self._never.add(wanted)
                stubs.STATE.leaks.clear()
        if self._never & set(self._wanted):
            for wanted in self._never:
                self._wanted.pop(wanted, None)
            raise _Again


def _loaded(world: World) -> Wanted:
    """Functions, classes and modules that a launch wanted, in no order of importance."""
    found: Wanted = []
    for name, module in world.loader.modules.items():
        if isinstance(module, LazyModule):
            found += [(name, leaf) for leaf, value in vars(module).items() if isinstance(value, _PURE)]
    return found


def _enter(world: World, case: Case) -> None:
    """Put another model where the world's is."""
    texts: dict[str, Any] = {"config.json": case["config"]}
    if case["hf_quant"] is not None:
        texts["hf_quant_config.json"] = case["hf_quant"]
    vars(world.files).update(vars(Files(case["model"], texts, case["files"], {}, world.files.root)))
