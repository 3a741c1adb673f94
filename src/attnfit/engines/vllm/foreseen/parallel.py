"""What a way of dividing the model needs of the chosen backend, and is asserted only when the KV cache is set up."""

from __future__ import annotations

from collections.abc import Iterator

from attnfit.engines.vllm.foreseen.seen import BREAKS, MAY_BREAK, Found, Seen, accepting

# Backend -> the first minor release whose implementation sets `can_return_lse_for_decode`; 99: none of 0.12 to 0.33
# does. The base class says False (vllm/v1/attention/backend.py; abstract.py in 0.12 and 0.13).
_LSE_SINCE = {
    "FLASHMLA_SPARSE": 29,
    "FLASHINFER_MLA_SPARSE": 25,
    "FLASHINFER_MLA": 25,
    "FLASHINFER_MLA_SPARSE_SM120": 99,
    "TRITON_ATTN": 99,
    "FLEX_ATTENTION": 99,
    "TREE_ATTN": 99,
}
# Those whose implementation sets it: in every release from 0.12 to 0.33, or from the one above on (their modules in
# v1/attention/backends).
_RETURNS_LSE = ("FLASHINFER_MLA", "FLASHMLA", "FLASH_ATTN_MLA", "CUTLASS_MLA", "TRITON_MLA", "FLASHINFER_MLA_SPARSE",
                "FLASHMLA_SPARSE", "FLASH_ATTN", "FLASHINFER")  # fmt: skip
_ASSERTED = {12: "vllm/v1/worker/gpu_model_runner.py:5282", 13: "vllm/v1/worker/cp_utils.py:30",
             15: "vllm/v1/worker/cp_utils.py:31", 26: "vllm/v1/worker/cp_utils.py:46",
             30: "vllm/v1/worker/cp_utils.py:49", 31: "vllm/v1/worker/cp_utils.py:51"}  # fmt: skip


def dcp_without_lse(seen: Seen) -> Found | None:
    """AF207: ranks merge their results by the softmax's sums (LSE), which not every backend returns."""
    if seen.cfg.dcp <= 1:
        return None
    short = [name for name in seen.chosen if seen.minor < _LSE_SINCE.get(name, 0)]
    if not short:
        return None
    because = f"--decode-context-parallel-size {seen.cfg.dcp}, and {' and '.join(short)} returns no softmax sums"
    where = _ASSERTED[max(minor for minor in _ASSERTED if minor <= seen.minor)]
    return Found("AF207", BREAKS, because, where, ways=tuple(_with_lse(seen, short)))


def _with_lse(seen: Seen, short: list[str]) -> Iterator[str]:
    """Other backends that take these layers and are known to return the sums; then the launch without."""
    layers = [layer for layer in seen.layers if layer.selection.chosen in short]
    for name in accepting(layers):
        if name in _RETURNS_LSE and name not in short and seen.minor >= _LSE_SINCE.get(name, 0):
            yield f"another backend, which takes this launch and returns them [--attention-backend {name}]"
    yield "do without it [--decode-context-parallel-size 1]; gives up: the KV cache is kept whole on every rank"


def dcp_workspace(seen: Seen) -> Found | None:
    """AF242: the sums are returned through a workspace of fixed size; from 0.30.0 on it is reckoned (same file:329)."""
    larger = "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE" in seen.variables
    if seen.cfg.dcp <= 1 or larger or not 25 <= seen.minor < 30 or "FLASHINFER_MLA_SPARSE" not in seen.chosen:
        return None
    because = (
        f"--decode-context-parallel-size {seen.cfg.dcp} with FLASHINFER_MLA_SPARSE, and 394 MiB whatever the batch"
    )
    needs = "how large FlashInfer's kernels need it for this many heads and tokens"
    return Found("AF242", MAY_BREAK, because, "vllm/v1/attention/backends/mla/flashinfer_mla_sparse.py:300", needs)
