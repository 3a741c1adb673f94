"""The answer for programs. The shape is documented in docs/json.md; `schema` changes when it does."""

from __future__ import annotations

from typing import Any

import msgspec

from attnfit.core import Gpu, LayerQuestion, Question, Report, Selection, Verdict
from attnfit.report import launch_kernels, planned

SCHEMA = 1

# What of a Question is the engine's own selector config, in its own order; the rest is context.
SELECTOR_FIELDS = (
    "head_size", "dtype", "kv_cache_dtype", "block_size", "use_mla", "has_sink", "use_sparse", "use_mm_prefix",
    "use_per_head_quant_scales", "attn_type", "has_sliding_window", "use_non_causal", "use_batch_invariant",
    "use_kv_connector", "use_pcp", "use_adaptive_verification", "use_dcp", "use_rswa",
)  # fmt: skip


def render(report: Report) -> bytes:
    """One JSON object, indented, with a trailing newline."""
    return msgspec.json.format(msgspec.json.encode(as_dict(report)), indent=2) + b"\n"


def as_dict(report: Report) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "verdict": report.verdict,
        "exit_code": report.exit_code,
        "engine": report.engine,
        "release": report.release,
        "exact": report.exact,
        "model": report.model,
        "gpus": [{**_gpu(gpu), "count": count} for gpu, count in report.gpus],
        "said": list(report.said),
        "launch": launch_dict(report),
        "steps": [planned.step_dict(step) for step in report.steps],
        "plan": planned.plan_dict(report.plan),
    }


def launch_dict(report: Report) -> dict[str, Any]:
    """The launch with the field names of the engine's own objects, and every verdict of every question."""
    launch = report.launch
    return {
        "ok": launch.ok,
        "stage": launch.stage,
        "error": launch.error,
        "detail": launch.detail,
        "where": launch.where,
        "when": launch.when,
        "unknown": list(launch.unknown),
        "notes": list(launch.notes),
        "hypothetical": launch.hypothetical,
        "dtype": launch.dtype,
        "kv_cache_dtype": launch.kv_cache_dtype,
        "kv_cache_dtype_after_init": launch.kv_cache_dtype_after_init,
        "block_size": launch.block_size,
        "block_size_after_load": launch.block_size_after_load,
        "chosen": dict(launch.chosen),
        "changes": [msgspec.structs.asdict(change) for change in launch.changes],
        "hazards": [msgspec.structs.asdict(hazard) for hazard in launch.hazards],
        "kernels": [launch_kernels.as_dict(kernel) for kernel in launch.kernels],
        "choices": [
            {"what": c.what, "flag": c.flag, "chosen": list(c.chosen), "values": [_verdict(v) for v in c.verdicts]}
            for c in launch.choices
        ],
        "reply": launch.reply or None,
        "fit": msgspec.structs.asdict(launch.fit) if launch.fit is not None else None,
        "selector_configs": [{**layer_dict(layer), **selection_dict(layer.selection)} for layer in launch.layers],
    }


def layer_dict(layer: LayerQuestion) -> dict[str, Any]:
    q = layer.question
    return {
        "role": layer.role,
        "layer_class": layer.layer_class,
        "count": layer.count,
        "config": selector_config(q),
        "num_heads": q.num_heads,
        "selected": q.backend,
        "chosen": layer.selection.chosen,
        "error": layer.selection.error,
    }


def selector_config(question: Question) -> dict[str, Any]:
    return {name: getattr(question, name) for name in SELECTOR_FIELDS}


def selection_dict(selection: Selection) -> dict[str, Any]:
    return {
        "automatic": selection.automatic,
        "valid": list(selection.valid),
        "unknown": selection.unknown,
        "backends": [_verdict(v) for v in selection.verdicts],
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "backend": verdict.backend,
        "status": verdict.status.value,
        "candidate": verdict.candidate,
        "brought_by": verdict.brought_by,
        "unknown": verdict.unknown,
        "reasons": [msgspec.structs.asdict(reason) for reason in verdict.reasons],
    }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    return {**msgspec.structs.asdict(gpu), "capability": str(gpu.capability) if gpu.capability else None}
