"""What attention backends say about the KV cache pages they take: kernel block sizes, packing, layouts.

Sources (0.33.0): each backend's `get_supported_kernel_block_sizes`, `customize_spec` and `supported_kv_cache_layouts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from attnfit.engines.vllm.fit.spec import Spec
from attnfit.engines.vllm.launch.blocks import Backends
from attnfit.engines.vllm.launch.pages import turboquant_slot
from attnfit.engines.vllm.launch.state import KvLayer, Unknown

if TYPE_CHECKING:
    from attnfit.engines.vllm.fit.specs import Built

#: backends that list exact sizes; all others take every multiple of what they list
FIXED = frozenset(
    {
        "TURBOQUANT", "FLASHMLA", "CUTLASS_MLA", "FLASHINFER_MLA", "TOKENSPEED_MLA", "B12X", "FLASHINFER", "HPC_ATTN",
        "DEEPSEEK_V32_INDEXER", "DEEPSEEK_V4_INDEXER", "FLASHMLA_SPARSE_DSV4", "FLASHINFER_MLA_SPARSE_DSV4",
        "TRITON_FLASHINFER",
    }
)  # fmt: skip
#: sparse kernels read the cache as flat rows: blocks lie whole pages of so many rows apart
ROWS = {
    "FLASHMLA_SPARSE": 1,  # mla/flashmla_sparse.py:168
    "FLASH_ATTN_MLA_SPARSE": 1,  # mla/flashattn_mla_sparse.py:54
    "FLASH_ATTN_MLA_SPARSE_FA4": 64,
    "FLASHINFER_MLA_SPARSE_SM90": 1,  # mla/flashinfer_mla_sparse_sm90.py:160
    "FLASHINFER_MLA_SPARSE": 32,  # mla/flashinfer_mla_sparse.py:73
    "FLASHINFER_MLA_SPARSE_SM120": 64,
}
#: physical layouts a backend takes, most preferred first; all others take any
LAYOUTS: dict[str, tuple[str, ...]] = {
    "TURBOQUANT": ("LBNHC",),  # turboquant_attn.py:160
    "FLEX_ATTENTION": ("LBNHC",),  # flex_attention.py:130
    "HPC_ATTN": ("LBNHC",),  # hpc_attn.py:321
    "B12X": ("LBHNC", "BLHNC"),  # b12x.py:252
    "KPOOL_TAIL": ("BLHNC",),  # mla/indexer.py:314
    "DEEPSEEK_V4_INDEXER": ("BLHNC", "BLNHC"),  # mla/indexer.py:349
}
#: flashinfer.py:729: trtllm-gen reads head-major blocks
_SM10X_LAYOUTS = {"FLASHINFER": ("LBHNC", "BLHNC"), "TRITON_FLASHINFER": ("LBHNC", "BLHNC")}
#: the enum's own order, and the order where no backend declares any (attention/backends/utils.py:227)
ALL_LAYOUTS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
_DEFAULT = ("LBNHC", "LBHNC", "BLNHC", "BLHNC", "BHLNC", "LHBNC")


def _sizes(b: Built, layer: KvLayer) -> tuple[list[int], bool]:
    """Kernel block sizes for this layer, and whether they are exact."""
    cfg = msgspec.structs.replace(b.cfg, head_size=layer.head_size or b.cfg.head_size)
    backends = Backends(cfg, layer.kv_cache_dtype or "auto", b.capability, {})
    own = layer.layer_class if layer.layer_class in backends.table["by_layer_class"] else layer.backend
    sizes = backends.sizes(own)
    exact = own in FIXED or own in backends.table["by_layer_class"]
    exact = exact or (own == "FLASH_ATTN" and sizes != [16])  # the FA4 kernels' own pages (flash_attn.py:362)
    return sizes, exact


def window_block(b: Built, layer: KvLayer, token_bytes: int, budget: int) -> int:
    """Block size of a sliding-window layer: the largest whose page fits the budget (layers/attention/attention.py).

    Where nothing fits, the smallest.
    """
    sizes, exact = _sizes(b, layer)
    most = budget // token_bytes
    found = sizes if exact else [max(size, most // size * size) for size in sizes]
    fitting = [size for size in found if size * token_bytes <= budget]
    return max(fitting) if fitting else min(found)


def packed(spec: Spec, layer: KvLayer, b: Built) -> Spec:
    """The spec as the layer's backend stores it (`customize_spec`, then v1/worker/utils.py:476)."""
    if spec.kind in (None, "MambaSpec"):
        return spec
    spec = _content(spec, layer)
    if layer.backend in ROWS:
        quantised = (layer.kv_cache_dtype or "auto") not in ("auto", "float16", "bfloat16", "float32")
        if layer.backend == "FLASHMLA_SPARSE" and quantised and b.capability.major != 10:
            return msgspec.structs.replace(spec, kernel_tokens=64)
        return msgspec.structs.replace(spec, row_bytes=ROWS[layer.backend] * spec.content)
    sizes, exact = _sizes(b, layer)
    return msgspec.structs.replace(spec, kernel_tokens=max(sizes)) if exact and sizes else spec


