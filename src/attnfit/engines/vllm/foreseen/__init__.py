"""Hazards of a launch that passes every gate of vLLM: what breaks afterwards, and how sure that is.

A predicate is a named function, here in a table by its name, and named again by the record (`when`) whose words and
remedies it stands for. Records are read only where one holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from attnfit.core import Hazard
from attnfit.engines.vllm.foreseen import kernels, packages, parallel, vision
from attnfit.engines.vllm.foreseen.inert import inert
from attnfit.engines.vllm.foreseen.seen import Found, Predicate, Seen
from attnfit.engines.vllm.foreseen.variables import unread

if TYPE_CHECKING:
    from attnfit.engines.vllm.launch import Case, Walked

WHEN: Mapping[str, Predicate] = {
    "ptxas": kernels.ptxas,
    "deep_gemm_blocks": kernels.deep_gemm_blocks,
    "deep_gemm_scales": kernels.deep_gemm_scales,
    "fp8_cache_in_triton": kernels.fp8_cache_in_triton,
    "v4_in_fp8": kernels.v4_in_fp8,
    "v4_without_kernels": kernels.v4_without_kernels,
    "packed_rope": kernels.packed_rope,
    "driver_too_old": packages.driver_too_old,
    "indexer_without_deep_gemm": packages.indexer_without_deep_gemm,
    "dcp_without_lse": parallel.dcp_without_lse,
    "dcp_workspace": parallel.dcp_workspace,
    "flashinfer_cannot_compile": packages.flashinfer_cannot_compile,
    "vit_backend": vision.vit_backend,
}

__all__ = ["WHEN", "foresee", "unread"]


def foresee(case: Case, walked: Walked, kv_cache_dtype: str | None) -> tuple[Hazard, ...]:
    """Those of a launch that passes; what breaks it comes first."""
    seen = Seen(
        cfg=walked.config,
        layers=tuple(walked.answer.layers),
        kv_layers=tuple(walked.answer.kv_layers),
        kv_cache_dtype=kv_cache_dtype,
        capability=case.capability,
        release=case.release,
        variables=case.variables,
        env=case.env,
        driver=case.driver,
    )
    found = {name: hit for name, predicate in WHEN.items() if (hit := predicate(seen)) is not None}
    return (*sorted(_said(found, seen), key=lambda hazard: not hazard.breaks), *inert(seen))


def _said(found: Mapping[str, Found], seen: Seen) -> Iterator[Hazard]:
    if not found:
        return
    from attnfit.hazards.catalogue import records_of
    from attnfit.hazards.words import meant, remedy_line

    for name, hit in found.items():
        record = records_of("vllm")[hit.record]
        yield Hazard(
            code=record.id,
            text=f"{record.title}: {hit.because}",
            where=hit.where,
            strength=hit.strength,
            needs=hit.needs,
            kind=record.kind,
            stage=record.stage,
            remedies=hit.ways or tuple(map(remedy_line, meant(record, "vllm", seen.release, name, seen.given))),
        )
