"""The compact form of a release: what its code makes of the models and flags it was run with, and *unknown* elsewhere.

One JSON file a release, written by `attnfit.engines.sglang.learn`: outcomes by model, compute capability and the flags
that matter, and a list of flags that do not. A model is known by the content of its config.json, never by its name.
Nothing is inferred here: what was not run is unknown, and the answer says which word, model or file it is.
"""

from __future__ import annotations

import functools
import hashlib
import json
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from attnfit.engines.sglang.compact.command import Flag, Read, read
from attnfit.engines.sglang.compact.surroundings import odd

if TYPE_CHECKING:
    from attnfit.core import Gpu
    from attnfit.engines.sglang.answers import Answer, Case

FOLDER = Path(__file__).parent
MODEL, PLAIN = "{model}", "{plain}"  # stand in a message for the model's path, as given and normalised
# Keys of config.json that say nothing of how the model is served; they are left out of its digest.
IDLE = frozenset({"_name_or_path", "transformers_version", "initializer_range", "use_cache"})
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")  # beside them every file of the checkpoint lies
# What a verdict holds, in the order of its list.
VERDICT = (
    "ok", "stage", "error_type", "message", "where", "unknown", "prefill", "decode", "linear_attn", "backend_class",
    "full_attn_backend_class", "linear_attn_backend_class",
)  # fmt: skip


class Known(msgspec.Struct, frozen=True):
    """One model as a release reads it."""

    group: int  # models of one group have the same outcomes
    tensor_parallel: list[int]
    traits: dict[str, Any]  # what the release's ModelConfig says of it
    notes: list[str]  # on how its config is read
    alone: bool  # whether files beside config.json change the answer: then they are unknown


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """What comes of a launch, by numbers of the tables beside it."""

    verdict: int
    changed: int  # what resolution changes of the fields as parsed; -1: it does not come so far
    warnings: list[int]
    traits: int  # what differs from the model's own; -1: it does not come so far
    parsed: bool


class Form(msgspec.Struct, frozen=True):
    """One release's file."""

    release: str
    made: dict[str, Any]  # from what, how and when
    facts: dict[str, bool]
    options: dict[str, str]  # every spelling the release's parser takes -> field
    flags: dict[str, Flag]  # field -> what is known of its flag
    fields: dict[str, Any]  # fields that are given -> their value where no flag sets it
    path_words: list[str]  # the release looks for these in a model's path
    named: dict[str, list[str]]  # pattern of a GPU's name -> fields that are not given for it
    memory: tuple[float, float]  # GiB of a GPU, lowest and highest
    capabilities: list[str]
    profiles: list[list[tuple[str, Any]]]
    models: dict[str, Known]
    grid: list[list[int]]  # group -> by capability the number of its row; -1: none
    rows: list[list[int]]  # by profile the number of its outcome; -1: not run
    outcomes: list[Outcome]
    verdicts: list[list[Any]]
    changed: list[dict[str, Any]]
    warnings: list[list[str]]
    traits: list[dict[str, Any]]

    def profile(self, given: tuple[tuple[str, Any], ...]) -> int:
        """The number of a profile, -1 where it was not run."""
        wanted = [tuple(pair) for pair in given]
        return next((number for number, each in enumerate(self.profiles) if each == wanted), -1)


def releases() -> list[str]:
    """The releases that have a file here."""
    return sorted(file.stem for file in FOLDER.glob("*.json"))


