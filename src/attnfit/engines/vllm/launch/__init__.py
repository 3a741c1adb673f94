"""A whole launch, stage by stage, as the engine runs through it. Each stage is one module of this folder.

parse_flags -> create_engine_config -> init_device -> selector (one question per layer kind) -> model_init ->
update_block_size
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from attnfit.core import Capability, Launch, Model, Question, Selection
from attnfit.engines.vllm.launch.state import EngineConfig, Refusal, Unknown
from attnfit.engines.vllm.ours import Ours
from attnfit.inputs.config_types import validate_types

if TYPE_CHECKING:
    from attnfit.engines.vllm.launch.blocks import BlockSizes
    from attnfit.engines.vllm.launch.layers import LayerAnswer


_PLAIN = re.compile(r"[a-z]{1,16}(?:[-_./][a-z]{1,16})*|\d{1,5}")  # no key looks like that


class Case(NamedTuple):
    """One launch to walk: everything a stage may ask for."""

    model: Model
    capability: Capability
    argv: Sequence[str]
    release: str
    gpus: int | None
    form: str
    files_here: bool
    variables: Mapping[str, str]
    env: Mapping[str, bool]
    select: Callable[[Question], Selection]
    plugin: Ours | None = None  # attnfit's own; None: it is not there
    driver: str = ""  # "580.65.06"; "": not known


class Walked(NamedTuple):
    """What a launch that passes has resolved and built; engines/vllm/fit measures it."""

    config: EngineConfig
    answer: LayerAnswer
    sizes: BlockSizes


def walk(case: Case) -> Walked:
    """The same way as `run`, for a launch that passes. Raises Refusal or Unknown where it does not."""
    return _walk(Launch(ok=None, stage="parse_flags"), case)


def run(case: Case) -> Launch:
    """The engine's answer, or the first refusal on the way with everything that was known by then.

    After a refusal of the configuration the questions that it would have asked are still answered where they follow
    from the model's dimensions: whoever cures the refusal wants to know what comes next.
    """
    from attnfit.engines.vllm.foreseen import foresee, unread

    launch = Launch(ok=None, stage="parse_flags")
    try:
        walked = _walk(launch, case)
        launch.hazards = foresee(case, walked, launch.kv_cache_dtype_after_init)
    except Refusal as refusal:
        _refuse(launch, refusal)
    except Unknown as unknown:
        if launch.ok is None:
            launch.unknown = (str(unknown),)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if os.environ.get("ATTNFIT_DEBUG"):
            raise
        _lost(launch, case.model, error)
    launch.hazards += tuple(unread(case.release, case.variables))
    return launch


def _lost(launch: Launch, model: Model, error: Exception) -> None:
    """A config.json can hold anything; what we stumble over is not the engine's refusal, and never passes."""
    odd = [f"config.json cannot be meant so: {sentence}" for sentence in validate_types(model.config)]
    said = f"a value in config.json that attnfit cannot follow ({type(error).__name__}: {error}); is it as published?"
    launch.ok, launch.error, launch.unknown = None, None, tuple(odd or [said])


def borrowed(launch: Launch, walked: str, version: str) -> Launch:
    """A launch of `version` that was walked with the parser and the model classes of another release."""
    launch.notes += (f"flags and model classes are those of {walked}; what {version} changed there is not known",)
    if launch.ok is False and launch.stage == "parse_flags":
        said = launch.detail or launch.error
        launch.ok, launch.error, launch.detail = None, None, ""
        launch.unknown = (f"whether the parser of {version} takes these flags; that of {walked} says: {said}",)
    return launch


