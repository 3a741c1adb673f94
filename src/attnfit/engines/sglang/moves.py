"""Changes of an SGLang launch worth trying where it does not start. Whether one helps is not said here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from attnfit.core import Launch, Status
from attnfit.engines import Cost, Given, Move
from attnfit.engines.move import starts, trusting
from attnfit.engines.sglang import words
from attnfit.engines.sglang.hazards import ATTENTION_FLAGS, FOREIGN, SPARSE, indexed
from attnfit.engines.sglang.hazards import dense as is_dense
from attnfit.engines.sglang.moves_costs import gives_up, price
from attnfit.engines.sglang.moves_sizes import sizes
from attnfit.engines.sglang.moves_spelling import options, spelling
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
    ("--dtype", ("bfloat16", "float16"), ""),
)
_DENSE = (
    "sparse attention: it is dense, so beyond index_topk tokens of context another model, and each token then attends "
    "to all before it"
)
# `--mamba-ssm-dtype bfloat16` in the engine's own words
_NAMED = re.compile(r"(--[a-z][a-z0-9-]+)(?:[= ]['\"`]?([A-Za-z0-9_.]+))?")


def moves(given: Given, launch: Launch) -> Iterator[Move]:
    """Flags that do nothing; what the refusal names; another backend; one flag less; another value."""
    argv = given.argv
    for flag in dict.fromkeys(hazard.flag for hazard in launch.hazards if hazard.flag):
        if words.last(argv, flag) is not None:
            text = f"drop {words.shown(argv, flag)}"
            yield Move(text, words.without(argv, flag), cost=Cost.NOTHING, kind="inert")
    if starts(launch):
        return
    parsed, split = launch.stage != "arg-parse", list[Move]()
    if not parsed:
        if given.form == "serve" and argv and not words.is_flag(argv[0]):
            text = f"--model-path {argv[0]} instead of {argv[0]} alone"
            yield Move(text, ("--model-path", *argv), cost=Cost.NOTHING)
        yield from spelling(argv, given.book, launch.error or "")
    else:
        yield from _named(given, launch)
        yield from trusting(argv, launch.error or "")
        split = list(sizes(given, launch.error or ""))
        yield from split
        if not split:  # no kernel is in the way of a split that the GPUs do not allow
            yield from _backends(given, launch)
            yield from _kernels(given)
    draft = {span.flag for span in words.spans(argv) if span.flag.startswith("--speculative-")}
    if len(draft) > 1:
        lost = "speculative decoding: speed"
        yield Move("drop every --speculative-... flag", words.without(argv, *draft), lost, whole=True)
    for flag in dict.fromkeys(span.flag for span in words.spans(argv) if _may_go(span.flag)):
        if flag not in ATTENTION_FLAGS:
            text = f"drop {words.shown(argv, flag)}"
            yield Move(text, words.without(argv, flag), gives_up(flag), cost=price(flag))
    if parsed and not split:
        yield from _values(argv, launch)
        yield from _backends(given, launch, dense=True)


def _values(argv: Sequence[str], launch: Launch) -> Iterator[Move]:
    """Other values of flags that decide much; those that the refusal speaks of cost less."""
    for flag, values, lost in _OTHER_VALUES:
        now = words.value_of(argv, flag)
        spoken_of = flag[2:].replace("-", "_") in (launch.error or "").lower().replace("-", "_")
        for value in values:
            if value != now and not (now is None and value == "auto"):
                cost = price(flag) + (0 if spoken_of else 2)
                yield Move(f"{flag} {value}", words.put(argv, flag, value), lost, kind=flag, cost=cost)


def _may_go(flag: str) -> bool:
    return flag not in words.WHICH and not is_secret(flag)


def _named(given: Given, launch: Launch) -> Iterator[Move]:
    """What the engine's own words name, as in `requires --mamba-ssm-dtype bfloat16`, if it is a flag of its own."""
    argv, known = given.argv, {words.full(name) for name in options(given.book)}
    for name, value in dict.fromkeys(_NAMED.findall(launch.error or "")):
        flag = words.full(name)
        if flag not in known or flag in words.WHICH or flag in ATTENTION_FLAGS or not value or value in _ENGLISH:
            continue
        if words.value_of(argv, flag) != value:
            plain = value.rstrip(".")
            yield Move(f"{flag} {plain}", words.put(argv, flag, plain), cost=price(flag))


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
        yield Move(f"drop {shown}", plain, kind="backend", cost=Cost.BACKEND, whole=True)
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
            lost = _DENSE if dense else ""
            cost = Cost.DENSE if dense else Cost.BACKEND + (4 if name in _LAST else 1)
            text, argv = f"{base} {name}{instead}", words.put(plain, base, name)
            yield Move(text, argv, lost, kind="backend", cost=cost, whole=len(asked) > 1)


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
    flags = ["--" + field.replace("_", "-") for field in _KERNEL_FIELDS]
    asked = [flag for flag in flags if words.value_of(given.argv, flag) is not None]
    if len(asked) > 1:
        text = f"drop {', '.join(words.shown(given.argv, flag) for flag in asked)}"
        yield Move(text, words.without(given.argv, *asked), kind="kernels", cost=Cost.BACKEND + 1)
    for field in _KERNEL_FIELDS:
        flag = "--" + field.replace("_", "-")
        now = words.value_of(given.argv, flag)
        if now is None or field not in known:
            continue
        text = f"drop {words.shown(given.argv, flag)}"
        yield Move(text, words.without(given.argv, flag), kind=flag, cost=Cost.BACKEND)
        for name in known[field].names:
            if name not in (now, "aiter"):
                text = f"{flag} {name} instead of {now}"
                yield Move(text, words.put(given.argv, flag, name), kind=flag, cost=Cost.BACKEND + 1)
