"""Changes of an SGLang launch worth trying after a refusal, cheapest first. Whether one helps is not said here.

A flag that does nothing on this GPU goes with every change: it is in nobody's interest to keep it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from attnfit.core import Launch, Status
from attnfit.engines import Given, Move
from attnfit.engines.sglang import words
from attnfit.engines.sglang.hazards import ATTENTION_FLAGS, FOREIGN, SPARSE, indexed
from attnfit.engines.sglang.hazards import dense as is_dense
from attnfit.engines.sglang.moves_spelling import spelling
from attnfit.engines.sglang.releases import entry
from attnfit.inputs.secrets import is_secret

# Backends that are there to be correct, not fast, and backends for a few models: only where nothing else helps.
_LAST = frozenset({"torch_native", "flex_attention", "dual_chunk_flash_attn", "hpc_ops", "dsa", "nsa", "qsa", "dsv4",
                   "compressed", "llada2_cfg_flashinfer", "minicpm_flashattn", "minicpm_flashinfer"})  # fmt: skip
_KERNEL_FIELDS = ("dsa_prefill_backend", "dsa_decode_backend", "nsa_prefill_backend", "nsa_decode_backend",
                  "linear_attn_backend", "linear_attn_prefill_backend", "linear_attn_decode_backend",
                  "linear_attn_verify_backend", "mamba_backend")  # fmt: skip
_OTHER_VALUES = (
    ("--kv-cache-dtype", ("auto", "bfloat16", "fp8_e4m3"), "another precision of the KV cache"),
    ("--page-size", ("64", "128", "32", "1"), ""),
    ("--dtype", ("bfloat16", "auto"), "another precision of the activations"),
)
# `--mamba-ssm-dtype bfloat16` in the engine's own words
_NAMED = re.compile(r"(--[a-z][a-z0-9-]+)(?:[= ]['\"`]?([A-Za-z0-9_.]+))?")


def moves(given: Given, launch: Launch) -> Iterator[Move]:
    """What the refusal names, another backend, one flag less, another value, two flags less."""
    inert = tuple(hazard.flag for hazard in launch.hazards if hazard.flag)
    for move in _moves(given, launch):
        also = [flag for flag in inert if words.last(move.argv, flag) is not None]
        if not also:
            yield move
            continue
        text = f"{move.text}, and drop {', '.join(also)}, which does nothing on this GPU"
        yield move._replace(text=text, argv=words.without(move.argv, *also))


def _moves(given: Given, launch: Launch) -> Iterator[Move]:
    argv = given.argv
    backends: Iterator[Move] = iter(())
    if launch.stage == "arg-parse":
        if given.form == "serve" and argv and not words.is_flag(argv[0]):
            yield Move(f"--model-path {argv[0]} instead of {argv[0]} alone", ("--model-path", *argv))
        yield from spelling(argv, given.book, launch.error or "")
    else:
        yield from _named(argv, launch)
        backends = _backends(given, launch)
        asked = any(words.last(argv, flag) is not None for flag in ATTENTION_FLAGS)
        yield from islice(backends, 1 + asked)  # the release's choice, and the best by name; the others come later
    yield from _kernels(given)
    draft = {span.flag for span in words.spans(argv) if span.flag.startswith("--speculative-")}
    if len(draft) > 1:
        yield Move("drop every --speculative-... flag", words.without(argv, *draft), "speculative decoding")
    droppable = list(dict.fromkeys(span.flag for span in words.spans(argv) if _may_go(span.flag)))
    for flag in droppable:
        if flag not in ATTENTION_FLAGS:
            yield Move(f"drop {words.shown(argv, flag)}", words.without(argv, flag))
    if launch.stage != "arg-parse":
        for flag, values, gives_up in _OTHER_VALUES:
            now = words.value_of(argv, flag)
            spoken_of = flag[2:].replace("-", "_") in (launch.error or "").lower().replace("-", "_")
            for value in values:
                if value != now and not (now is None and value == "auto"):
                    changed = words.put(argv, flag, value)
                    yield Move(f"{flag} {value}", changed, gives_up, kind=flag, otherwise=not spoken_of)
    yield from backends
    for i, first in enumerate(droppable):
        for second in droppable[i + 1 :]:
            both = " and ".join(words.shown(argv, flag) for flag in (first, second))
            yield Move(f"drop {both}", words.without(argv, first, second), otherwise=True)
    if launch.stage != "arg-parse":
        yield from _backends(given, launch, dense=True)


def _may_go(flag: str) -> bool:
    return flag not in words.WHICH and not is_secret(flag)


def _named(argv: Sequence[str], launch: Launch) -> Iterator[Move]:
    """What the engine's own words name, as in `requires --mamba-ssm-dtype bfloat16`."""
    for name, value in dict.fromkeys(_NAMED.findall(launch.error or "")):
        flag = words.full(name)
        if flag in words.WHICH or flag in ATTENTION_FLAGS or not value or value in _ENGLISH:
            continue
        if words.value_of(argv, flag) != value:
            yield Move(f"{flag} {value.rstrip('.')}", words.put(argv, flag, value.rstrip(".")))


