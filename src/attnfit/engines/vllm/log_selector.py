"""The selector's refusal as a log prints it, taken apart: the config it was asked with, each backend's reasons, and
which hazard that is.

    No valid attention backend found for cuda with AttentionSelectorConfig(head_size=576, ...). Reasons: {A: [x, y]}.
    Selected backend AttentionBackendEnum.A is not valid for this configuration. Reason: ['x']

vllm/platforms/cuda.py of 0.12.0 to 0.33.0; 0.12.0 prints the config as keyword arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# What a reason is about, by what its words hold, in every spelling of 0.12.0 to 0.33.0; in the order they are tried.
_TOPICS = (
    ("kv-cache-dtype", re.compile(r"kv[_ -]cache[_ ]dtype|kv cache", re.I)),
    ("sparse-mla", re.compile(r"\bsparse\b", re.I)),
    ("attention-sinks", re.compile(r"\bsinks?\b", re.I)),
    ("head-size", re.compile(r"head[_ ]?size|head[_ ]?dim", re.I)),
    ("page-size", re.compile(r"block[_ ]?size|page size", re.I)),
    ("spec-decode", re.compile(r"non[- _]causal", re.I)),
    ("dcp", re.compile(r"\b(?:dcp|pcp)\b|context parallel", re.I)),
    ("dtype", re.compile(r"\bdtype\b", re.I)),
    ("capability", re.compile(r"capability|on this device|only supported on|requires? (?:Hopper|Blackwell|SM)", re.I)),
)
# Of several reasons that stand alone in front of a backend, the one a flag changes comes first.
_CURABLE = ("kv-cache-dtype", "dtype", "page-size", "attention-sinks", "head-size", "spec-decode", "dcp")
_IDS = {
    "kv-cache-dtype": "AF201", "sparse-mla": "AF202", "attention-sinks": "AF203", "head-size": "AF204",
    "page-size": "AF205", "spec-decode": "AF206", "dcp": "AF207", "dtype": "AF208", "capability": "AF209",
    "named capability": "AF240",
}  # fmt: skip
_REASONS = re.compile(r"Reasons?:\s*(\{.*\}|\[.*\])", re.S)
_CUT = re.compile(r"Reason:\s*\[(['\"][^\]]{8,})$")  # of one backend, where the line ends before the list does
_WORDS = re.compile(r"['\"]([^'\"]+)")
_BACKEND = re.compile(r"(\w+)'?:\s*(\[(?:[^\[\]]|\[[^\[\]]*\])*\])")
_SELECTED = re.compile(r"Selected backend (?:\w+\.)?(\w+)")
_FIELD = re.compile(r"\b([a-z_]+)(?:=|: )(None|True|False|[\w.]+)")
_SHORTENED = re.compile(r"\.\.\.|…|\[…\]")


class Asked(NamedTuple):
    config: Mapping[str, str]
    reasons: Mapping[str, Sequence[str]]
    whole: bool  # the reasons are all there
    named: bool = False  # the backend was asked for by name


def selector(text: str) -> Asked | None:
    """The refusal in a line, as far as it goes; None where there is none."""
    no_valid = text.find("No valid attention backend found")
    selected = _SELECTED.search(text)
    if no_valid < 0 and (selected is None or "not valid for this configuration" not in text):
        return None
    head, _, _ = text.partition("Reason")
    config = dict(_FIELD.findall(head))
    found = _REASONS.search(text)
    if found is None:
        cut = _CUT.search(text)
        if selected is not None and cut is not None:  # what stands there is refused, whatever else is
            return Asked(config, {selected[1]: _WORDS.findall(cut[1])}, True, named=True)
        return Asked(config, {}, False)
    if selected is not None and found[1].startswith("["):
        return Asked(config, {selected[1]: _listed(found[1])}, True, named=True)
    return Asked(config, {name: _listed(words) for name, words in _BACKEND.findall(found[1])}, True)


def _listed(text: str) -> list[str]:
    """ "['a', 'b, c']" or "[a, b]": the reasons. Quoted ones may hold commas."""
    quoted = re.findall(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"", text)
    if quoted:
        return [one or other for one, other in quoted]
    return [part.strip() for part in text.strip("[]").split(", ") if part.strip()]


def judge(text: str) -> str | None:
    """Which hazard the refusal is; None where the line does not say enough."""
    asked = selector(text)
    topic = _topic(asked, text) if asked is not None else None
    return _IDS.get(topic) if topic is not None else None


def _topic(asked: Asked, text: str) -> str | None:
    if not asked.whole:
        return _cut_short(asked.config, text)
    per_backend = [_topics(reasons) for reasons in asked.reasons.values()]
    if asked.named and per_backend:
        found = per_backend[0]
        if "sparse-mla" in found and not _non_sparse(asked):
            return "sparse-mla"
        if "capability" in found:
            return "named capability"  # whatever else it refuses, it is not made for this GPU
        return found[0] if len(found) == 1 else None
    alone = [found[0] for found in per_backend if len(found) == 1]
    for topic in _CURABLE:
        if topic in alone:
            return topic
    if asked.config.get("use_sparse") == "True" or (per_backend and all("sparse-mla" in f for f in per_backend)):
        return "sparse-mla"
    return "capability" if per_backend and "capability" in alone else None


def _topics(reasons: Sequence[str]) -> list[str]:
    """What a backend's reasons are about, each once; a reason of no known topic counts as one of its own."""
    found = []
    for reason in reasons:
        found.append(next((topic for topic, words in _TOPICS if words.search(reason)), reason))
    return list(dict.fromkeys(found))


def _non_sparse(asked: Asked) -> bool:
    """A sparse backend was asked for a dense model: it is the name that is wrong."""
    return any("non-sparse" in reason for reasons in asked.reasons.values() for reason in reasons)


def _cut_short(config: Mapping[str, str], text: str) -> str | None:
    """Somebody shortened the line by hand and left what mattered to him: what he left decides, if it can.

    A line that merely ends early decides nothing: its reasons would have.
    """
    if not _SHORTENED.search(text) or config.get("head_size") not in ("512", "576"):
        return None
    if config.get("use_sparse") == "True":
        return "sparse-mla"
    if config.get("kv_cache_dtype", "auto") not in ("auto", "None", "bfloat16", "float16"):
        return "kv-cache-dtype"
    return "sparse-mla" if "use_mla" not in config and "use_sparse" not in config else None
