"""What attnfit's sparse MLA backend for vLLM serves: the one place, read by `check` and by the backend itself.

Standard library only: `check` must not import torch. The figures are our own kernels' (kernels/mla/configs.py; a test
holds the two equal) and our own adapters'; where one rests on vLLM's code, the release and line stand beside it.
"""

from __future__ import annotations

from collections.abc import Iterable

NAME = "TRITON_MLA_SPARSE"
NAME_IF_TAKEN = "ATTNFIT_TRITON_MLA_SPARSE"  # where a release has a backend of that name itself; none to 0.33.0
CUSTOM = "CUSTOM"  # the one name that the other releases leave to plug-ins

# Releases an adapter was written for and tried with. Another release is refused by name, and vLLM starts without us.
RELEASES = ("0.16.0", "0.23.0", "0.28.0", "0.30.0", "0.32.0", "0.33.0")
CPU_RELEASES = ("0.32.0",)  # of the build for CPUs: what it forces on MLA models differs between releases
NAMED = ("0.32.0", "0.33.0")  # `register_backend` takes a new name (registry.py, 0.32.0:392, 0.33.0:403)

# Their indexer picks among its own rank's keys only (layers/sparse_attn_indexer.py; 0.28.0 on merges over the ranks).
NO_DCP = ("0.16.0", "0.23.0")
LAYER_WRITES_CACHE = ("0.16.0",)  # mla_attention.py:524: not the implementation, so our writer is not asked

CAPABILITIES = ((8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1))
DTYPES = ("float16", "bfloat16")
CPU_DTYPES = ("float16", "bfloat16", "float32")  # the float64 reference takes what CPU models have
HEAD_SIZES = (576, 512)  # kv_lora_rank 512, with a rotary part of 64 or none
KV_CACHE_DTYPES = ("auto", "float16", "bfloat16", "fp8_ds_mla")
MAX_TOPK = 4096


def dcp_refusal(release: str, dcp: int) -> str:
    """Why that release cannot be served on `dcp` ranks of decode context parallelism, in a sentence; "" if it can."""
    if dcp < 2 or release not in NO_DCP:
        return ""
    return (
        f"the indexer of vLLM {release} picks among the keys of its own rank only: with decode_context_parallel_size "
        f"{dcp} answers would be silently wrong"
    )


def refusals(
    *,
    dtype: str,
    kv_cache_dtype: str,
    head_size: int,
    capability: tuple[int, int] | None,
    index_topk: int | None,
    release: str,
) -> list[tuple[str, str, str]]:
    """Why the backend does not serve such layers: (what, required, observed); empty if it does.

    dtype, kv_cache_dtype: vLLM's names. capability: of the GPU; None for a CPU.
    """
    found: list[tuple[str, str, str]] = []
    dtypes = DTYPES if capability is not None else CPU_DTYPES
    if head_size not in HEAD_SIZES:
        found.append(("head_size", _any_of(HEAD_SIZES), str(head_size)))
    if dtype not in dtypes:
        found.append(("dtype", _any_of(dtypes), dtype))
    if kv_cache_dtype not in KV_CACHE_DTYPES:
        found.append(("kv_cache_dtype", _any_of(KV_CACHE_DTYPES), kv_cache_dtype))
    if capability is not None and capability not in CAPABILITIES:
        found.append(("capability", _any_of(f"{a}.{b}" for a, b in CAPABILITIES), "{}.{}".format(*capability)))
    if index_topk is not None and not 0 < index_topk <= MAX_TOPK:
        found.append(("index_topk", f"1 to {MAX_TOPK}", str(index_topk)))
    together = combination(
        head_size=head_size,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        writes_its_cache=release not in LAYER_WRITES_CACHE,
    )
    return found if together is None else [*found, together]


def combination(
    *, head_size: int, dtype: str, kv_cache_dtype: str, writes_its_cache: bool
) -> tuple[str, str, str] | None:
    """What is wrong with these together, as in `refusals`; None if nothing is."""
    if kv_cache_dtype in ("float16", "bfloat16") and kv_cache_dtype != dtype:
        return "kv_cache_dtype", f"the model's own dtype, {dtype},", kv_cache_dtype
    if kv_cache_dtype != "fp8_ds_mla":
        return None
    if head_size != 576:
        return "kv_cache_dtype", "head_size 576 for fp8_ds_mla", f"{head_size}"
    if dtype != "bfloat16" and not writes_its_cache:
        # csrc concat_and_cache_ds_mla_kernel copies the rotary part's 16 bits, and readers take them for bfloat16.
        return "dtype", "bfloat16 for fp8_ds_mla in this release, whose own writer is used,", dtype
    return None


def _any_of(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)
