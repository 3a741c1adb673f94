"""Bytes one token takes in one attention layer's KV cache page (vllm/v1/kv_cache_interface.py and each backend's
`customize_spec`)."""

from __future__ import annotations

from attnfit.engines.vllm.launch.state import Unknown

# vllm/utils/torch_utils.py:40 (0.33.0); quantised formats are stored as bytes
DTYPE_BYTES = {
    "float32": 4, "float": 4, "half": 2, "float16": 2, "bfloat16": 2,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "int8": 1,
    "fp8_ds_mla": 1, "nvfp4_ds_mla": 1, "nvfp4": 1, "nvfp4_4over6": 1,
    "int4_per_token_head": 1, "int8_per_token_head": 1, "fp8_per_token_head": 1,
    "turboquant_k8v4": 1, "turboquant_4bit_nc": 1, "turboquant_k3v4_nc": 1, "turboquant_3bit_nc": 1,
    "octave_k3v4": 1, "octave_k3v3": 1, "octave_k3v3_compact": 1, "ultraquant_4bit": 1,
}  # fmt: skip

# vllm/model_executor/layers/quantization/turboquant/config.py:15 (0.33.0): key bits, value bits
_TURBOQUANT = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}


def element_bytes(kv_cache_dtype: str, dtype: str) -> int:
    """Bytes of one stored element; `dtype` is the model's, used for "auto"."""
    name = dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    if name not in DTYPE_BYTES:
        raise Unknown(f"the storage of KV cache dtype {name}")
    return DTYPE_BYTES[name]


def token_bytes(backend: str, kv_cache_dtype: str, dtype: str, num_kv_heads: int, head_size: int) -> int:
    """Bytes of one token in one layer, K and V of equal head size, as `backend` packs them. Not for MLA."""
    size = element_bytes(kv_cache_dtype, dtype)
    if kv_cache_dtype.startswith("octave_") or kv_cache_dtype == "ultraquant_4bit":
        raise Unknown(f"how {backend} packs {kv_cache_dtype}")
    if backend == "TURBOQUANT" and kv_cache_dtype in _TURBOQUANT:
        return num_kv_heads * turboquant_slot(kv_cache_dtype, head_size)
    if backend == "FLASHINFER" and kv_cache_dtype in ("nvfp4", "nvfp4_4over6"):  # flashinfer.py:558
        return 2 * num_kv_heads * (head_size // 2 + head_size // 16)
    if backend.startswith("TRITON_ATTN") and kv_cache_dtype.endswith("_per_token_head"):  # triton_attn.py:308
        width = head_size // 2 if kv_cache_dtype.startswith("int4") else head_size
        return num_kv_heads * (2 * width * size + 2 * DTYPE_BYTES["float32"])
    return num_kv_heads * 2 * head_size * size


def turboquant_slot(kv_cache_dtype: str, head_size: int) -> int:
    """Packed bytes of one head's key and value, rounded up to an even number (turboquant/config.py:128-176)."""
    key_bits, value_bits = _TURBOQUANT[kv_cache_dtype]
    key = head_size if key_bits == 8 else -(-head_size * key_bits // 8) + 2
    slot = key + -(-head_size * value_bits // 8) + 4
    return slot + slot % 2


def mla_token_bytes(kv_cache_dtype: str, dtype: str, head_size: int) -> int:
    """Bytes of one token's latent in the page arithmetic of hybrid models (the packed formats' blobs do not count)."""
    return head_size * element_bytes(kv_cache_dtype, dtype)