def _walk(launch: Launch, case: Case) -> Walked:
    from attnfit.engines.vllm.flags import parse_flags
    from attnfit.engines.vllm.flags.serve import check_served
    from attnfit.engines.vllm.launch import blocks, construct, engine_config, layers
    from attnfit.engines.vllm.launch.dtype import device_refuses
    from attnfit.engines.vllm.launch.plausible import doubts
    from attnfit.engines.vllm.launch.spoken import spoken
    from attnfit.engines.vllm.launch.unproven import weigh

    model, capability, release, gpus, env = case.model, case.capability, case.release, case.gpus, case.env
    flags = parse_flags(release, case.argv, case.variables, form=case.form, files_here=case.files_here)
    # Bare flags are judged as the parser, the configuration and the model class judge them: no server, no worker.
    whole = case.form != "auto"
    if whole:
        check_served(flags)
    launch.stage = "create_engine_config"
    table, late, unnamed = None, None, None
    if model.gguf is not None:
        from attnfit.engines.vllm.launch import gguf, gguf_loader

        reading = gguf.read(model, capability, flags, release, env, files_here=case.files_here)
        model, flags, table, late = reading.model, reading.flags, reading.facts, reading.late
        launch.notes = tuple(reading.notes)
    try:
        found = engine_config.resolve_all(
            model.config, model.hf_quant, capability, flags, release,
            path=model.path, files=model.files, gpus=gpus, table=table, weight_dtypes=model.weight_dtypes,
            hub=model.hub, plugin=case.plugin,
        )  # fmt: skip
    except (Refusal, Unknown):
        if model.gguf is not None and reading.refusals:
            raise reading.refusals[0] from None
        raise
    if model.gguf is not None:
        found.refusals[:0] = reading.refusals
        unnamed = gguf.unnamed(found.config, env)
        also = [unnamed] if isinstance(unnamed, Refusal) else []
        launch.notes += (*gguf.then(found.refusals + also), *gguf_loader.hints(also, found.config))
    cfg = found.config
    launch.notes += tuple(cfg.notes)
    launch.dtype, launch.kv_cache_dtype, launch.block_size = cfg.dtype, cfg.kv_cache_dtype, cfg.block_size
    refused = found.refusals[0] if found.refusals else None
    if refused is None:
        launch.stage = "selector"
        if whole:
            refused = device_refuses(cfg.dtype, capability)
        if refused is None and isinstance(unnamed, Refusal):
            refused = unnamed
    if refused is not None:
        _refuse(launch, refused)
        launch.hypothetical = True
    answer = layers.ask(cfg, spoken(case.select, release, cfg.text_class))
    launch.layers = tuple(answer.layers)
    launch.notes += tuple(answer.notes)
    if refused is not None:
        raise refused
    launch.kv_cache_dtype_after_init = construct.kv_cache_dtype_after_init(cfg, answer)
    try:
        construct.check(cfg, answer, capability, env)
    except Refusal as refusal:
        raise weigh(cfg.release, refusal) from None
    if answer.unknown:
        raise Unknown(answer.unknown[0])
    launch.stage = "update_block_size"
    try:
        sizes = blocks.block_sizes(cfg, answer.kv_cache_dtype, answer.kv_layers, capability, env)
        launch.block_size_after_load = sizes.block_size
    except Refusal as refusal:
        raise weigh(cfg.release, refusal) from None
    if late is not None:
        raise late
    if unnamed is not None:
        raise unnamed
    if model.gguf is not None and (said := gguf_loader.misread(model.gguf, cfg)):
        raise Unknown(said)
    for doubt in doubts(model.config, cfg, gpus):
        raise Unknown(doubt)
    launch.ok, launch.stage = True, "done"
    return Walked(cfg, answer, sizes)


def _refuse(launch: Launch, refusal: Refusal) -> None:
    launch.ok, launch.stage, launch.error = False, refusal.stage, refusal.message
    launch.where, launch.detail = refusal.where, _names_only(refusal.detail)


def _names_only(detail: str) -> str:
    """Of arguments nobody knows the names and plain words: what stands behind a misspelt --api-key is still a key."""
    head, unknown, rest = detail.partition("unrecognized arguments: ")
    if not unknown:
        return detail
    words, hint, guess = rest.partition("; did you mean")
    shown: list[str] = []
    behind = False  # a word right behind a name may be its value
    for word in words.split(" "):
        name = word.startswith("-")
        if name:
            shown.append(word.partition("=")[0])
        elif not behind:
            shown.append(word if _PLAIN.fullmatch(word) else "...")
        behind = name
    return f"{head}{unknown}{' '.join(shown)}{hint}{guess}"
