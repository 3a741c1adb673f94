"""The world in which one launch of one release runs: its source files, and what stands for all else.

A new one for every launch, so nothing one launch sets is seen by the next; the files are read and compiled once.
Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnfit.witness import fakes
from attnfit.witness.lazy import Situation
from attnfit.witness.loader import Loader, Shelf
from attnfit.witness.stubs import leak

from . import auto
from .configs import Pin, Transformers
from .files import Files
from .gpu import Gpus
from .packages import Facts, stand_in
from .surroundings import REAL, no_custom_ops, surround

# Definitions that register themselves with a decorator; torch operators and kernel fusions are no part of a launch's
# arguments.
REGISTERS = re.compile(r"^@_?register(?!_custom_op|_fake|_split|_weak|_fused|_p)\w*\(", re.MULTILINE)
_PINNED = re.compile(r"^Requires-Dist: *([A-Za-z0-9._-]+)(?:\[[^\]]*\])? *==([^\s;,]+)", re.MULTILINE)
_ENTRY = re.compile(r"^EntryClass(?::[^=\n]*)? *= *(\[[^\]]*\]|\w+)", re.MULTILINE)
_WORD = re.compile(r"\w+")
_REGISTRIES = ("sglang.srt.utils.hf_transformers.common", "sglang.srt.utils.hf_transformers_utils")


class Sources:
    """One release's files, shared by all worlds: cut and compiled once, with the versions it pins."""

    def __init__(self, root: str, version: str) -> None:
        self.root, self.version = root, version
        self.shelf = Shelf()
        self.said: list[list[str]] = []  # what the launch that is running logs; parsers outlive their world
        self.parsers: dict[str, Any] = {}  # machine -> the parser as the release builds it
        self.pinned = {"sglang": version, **_pinned(Path(root))}
        if "transformers" not in self.pinned:
            leak("the release's METADATA pins no transformers; give a wheel, or a tree with its metadata")
        self.pin = Pin(self.pinned["transformers"])
        self._architectures: frozenset[str] | None = None

    @property
    def architectures(self) -> frozenset[str]:
        """The release's own model classes: what each file of models/ names as its EntryClass (models/registry.py)."""
        if self._architectures is None:
            files = Path(self.root, "sglang", "srt", "models").glob("*.py")
            found = (_ENTRY.findall(file.read_text("utf-8", "replace")) for file in files)
            self._architectures = frozenset(name for each in found for text in each for name in _WORD.findall(text))
        return self._architectures


def _pinned(root: Path) -> dict[str, str]:
    """Distribution (normalised) -> version, of the requirements that name one version."""
    metadata = next(iter(sorted(root.glob("sglang-*.dist-info/METADATA"))), None) or root / "PKG-INFO"
    texts = [file.read_text("utf-8", "replace") for file in (metadata, root / "pyproject.toml") if file.is_file()]
    found: dict[str, str] = {}
    for text in texts:
        lines = re.sub(r'^ *"([A-Za-z0-9._\[\],-]+==[^"]+)",?$', r"Requires-Dist: \1", text, flags=re.MULTILINE)
        for name, version in _PINNED.findall(lines):
            found.setdefault(re.sub(r"[-_.]+", "_", name).lower(), version)
    return found


class World:
    """One launch's world. `said` collects what is logged, `notes` how a config was read."""

    def __init__(self, sources: Sources, case: Mapping[str, Any]) -> None:
        sources.said.clear()
        self.sources, self.said = sources, sources.said
        self.notes: list[str] = []
        texts = {"config.json": case["config"]}
        if case.get("hf_quant") is not None:
            texts["hf_quant_config.json"] = case["hf_quant"]
        self.files = Files(case["model"], texts, case.get("files"), case.get("others") or {}, sources.root)
        major, _, minor = case["capability"].partition(".")
        gpus = Gpus((int(major), int(minor)), case["gpu_name"] or "NVIDIA GPU", case["gpu_mem_gb"], case["gpus"] or 1)
        self.facts = Facts(Situation(), sources.root)
        self.facts._capability = gpus.capability
        self.facts.env = case.get("facts") or {}
        self.loader = Loader(
            sources.root,
            package="sglang",
            facts=self.facts,
            outside=self._outside,
            real=REAL,
            registers=REGISTERS,
            stand_in=stand_in,
            shelf=sources.shelf,
            helpers={"open": self.files.open, "id": id},
        )
        self.loader.overrides.update(no_custom_ops())
        table = self._table
        home = self.loader.modules.get
        surround(
            table,
            home,
            facts=self.facts,
            files=self.files,
            gpus=gpus,
            variables=case.get("variables") or {},
            pinned=sources.pinned,
            said=self.said,
        )
        self.transformers = Transformers(sources.pin, self.registry, self.files.config)
        table.update(auto.modules(self.transformers, self.files, self.notes))

    def _outside(self, facts: Any, import_module: Any, home: Any) -> Mapping[str, Any]:
        self._table: dict[str, Any] = dict(fakes.outside(facts, import_module, home))
        return self._table

    def registry(self) -> Mapping[str, Any]:
        """SGLang's own config classes: model_type -> class."""
        for name in _REGISTRIES:
            if self.loader.has_source(name):
                module = self.loader.source(name)
                if module.defines("_CONFIG_REGISTRY"):
                    found: Mapping[str, Any] = module._CONFIG_REGISTRY
                    return found
        return {}
