"""Changes of a `vllm serve` launch worth trying where it does not start. Whether one helps is not said here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from attnfit.core import Fit, Launch, Status
from attnfit.engines import Cost, Given, Move
from attnfit.engines.move import starts, trusting
from attnfit.engines.vllm import moves_inert, moves_ours, moves_sizes
from attnfit.engines.vllm.moves_costs import gives_up, price
from attnfit.engines.vllm.moves_flags import Flags, name_of, words
from attnfit.engines.vllm.moves_spelling import like_a_size, misspelt, spelling

BACKEND_FLAG = "--attention-backend"
BACKEND_VARIABLE = "VLLM_ATTENTION_BACKEND"  # read up to 0.14 (launch/forced.py)

# Flags that say which GPUs and which model, not how: dropping one is no fix but another launch.
_NEVER_DROPPED = frozenset({
    "--model", "--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp",
    "--decode-context-parallel-size", "-dcp", "--prefill-context-parallel-size", "-pcp", "--enable-expert-parallel",
    "--nnodes", "--host", "--port", "--api-key", "--served-model-name", "--hf-overrides", "--config",
})  # fmt: skip

_OTHER_MACHINES = frozenset({"--distributed-executor-backend"})  # a cure only where there are more GPUs elsewhere

_MOST_SHARE = 0.95  # of the memory, that is asked for: drivers and libraries take some
_CACHE_SIZES = ("--kv-cache-memory-bytes", "--num-gpu-blocks-override")

_SIZE_WORDS = re.compile(r"World size|divisible|parallel", re.IGNORECASE)
# A flag that the engine's own words name, and the word behind it.
_NAMED = re.compile(r"(--[a-z][a-z0-9-]+)(?:[= ]['\"`]?([\w.]+))?")


def moves(given: Given, launch: Launch) -> Iterator[Move]:
    """Flags that do nothing; what the refusal names; one flag less; another split, backend or dtype; our backend."""
    flags = Flags(given)
    yield from moves_inert.moves(flags, launch)
    if starts(launch):
        return
    said = launch.detail or launch.error or ""
    parsed = launch.stage != "parse_flags"
    wrong: Mapping[int, str] = {}
    if not parsed:
        yield from spelling(flags)
        wrong = misspelt(flags)
        yield from _no_file(flags)
        yield from moves_sizes.sizes(flags, named=said.partition(":")[0] + " ")
    sized = launch.stage == "create_engine_config" and _SIZE_WORDS.search(said) is not None
    if sized:
        yield from moves_sizes.visible(flags)
    if sized or launch.stage not in ("parse_flags", "create_engine_config", "selector"):
        yield from moves_sizes.sizes(flags)
        yield from moves_sizes.stages(flags)
    if parsed:
        yield from _named(flags, said)
        yield from trusting(flags.argv, said)
    yield from _no_object(flags)
    for span in flags.spans:
        name = flags.whole(flags.argv[span.start])
        if _may_go(name_of(flags.argv[span.start]), wrong.get(span.start)):
            name = wrong.get(span.start) or name
            yield Move(f"drop {words(flags.argv, span)}", flags.without(span), gives_up(name), cost=price(name))
    yield from _backends(flags, launch)
    for dtype in ("bfloat16", "float16"):
        if launch.dtype is not None and dtype != launch.dtype:
            yield Move(f"--dtype {dtype}", flags.put("--dtype", dtype), cost=Cost.DTYPE)
    if parsed:
        yield from _caches(flags, launch)
        yield from moves_ours.moves(flags, launch)


def room(given: Given, fit: Fit) -> Iterator[Move]:
    """No size of the KV cache but what is free; as many requests as there are states for, more of the GPUs, shorter
    requests, an FP8 KV cache; enough or not."""
    flags = Flags(given)
    sizes = [span for span in flags.spans if flags.whole(flags.argv[span.start]) in _CACHE_SIZES]
    for gone in [(span,) for span in sizes] + [tuple(sizes)] * (len(sizes) > 1):
        said = ", ".join(words(flags.argv, span) for span in gone)
        lost = "the size asked for the KV cache: it gets what is free"
        yield Move(f"drop {said}", flags.without(*gone), lost, cost=Cost.SIZE, kind="cache")
    for count in dict.fromkeys(n for n in fit.sequences or () if n > 0):
        argv = flags.put("--max-num-seqs", str(count))
        yield Move(f"--max-num-seqs {count}", argv, "requests served at once", cost=Cost.SIZE, kind="requests")
    yield from moves_sizes.more(flags)
    for length in dict.fromkeys(n for n in fit.longest or () if n > 0):
        argv = flags.put("--max-model-len", str(length))
        lost = f"requests of more than {length:,} tokens"
        yield Move(f"--max-model-len {length}", argv, lost, cost=Cost.SIZE + 1, kind="length")
    for step in range(1, 10):
        share = round((fit.utilization or 1) + 0.05 * step, 2)
        if share <= _MOST_SHARE:
            argv = flags.put("--gpu-memory-utilization", f"{share:g}")
            lost = "memory left to other programs on the GPU, and to what is not counted"
            yield Move(f"--gpu-memory-utilization {share:g}", argv, lost, cost=Cost.SIZE + 2, kind="share")
    span = flags.span_of("--dtype")
    if span is not None and flags.values.get("dtype") in ("float32", "float"):
        yield Move(f"drop {words(flags.argv, span)}", flags.without(span), cost=Cost.DTYPE)
        yield Move("--dtype bfloat16", flags.put("--dtype", "bfloat16"), cost=Cost.DTYPE)
    if flags.span_of("--kv-cache-dtype") is None:
        argv = (*given.argv, "--kv-cache-dtype", "fp8")
        yield Move("--kv-cache-dtype fp8", argv, "precision of the KV cache", cost=Cost.KV_DTYPE)


def _may_go(name: str, meant: str | None) -> bool:
    """Whether a launch without this flag is still the launch. `meant`: what it is misspelt for; "" if not clear."""
    if meant == "":
        return not like_a_size(name)
    return (meant or name) not in _NEVER_DROPPED


def _no_object(flags: Flags) -> Iterator[Move]:
    """--hf-overrides says which model it is, and stays; but what is no JSON says nothing."""
    span = flags.span_of("--hf-overrides")
    if span is None:
        return
    text = words(flags.argv, span).removeprefix("--hf-overrides").lstrip("= ")
    try:
        json.loads(text)
    except ValueError:
        lost = "what it should override of the model's config"
        yield Move(f"drop {words(flags.argv, span)}", flags.without(span), lost, cost=Cost.FEATURE)


def _no_file(flags: Flags) -> Iterator[Move]:
    """A --config file that the parser cannot take."""
    if (span := flags.span_of("--config")) is not None:
        name = words(flags.argv, span).removeprefix("--config").lstrip("= ")
        lost = f"what {name or 'that file'} should set"
        yield Move(f"drop {words(flags.argv, span)}", flags.without(span), lost, cost=Cost.FEATURE)


def _named(flags: Flags, said: str) -> Iterator[Move]:
    """Cures that the engine's own words name, as in `Re-run with --kv-cache-dtype bfloat16`."""
    for name, value in dict.fromkeys(_NAMED.findall(said)):
        flag = flags.options.get(name)
        if flag is None or name in _NEVER_DROPPED or name in _OTHER_MACHINES:
            continue
        if flag.action in ("bool", "true", "false"):
            if flags.span_of(name) is None:
                yield Move(name, (*flags.argv, name), cost=price(name))
        elif value := value.rstrip("."):
            yield Move(f"{name} {value}", flags.put(name, value, *flag.options), cost=price(name))


