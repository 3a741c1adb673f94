"""attnfit's own backend as a way out: installed where it is not, asked for by name, with our indexer where needed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from attnfit.core import Launch, Question
from attnfit.engines import Cost, Move
from attnfit.engines.vllm import ours
from attnfit.engines.vllm.moves_flags import Flags
from attnfit.engines.vllm.plugin import indexers, serves, settings

BACKEND_FLAG, KV_FLAG, DRAFT_FLAG = "--attention-backend", "--kv-cache-dtype", "--speculative-config"
_UNTRIED = "a backend tried on such a GPU; ours was compiled for it, and compared with a reference on a CPU"


def moves(flags: Flags, launch: Launch) -> Iterator[Move]:
    """For models with sparse MLA layers; the fewest changes first. Nothing for a release the plug-in does not know."""
    asked = [layer.question for layer in launch.layers if layer.question.use_mla and layer.question.use_sparse]
    given = flags.given
    plugin = ours.of(given.release or given.book, {**given.env, ours.FACT: True}, given.variables)
    if not asked or not plugin.loaded or BACKEND_FLAG not in flags.options:
        return
    capability, name = asked[0].capability, plugin.names[0]
    variables: dict[str, str | None] = {}
    if ours.needs_indexer(plugin, capability) and not plugin.indexer:
        variables[settings.INDEXER] = "1"
    named = str(flags.values.get("attention_backend")).upper() == name
    backend = flags.put(BACKEND_FLAG, name)
    ways: list[tuple[list[str], tuple[str, ...]]] = [([] if named else [f"{BACKEND_FLAG} {name}"], backend)]
    draft = _draft(flags, backend, name)
    if draft is not None:
        ways.append(([*ways[0][0], f"{name} for the draft model too"], draft))
    for parts, argv in list(ways):
        for kv in _caches(asked):
            ways.append(([*parts, f"{KV_FLAG} {kv}"], Flags(given._replace(argv=argv)).put(KV_FLAG, kv)))
    there = bool(given.env.get(ours.FACT))
    before = [] if there else [f"pip install '{ours.EXTRA}' beside vLLM"]
    before += [f"{variable}=1" for variable in variables]
    gives_up = "" if named or tuple(capability) in indexers.TRIED_ON else _UNTRIED
    for parts, argv in ways:
        if before or parts:
            yield Move(
                ", ".join([*before, *parts]), argv, gives_up, variables,
                kind="plugin", installs="" if there else ours.EXTRA, env={ours.FACT: True},
                cost=(Cost.BACKEND + 2 if there else Cost.PLUGIN) + Cost.KV_DTYPE * (KV_FLAG in " ".join(parts)),
            )  # fmt: skip


def _caches(asked: list[Question]) -> Iterator[str]:
    """KV cache dtypes it takes in place of one that it does not; the one of the same width first."""
    now, dtype = asked[0].kv_cache_dtype or "auto", asked[0].dtype
    if now not in serves.KV_CACHE_DTYPES or (now in ("float16", "bfloat16") and now != dtype):
        yield from ("fp8_ds_mla", dtype, "auto") if now.startswith("fp8") else ("auto", dtype)


def _draft(flags: Flags, argv: tuple[str, ...], name: str) -> tuple[str, ...] | None:
    """The draft model asks with a setting of its own; None where there is none to set."""
    span = flags.span_of(DRAFT_FLAG)
    if span is None:
        return None
    try:
        settings_of = json.loads(str(flags.values.get("speculative_config")))
    except ValueError:
        return None
    if not isinstance(settings_of, Mapping):
        return None
    text = json.dumps({**settings_of, "attention_backend": name})
    return Flags(flags.given._replace(argv=argv)).put(DRAFT_FLAG, text)
