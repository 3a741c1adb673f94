"""Changes of a `vllm serve` launch worth trying after a refusal, cheapest first. Whether one helps is not said here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from attnfit.core import Fit, Launch, Status
from attnfit.engines import Given, Move
from attnfit.engines.vllm import moves_ours, moves_sizes, ours
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

_SIZE_WORDS = re.compile(r"World size|divisible|parallel", re.IGNORECASE)
# A flag that the engine's own words name, and the word behind it.
_NAMED = re.compile(r"(--[a-z][a-z0-9-]+)(?:[= ]['\"`]?([\w.]+))?")


def moves(given: Given, launch: Launch) -> Iterator[Move]:
    """What the refusal itself names first; then one flag less, another backend, another dtype, two flags less."""
    flags = Flags(given)
    said = launch.detail or launch.error or ""
    wrong: Mapping[int, str] = {}
    if launch.stage == "parse_flags":
        yield from spelling(flags)
        wrong = misspelt(flags)
        yield from _no_file(flags)
        yield from moves_sizes.sizes(flags, named=said.partition(":")[0] + " ")
    sized = launch.stage == "create_engine_config" and _SIZE_WORDS.search(said) is not None
    if sized:
        yield from moves_sizes.visible(flags)
        yield from moves_sizes.sizes(flags)
    if launch.stage != "parse_flags":
        yield from _named(flags, said)
    spans = [span for span in flags.spans if _may_go(name_of(flags.argv[span.start]), wrong.get(span.start))]
    for span in spans:
        yield Move(f"drop {words(flags.argv, span)}", flags.without(span), otherwise=bool(wrong.get(span.start)))
    named = str(flags.values.get("attention_backend")).upper() in ours.NAMES  # it is what is wanted: sooner
    if named and launch.stage != "parse_flags":
        yield from moves_ours.moves(flags, launch)
    yield from _backends(flags, launch)
    for dtype in ("bfloat16", "float16"):
        if launch.dtype is not None and dtype != launch.dtype:
            yield Move(
                f"--dtype {dtype}",
                flags.put("--dtype", dtype),
                f"activations run in {dtype} instead of {launch.dtype}",
            )
    if launch.stage not in ("parse_flags", "selector") and not sized:
        yield from moves_sizes.sizes(flags)
    if not named and launch.stage != "parse_flags":
        yield from moves_ours.moves(flags, launch)
    for i, first in enumerate(spans):
        for second in spans[i + 1 :]:
            both = " and ".join(words(flags.argv, s) for s in (first, second))
            meant = wrong.get(first.start) or wrong.get(second.start)
            yield Move(f"drop {both}", flags.without(first, second), otherwise=bool(meant))


def room(given: Given, fit: Fit) -> Iterator[Move]:
    """As many requests as there are states for, more of the GPUs, shorter requests, an FP8 KV cache; enough or not."""
    flags = Flags(given)
    for count in dict.fromkeys(n for n in fit.sequences or () if n > 0):
        yield Move(f"--max-num-seqs {count}", flags.put("--max-num-seqs", str(count)), "requests served at once")
    yield from moves_sizes.more(flags)
    for length in dict.fromkeys(n for n in fit.longest or () if n > 0):
        gives_up = f"requests of more than {length:,} tokens"
        argv = flags.put("--max-model-len", str(length))
        yield Move(f"--max-model-len {length}", argv, gives_up)
    if flags.span_of("--kv-cache-dtype") is None:
        yield Move("--kv-cache-dtype fp8", (*given.argv, "--kv-cache-dtype", "fp8"), "precision of the KV cache")


def _may_go(name: str, meant: str | None) -> bool:
    """Whether a launch without this flag is still the launch. `meant`: what it is misspelt for; "" if not clear."""
    if meant == "":
        return not like_a_size(name)
    return (meant or name) not in _NEVER_DROPPED


def _no_file(flags: Flags) -> Iterator[Move]:
    """A --config file that the parser cannot take."""
    if (span := flags.span_of("--config")) is not None:
        name = words(flags.argv, span).removeprefix("--config").lstrip("= ")
        yield Move(f"drop {words(flags.argv, span)}", flags.without(span), f"what {name or 'that file'} should set")


def _named(flags: Flags, said: str) -> Iterator[Move]:
    """Cures that the engine's own words name, as in `Re-run with --kv-cache-dtype bfloat16`."""
    for name, value in dict.fromkeys(_NAMED.findall(said)):
        flag = flags.options.get(name)
        if flag is None or name in _NEVER_DROPPED:
            continue
        if flag.action in ("bool", "true", "false"):
            if flags.span_of(name) is None:
                yield Move(name, (*flags.argv, name))
        elif value := value.rstrip("."):
            yield Move(f"{name} {value}", flags.put(name, value))


def _backends(flags: Flags, launch: Launch) -> Iterator[Move]:
    """The engine's choice instead of a backend asked for; then every backend that accepts all layers, by name."""
    asked = flags.given.variables.get(BACKEND_VARIABLE)
    if asked is not None:
        yield Move(f"drop {BACKEND_VARIABLE}={asked}", flags.argv, variables={BACKEND_VARIABLE: None})
    if launch.stage != "selector" and not any(layer.question.backend for layer in launch.layers):
        return
    for name in _accepting_all(launch):
        if asked is not None:
            changed = {BACKEND_VARIABLE: name}
            yield Move(f"{BACKEND_VARIABLE}={name} instead of {asked}", flags.argv, variables=changed)
        if BACKEND_FLAG in flags.options:
            yield Move(f"{BACKEND_FLAG} {name}", flags.put(BACKEND_FLAG, name))
        elif asked is None:
            yield Move(f"{BACKEND_VARIABLE}={name}", flags.argv, variables={BACKEND_VARIABLE: name})


def _accepting_all(launch: Launch) -> list[str]:
    """Backends that accept every layer of the launch: those in the engine's own list first, in its order."""
    answers = [[v for v in layer.selection.verdicts if not v.brought_by] for layer in launch.layers]
    accepting = [{v.backend for v in verdicts if v.status is Status.ACCEPTS} for verdicts in answers]
    first = sorted(answers[0], key=lambda v: not v.candidate) if answers else ()
    return [v.backend for v in first if all(v.backend in names for names in accepting)]