def _content(spec: Spec, layer: KvLayer) -> Spec:
    """Bytes of one stored state where the backend packs keys, values and scales together."""
    kv, head, backend = layer.kv_cache_dtype or "auto", layer.head_size or 0, layer.backend
    latent = spec.kind in ("MLAAttentionSpec", "SlidingWindowMLASpec")
    if kv.endswith("_per_token_head") and (latent or backend.startswith("TRITON_ATTN")):
        values = head if latent else 2 * head  # triton_attn.py:308, mla_attention.py:1600
        data = values // 2 if kv.startswith("int4") else values
        return msgspec.structs.replace(spec, content=data + 8)
    if kv.startswith("turboquant_") and backend == "TURBOQUANT":
        return msgspec.structs.replace(spec, content=turboquant_slot(kv, head))
    if kv in ("nvfp4", "nvfp4_4over6") and backend == "FLASHINFER" and not latent:
        return msgspec.structs.replace(spec, heads=2 * spec.heads, content=head // 2 + head // 16)
    if backend == "B12X":
        return msgspec.structs.replace(spec, heads=2, content=spec.heads * spec.content // 2)
    if kv.startswith("octave_") or kv == "ultraquant_4bit":
        raise Unknown(f"how {backend} packs {kv}")
    return spec


def layout(b: Built, specs: list[Spec]) -> str:
    """The physical layout of the whole KV cache (attention/backends/utils.py:243, 293). Raises Unknown."""
    declared: list[tuple[str, ...]] = []
    pooled = {layer.backend for layer in b.layers if layer.layer_class == "Glm5NextIndexerCache"}
    for backend in [*pooled, *dict.fromkeys(layer.backend for layer in b.layers)]:
        found = LAYOUTS.get(backend) or (_SM10X_LAYOUTS.get(backend) if b.capability.major == 10 else None)
        if found:
            declared.append(found)
    candidates = list(_common(declared or [_DEFAULT]))
    shapes = {(s.heads, s.states, s.page_bytes) for s in specs}
    if len(shapes) > 1:
        candidates = [name for name in candidates if set(name[:2]) == {"L", "B"}]
    if not candidates:
        raise Unknown("a KV cache layout that all attention backends of this model take")
    asked = b.cfg.flags.env.get("VLLM_KV_CACHE_LAYOUT")
    if asked:
        name = {"NHD": "LBNHC", "HND": "LBHNC"}.get(asked, asked)
        if name not in candidates:
            raise Unknown(f"VLLM_KV_CACHE_LAYOUT={asked}, which not all attention backends of this model take")
        return name
    connector = (b.cfg.kv_transfer or {}).get("kv_connector")
    if connector is None:
        return candidates[0]
    if not str(connector).startswith("Nixl"):
        raise Unknown(f"the KV cache layout that {connector} asks for")
    return "LBHNC" if not b.cfg.use_mla and "LBHNC" in candidates else candidates[0]


def _common(declared: list[tuple[str, ...]]) -> list[str]:
    first = declared[0]
    if all(each == first for each in declared):
        return list(first)
    votes = {name: sum(each[0] == name for each in declared) for name in ALL_LAYOUTS}
    shared = [name for name in ALL_LAYOUTS if all(name in each for each in declared)]
    return sorted(shared, key=lambda name: -votes[name])
