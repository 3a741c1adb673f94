"""How a launch prints what a ready question prints otherwise.

Layers hand the selector a member of the enum AttentionType; its messages then show "AttentionType.DECODER" where a
ready question with attn_type "decoder" shows the plain word. Up to 0.13 AttentionType is a plain class of strings
(vllm/attention/backends/abstract.py:17), from 0.14 an enum (vllm/v1/attention/backend.py, class AttentionType).
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
from packaging.version import Version

from attnfit.core import Question, Selection, Verdict

_FIRST_ENUM = Version("0.14")
#: the enum's member without a class, 0.12 to 0.33 (vllm/v1/attention/backends/registry.py:70, get_path)
_NO_CLASS = "TORCH_SDPA"
_UNREGISTERED = (
    f"ValueError: Backend {_NO_CLASS} must be registered before use. Use register_backend(Backend.{_NO_CLASS}, "
    "'your.module.YourClass')"
)
_STANDIN = "types.SimpleNamespace"  # what stands for the config in a ready question
_WORD = re.compile(r"\b(attn_type=|attention type )(decoder|encoder|encoder_only|encoder_decoder)\b")


def spoken(
    select: Callable[[Question], Selection], release: str, text_class: str = ""
) -> Callable[[Question], Selection]:
    """`select` with the wording of a launch. `text_class`: the class of the model's text config, which an
    AttributeError about a missing key names."""
    plain = Version(release) < _FIRST_ENUM

    def selected(question: Question) -> Selection:
        found = select(question)
        if question.backend == _NO_CLASS:
            return msgspec.structs.replace(found, error=_UNREGISTERED, unknown="")
        if plain:
            return found
        if question.attn_type == "decoder" and found.error is None:
            return found
        return msgspec.structs.replace(
            found,
            error=None if found.error is None else _enum(found.error).replace(_STANDIN, text_class or _STANDIN),
            verdicts=tuple(_verdict(v) for v in found.verdicts),
        )

    return selected


def _enum(text: str) -> str:
    return _WORD.sub(lambda found: f"{found[1]}AttentionType.{found[2].upper()}", text)


def _verdict(verdict: Verdict) -> Verdict:
    if not any(_WORD.search(reason.text) for reason in verdict.reasons):
        return verdict
    reasons = tuple(msgspec.structs.replace(reason, text=_enum(reason.text)) for reason in verdict.reasons)
    return msgspec.structs.replace(verdict, reasons=reasons)