def answer(case: Case, version: str) -> Answer:
    """What the release makes of a case; `unknown` says what was not run."""
    form = load(version)
    command = read(form.options, form.flags, case["argv"])
    for why in (command.odd, odd(form, case)):
        if why:
            return _unknown(why, version)
    if command.model != case["model"]:
        return _unknown("the command names no model, or not the one that is asked", version)
    model = form.models.get(key_of(case, trusted="trust_remote_code" in command.bare))
    if model is None:
        return _unknown("this model (by the content of its config.json) is not among those it was run with", version)
    if model.alone and any(not name.endswith("config.json") for name in case["files"] or ()):
        return _unknown("what other files say of this model is not at hand", version)
    if command.tensor_parallel not in model.tensor_parallel:
        return _unknown(f"--tp-size {command.tensor_parallel} was not run with this model", version)
    row = form.grid[model.group][form.capabilities.index(case["capability"])]
    profile = form.profile(command.profile)
    if row < 0 or profile < 0 or profile >= len(form.rows[row]) or form.rows[row][profile] < 0:
        shown = " ".join(f"--{field.replace('_', '-')} {value}" for field, value in command.profile)
        return _unknown(f"{shown or 'no flag'} was not run with this model on compute capability {case['capability']}",
                        version)  # fmt: skip
    return _told(form, form.outcomes[form.rows[row][profile]], model, command, case)


def sees(gpu: Gpu, version: str) -> tuple[object, ...]:
    """What of a GPU an answer hangs on: memory only where it is not within what was run, a name by its patterns."""
    from attnfit.engines.sglang.case import memory_of, name_of

    form, memory = load(version), memory_of(gpu)
    within = form.memory[0] <= memory <= form.memory[1]
    named = tuple(part for part in form.named if re.search(part, name_of(gpu)))
    return (gpu.capability, None if within else memory, named)


@functools.cache
def load(version: str) -> Form:
    """A release's form, read once."""
    return msgspec.json.decode((FOLDER / f"{version}.json").read_bytes(), type=Form)


def _told(form: Form, outcome: Outcome, model: Known, command: Read, case: Case) -> Answer:
    found: dict[str, Any] = dict(zip(VERDICT, form.verdicts[outcome.verdict], strict=True))
    found["notes"] = [] if found["stage"] == "arg-parse" else list(model.notes)
    if found["message"]:
        plain = posixpath.normpath(case["model"])
        found["message"] = found["message"].replace(MODEL, case["model"]).replace(PLAIN, plain)
    set_by = dict(command.profile)
    given = {field: set_by.get(field, value) for field, value in form.fields.items()} if outcome.parsed else {}
    resolved = {**given, **form.changed[outcome.changed]} if outcome.changed >= 0 else {}
    named = [field for part, fields in form.named.items() if re.search(part, case["gpu_name"]) for field in fields]
    for field in (*command.withdrawn, *named):
        given.pop(field, None)
        resolved.pop(field, None)
    if outcome.traits >= 0:
        found["traits"] = {**model.traits, **form.traits[outcome.traits]}
    told: Answer = {**found, "given": given, "resolved": resolved}  # type: ignore[typeddict-item]
    told["warnings"] = [list(form.warnings[number]) for number in outcome.warnings]
    return told


def _unknown(why: str, version: str) -> Answer:
    from attnfit.engines.sglang.answers import nothing

    return nothing(f"{why}: the compact form of sglang {version} does not know it")


def key_of(case: Case, *, trusted: bool) -> str:
    """A model's key in the form: the digest of what it says, and how its own config class would be read."""
    own = reference(case["config"])
    variant = ""
    if own:
        file, files = own_file(own), case["files"]
        whole = files is not None and any(name.endswith(WEIGHTS) for name in files)
        missing = file and whole and file not in (files or ())
        variant = "+own" if not trusted else "+missing" if missing else "+trusted"
    return digest(case["config"], case["hf_quant"]) + variant


def digest(config: Mapping[str, Any], hf_quant: Mapping[str, Any] | None) -> str:
    """Of config.json without its idle keys, and hf_quant_config.json."""
    kept = {key: value for key, value in config.items() if key not in IDLE}
    text = json.dumps([kept, hf_quant], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def reference(config: Mapping[str, Any]) -> str:
    """ "configuration_x.XConfig" of a checkpoint that brings a config class of its own, else ""."""
    remote = config.get("auto_map")
    found = remote.get("AutoConfig") if isinstance(remote, dict) else None
    return found if isinstance(found, str) else ""


def own_file(own: str) -> str:
    """The file beside config.json that holds the class; "" where it lies in another repository."""
    upstream, _, name = own.rpartition("--")
    return "" if upstream else f"{name.partition('.')[0]}.py"