# what stands behind a flag in a sentence, and is no value
_ENGLISH = frozenset({"is", "on", "to", "or", "and", "if", "for", "with", "in", "requires", "must", "only", "flag",
                      "option", "explicitly"})  # fmt: skip


def _backends(given: Given, launch: Launch, *, dense: bool = False) -> Iterator[Move]:
    """The engine's choice instead of the backend asked for; then every other, those that are fast first.

    dense: those, instead, that serve a model of sparse attention without it.
    """
    argv = given.argv
    asked = [flag for flag in ATTENTION_FLAGS if words.last(argv, flag) is not None]
    sparse = indexed(given.config)
    plain = words.without(argv, *asked)
    shown = " ".join(words.shown(argv, flag) for flag in asked)
    if asked and not dense:
        yield Move(f"drop {shown}", plain, kind="backend")
    base, instead = ATTENTION_FLAGS[0], ""
    if asked == [base]:
        instead = f" instead of {words.value_of(argv, base)}"
        plain = tuple(argv)
    elif asked:
        instead = f" instead of {shown}"
    now = words.value_of(argv, base) if asked == [base] else None
    for name in _ordered(given.book, launch):
        wanted = (is_dense(name) if dense else name in SPARSE) if sparse else not dense
        if name != now and wanted:
            gives_up = "sparse attention: beyond index_topk tokens of context it is another model" if dense else ""
            move = Move(f"{base} {name}{instead}", words.put(plain, base, name), gives_up, kind="backend")
            yield move._replace(otherwise=dense or name in _LAST)


def _ordered(version: str, launch: Launch) -> list[str]:
    """The release's own order; where every candidate has been asked already, only those that do not refuse."""
    values = entry(version).choices["attention_backend"].names
    for choice in launch.choices:
        if choice.flag == ATTENTION_FLAGS[0]:
            values = tuple(v.backend for v in choice.verdicts if v.status is Status.ACCEPTS)
    return sorted((name for name in values if name not in FOREIGN), key=lambda name: name in _LAST)


def _kernels(given: Given) -> Iterator[Move]:
    """Another kernel for sparse or linear attention, where the user asked for one."""
    known = entry(given.book).choices
    for field in _KERNEL_FIELDS:
        flag = "--" + field.replace("_", "-")
        now = words.value_of(given.argv, flag)
        if now is None or field not in known:
            continue
        yield Move(f"drop {words.shown(given.argv, flag)}", words.without(given.argv, flag), kind=flag)
        for name in known[field].names:
            if name not in (now, "aiter"):
                yield Move(f"{flag} {name} instead of {now}", words.put(given.argv, flag, name), kind=flag)
