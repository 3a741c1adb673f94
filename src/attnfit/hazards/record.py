"""One hazard, as data: facts in a closed vocabulary, with their source. What does not fit is a named function.

Records that know no engine lie in `hazards/neutral.json`, an engine's own in `engines/ENGINE/hazard_records.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

# What a hazard is about: the words that answers, filters and tests use.
KINDS = (
    "allreduce-fusion", "arch-attention", "attention-sinks", "bad-backend-name", "build-mismatch", "checkpoint", "dcp",
    "deepgemm-arch", "deepgemm-jit", "deepgemm-scale", "disk-space", "driver", "dtype", "fa-version",
    "flag-arch-mismatch", "flashinfer-jit", "fp8-triton-arch", "gguf", "gpu-memory", "head-count", "head-size",
    "host-compiler", "host-memory", "hub-access", "hybrid-gdn", "jit-arch", "kv-cache-dtype", "kv-memory",
    "mamba-cache", "missing-package", "mixed-gpus", "mla-prefill", "model-backend-allowlist", "nccl",
    "no-kernel-image", "nvfp4-kernel", "option-conflict", "page-size", "port-in-use", "ptxas", "quant-capability",
    "quant-shape", "removed-option", "sparse-mla", "spec-decode", "too-few-gpus", "tp-divisibility",
    "triton-shared-memory", "trtllm-gen-sm120", "unknown-architecture", "vit-attention", "workspace",
)  # fmt: skip

# When it strikes, in the order of a start. "runtime": when it already serves.
STAGES = ("arg-parse", "config", "backend-selection", "weight-load", "warmup", "runtime")

Sure = Literal["certain", "likely"]  # the words name the cause; they fit it, and it was concluded from reports


class Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a log says of it, on one line. Everything given must hold."""

    has: tuple[str, ...]  # literals, in this order
    regex: str = ""  # found in the line; named groups are figures for the remedy
    lacks: tuple[str, ...] = ()  # literals that stand nowhere in the line
    near: tuple[str, ...] = ()  # literals, one of which stands in the same line or in the traceback above it
    seen: str = ""  # a literal of an earlier line of the same start
    judge: str = ""  # a named function of the engine has the last word: it returns the id of the record
    weak: bool = False  # launches that go on print it too: a cause only where the log is nothing but an excerpt
    alone: bool = False  # said of other failures too: a cause only where nothing was raised before it
    likely: bool = False  # these words fit other causes too


class Remedy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way out. Values may hold figures of the signature: "{blocks}"."""

    text: str  # what it means, a clause
    set: Mapping[str, str] = {}  # flag -> value; "" for a flag that stands bare
    drop: tuple[str, ...] = ()  # flags
    variables: Mapping[str, str | None] = {}  # environment variable -> value; None takes it away
    installs: tuple[str, ...] = ()  # requirements, as pip reads them
    release: str = ""  # of the engine, as a specifier: ">=0.24"
    gives_up: str = ""
    shows: bool = False  # a diagnosis: it cures nothing, and the next log or the machine says more of the cause
    engine: str = ""  # holds for this engine only: its flags are meant
    near: tuple[str, ...] = ()  # of a log: literals, one of which is said of the failure (`suits`)
    lacks: tuple[str, ...] = ()  # of a log: literals that are not said of it
    when: tuple[str, ...] = ()  # of a launch: the predicates it is for; empty: any; "log": none


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where it is known from: a public report, or the engine's source in some releases."""

    url: str = ""
    where: Mapping[str, str] = {}  # release -> file:line
    said: str = ""  # what was seen there, where that is not the line itself


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    id: str  # "AF123": never given to another hazard
    kind: str
    title: str
    stage: str
    signatures: tuple[Signature, ...]
    why: str
    remedies: tuple[Remedy, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    releases: str = ""  # of the engine, as a specifier; empty: of all that are known
    figures: str = ""  # a named function of hazards/figures.py that works figures out from those captured
    how_sure: Sure = "certain"
    when: tuple[str, ...] = ()  # named functions of the engine's `foreseen` that say whether a launch meets it
    engine: str = ""  # set by where the record lies; empty: of none in particular