def _backends(flags: Flags, launch: Launch) -> Iterator[Move]:
    """The engine's choice instead of a backend asked for; then every backend that accepts all layers, by name."""
    asked = flags.given.variables.get(BACKEND_VARIABLE)
    if asked is not None:
        yield Move(
            f"drop {BACKEND_VARIABLE}={asked}", flags.argv, variables={BACKEND_VARIABLE: None}, cost=Cost.BACKEND
        )
    chosen = any(layer.question.backend for layer in launch.layers)
    if launch.stage != "selector" and not chosen and not launch.ok:
        return
    for name in _accepting_all(launch):
        if asked is not None:
            changed = {BACKEND_VARIABLE: name}
            text = f"{BACKEND_VARIABLE}={name} instead of {asked}"
            yield Move(text, flags.argv, variables=changed, cost=Cost.BACKEND + 1)
        if BACKEND_FLAG in flags.options:
            yield Move(f"{BACKEND_FLAG} {name}", flags.put(BACKEND_FLAG, name), cost=Cost.BACKEND + 1)
        elif asked is None:
            variables = {BACKEND_VARIABLE: name}
            yield Move(f"{BACKEND_VARIABLE}={name}", flags.argv, variables=variables, cost=Cost.BACKEND + 1)


def _caches(flags: Flags, launch: Launch) -> Iterator[Move]:
    """Another KV cache dtype than the one asked for; than the model's own only where that is in the way."""
    flag, now = flags.options.get("--kv-cache-dtype"), flags.values.get("kv_cache_dtype")
    texts = (r.text for layer in launch.layers for v in layer.selection.verdicts if v.candidate for r in v.reasons)
    if flag is None or (now is None and not any("kv_cache_dtype" in text or "KV cache" in text for text in texts)):
        return
    for value, lost in (("bfloat16", "room: a KV cache of 16 bits"), ("fp8", "precision of the KV cache")):
        if value != now and value in (flag.choices or (value,)):
            yield Move(f"--kv-cache-dtype {value}", flags.put("--kv-cache-dtype", value), lost, cost=Cost.KV_DTYPE + 1)


def _accepting_all(launch: Launch) -> list[str]:
    """Backends that accept every layer of the launch: those in the engine's own list first, in its order."""
    answers = [[v for v in layer.selection.verdicts if not v.brought_by] for layer in launch.layers]
    accepting = [{v.backend for v in verdicts if v.status is Status.ACCEPTS} for verdicts in answers]
    first = sorted(answers[0], key=lambda v: not v.candidate) if answers else ()
    return [v.backend for v in first if all(v.backend in names for names in accepting)]
