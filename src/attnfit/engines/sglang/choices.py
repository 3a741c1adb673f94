"""Every candidate accounted for: the user's launch with each value of an option in the place of theirs."""

from __future__ import annotations

from collections.abc import Iterator

from attnfit.core import Choice, Hazard, Reason, Status, Verdict
from attnfit.engines.sglang import hazards, needs, words
from attnfit.engines.sglang.answers import Answer
from attnfit.engines.sglang.launch import Asked, chosen, words_of
from attnfit.engines.sglang.releases import entry
from attnfit.engines.sglang.stages import short

# what, the field whose values are asked, the other fields that must not stand beside it, the key of `chosen`
_ATTENTION = ("attention backend", "attention_backend", ("prefill_attention_backend", "decode_attention_backend"))
_SPARSE = (
    ("sparse prefill kernel", ("dsa_prefill_backend", "nsa_prefill_backend")),
    ("sparse decode kernel", ("dsa_decode_backend", "nsa_decode_backend")),
)
_LINEAR = (
    ("linear prefill kernel", "linear_attn_prefill_backend"),
    ("linear decode kernel", "linear_attn_decode_backend"),
)


def choices(asked: Asked) -> tuple[tuple[Choice, ...], tuple[Hazard, ...]]:
    """What the launch chooses, candidate by candidate, and the hazards that only asking them all shows."""
    if asked.answer.get("stage") in ("arg-parse", "model-config") or asked.answer.get("ok") is None:
        return (), ()
    attention = _attention(asked)
    found = [attention] if attention is not None else []
    found += _others(asked)
    known: list[Hazard] = []
    if attention is not None:
        known += hazards.of_candidates(asked.answer, attention, _plainest(asked))
    return tuple(found), tuple(known)


def flag_of(field: str) -> str:
    return "--" + field.replace("_", "-")


def _attention(asked: Asked) -> Choice | None:
    what, field, beside = _ATTENTION
    values = entry(asked.version).choices.get(field)
    if values is None:
        return None
    argv = words.without(asked.case["argv"], *map(flag_of, beside))
    taken = tuple(dict.fromkeys(value for role, value in chosen(asked.answer) if role in ("prefill", "decode")))
    return Choice(
        what=what,
        flag=flag_of(field),
        chosen=taken if asked.answer.get("ok") else (),
        verdicts=tuple(_verdicts(asked, flag_of(field), values.names, argv)),
    )


def _others(asked: Asked) -> Iterator[Choice]:
    """Kernels that are chosen beside the backend, where the launch has such layers and passes."""
    if asked.answer.get("ok") is not True:
        return
    known, roles = entry(asked.version).choices, dict(chosen(asked.answer))
    for what, fields in _SPARSE:
        field = next((name for name in fields if name in known), None)
        if what in roles and field is not None:
            argv = words.without(asked.case["argv"], *map(flag_of, fields))
            yield _choice(asked, what, field, argv, roles[what])
    for what, field in _LINEAR:
        if what in roles and field in known:
            yield _choice(asked, what, field, tuple(asked.case["argv"]), roles[what])


def _choice(asked: Asked, what: str, field: str, argv: tuple[str, ...], taken: str) -> Choice:
    names = entry(asked.version).choices[field].names
    verdicts = tuple(_verdicts(asked, flag_of(field), names, argv))
    return Choice(what=what, flag=flag_of(field), chosen=(taken,), verdicts=verdicts)


def _verdicts(asked: Asked, flag: str, names: tuple[str, ...], argv: tuple[str, ...]) -> Iterator[Verdict]:
    answers = asked.others([words.put(argv, flag, name) for name in names])
    for name, answer in zip(names, answers, strict=True):
        kind = _KINDS.get(flag.split("-")[2], "attention_backend")
        needed = needs.sentence(asked.version, asked.case["facts"], kind, name)
        yield verdict_of(name, answer, needed)


_KINDS = {"dsa": "dsa", "nsa": "dsa", "linear": "linear_attn"}  # what a flag begins with -> kind in needs.json


def verdict_of(name: str, answer: Answer, needed: str = "") -> Verdict:
    """One candidate's verdict: the engine's message, the stage in words, and its place."""
    ok, own = answer.get("ok"), name not in hazards.FOREIGN
    if ok is None:
        missing = "; ".join(answer.get("unknown") or ()) or "what decides is missing"
        return Verdict(name, Status.UNKNOWN, unknown=missing, candidate=own)
    if ok:
        reasons = (Reason(code="needs", text=needed),) if needed else ()
        return Verdict(name, Status.ACCEPTS, reasons, candidate=own)
    stage = answer.get("stage")
    reason = Reason(code=str(stage), text=words_of(answer), observed=short(stage), where=hazards.place(answer))
    return Verdict(name, Status.REFUSES, (reason,), candidate=own)


def _plainest(asked: Asked) -> Answer:
    """The same model on the same GPUs, and nothing else asked for."""
    argv = asked.case["argv"]
    return asked.other(words.without(argv, *{span.flag for span in words.spans(argv)} - words.WHICH))
