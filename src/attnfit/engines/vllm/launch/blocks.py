"""The KV cache block size after the model is built, and what refuses there.

Follows `Platform.update_block_size_for_backend` (vllm/platforms/interface.py:750 of 0.33.0): pick a size every
attention backend takes, then align it with the recurrent state of hybrid models, then with layers kept unquantised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import lcm
from typing import TYPE_CHECKING, Any

import msgspec

from attnfit.core import Capability
from attnfit.engines.vllm import ours
from attnfit.engines.vllm.launch import kernel_facts
from attnfit.engines.vllm.launch.gdn import prefill_checkpoint_alignment
from attnfit.engines.vllm.launch.mamba_state import state_bytes
from attnfit.engines.vllm.launch.ours_checks import OWN_INDEXER
from attnfit.engines.vllm.launch.pages import mla_token_bytes, token_bytes, turboquant_slot
from attnfit.engines.vllm.launch.state import EngineConfig, KvLayer, Refusal, Unknown

if TYPE_CHECKING:
    from attnfit.engines.vllm.launch.layers import LayerAnswer

_WHERE = "vllm/platforms/interface.py"
_STAGE = "update_block_size"


class BlockSizes(msgspec.Struct, frozen=True):
    """Tokens per block; pages in bytes per layer (None: not padded)."""

    block_size: int | None
    mamba_block_size: int | None = None
    mamba_page_bytes: int | None = None
    skip_page_bytes: int | None = None


def block_size_after_load(
    cfg: EngineConfig, answer: LayerAnswer, capability: Capability, env: Mapping[str, bool] | None = None
) -> int | None:
    """Tokens per KV cache block once the model is built; see `block_sizes`."""
    return block_sizes(cfg, answer.kv_cache_dtype, answer.kv_layers, capability, env).block_size


def block_sizes(
    cfg: EngineConfig,
    kv_cache_dtype: str,
    kv_layers: Sequence[KvLayer],
    capability: Capability,
    env: Mapping[str, bool] | None = None,
) -> BlockSizes:
    """Block sizes once the model is built. `kv_cache_dtype` is the one after construction.

    Raises Refusal (stage update_block_size) where the engine raises, Unknown where a fact is missing.
    """
    book = Backends(cfg, kv_cache_dtype, capability, env or {})
    backends = book.distinct(kv_layers)
    sizes = _Sizes(cfg.block_size, cfg.mamba_block_size)
    if not backends:
        return sizes.frozen()
    if not cfg.user_specified_block_size:
        sizes.block = book.preferred_by_all(backends)
    before = sizes.block
    if cfg.is_hybrid:
        _align_hybrid(cfg, kv_cache_dtype, kv_layers, capability, book, backends, sizes)
    if cfg.kv_cache_dtype_skip_layers:
        _align_skipped(cfg, kv_cache_dtype, book, backends[0], sizes)
    if sizes.block != before:
        rejecting = [name for name in backends if not book.takes(name, sizes.need_block())]
        if rejecting:
            names = ", ".join(book.name(name) for name in rejecting)
            raise Refusal(
                _STAGE,
                f"ValueError: Aligned KV cache block size {sizes.block} is not supported by attention backend(s): "
                f"{names}.",
                f"{_WHERE}:821",
            )
    return sizes.frozen()


class _Sizes:
    def __init__(self, block: int | None, mamba: int | None) -> None:
        self.block, self.mamba = block, mamba
        self.mamba_page: int | None = None
        self.skip_page: int | None = None

    def need_block(self) -> int:
        if self.block is None:
            raise Unknown("the block size at the end of create_engine_config")
        return self.block

    def frozen(self) -> BlockSizes:
        return BlockSizes(self.block, self.mamba, self.mamba_page, self.skip_page)


class Backends:
    """What each attention backend says about block sizes, for this launch."""

    def __init__(self, cfg: EngineConfig, kv: str, capability: Capability, env: Mapping[str, bool]) -> None:
        self.cfg, self.kv, self.capability, self.env = cfg, kv, capability, env
        self.table = kernel_facts.load("blocks")

    def distinct(self, kv_layers: Sequence[KvLayer]) -> list[str]:
        """Keys of the distinct non-recurrent backends, in layer order (interface.py:683)."""
        keys: list[str] = []
        for layer in kv_layers:
            if layer.mamba_type is not None or layer.backend in self.table["ssm_backends"]:
                continue
            key = layer.layer_class if layer.layer_class in self.table["by_layer_class"] else layer.backend
            if key not in keys:
                keys.append(key)
        return keys

    def name(self, key: str) -> str:
        return "DEEPSEEK_V32_INDEXER" if key == "Glm5NextIndexerCache" else key

    def entry(self, key: str) -> dict[str, Any]:
        entry = self.table["by_layer_class"].get(key) or self.table["backends"].get(key)
        if entry is None and key in (*ours.NAMES, OWN_INDEXER):
            entry = {"sizes": [1]}  # plugin/backend.py, plugin/indexer/steps.py: every multiple of 1
        if entry is None:
            raise Unknown(f"the block sizes of attention backend {key}")
        assert isinstance(entry, dict)
        return entry

    def sizes(self, key: str) -> list[int]:
        entry = self.entry(key)
        rule = entry.get("pages")
        return _PAGES[rule](self, entry) if rule else list(entry["sizes"])

    def takes(self, key: str, size: int) -> bool:
        if self.entry(key).get("exact"):
            return size in self.sizes(key)
        return any(size % each == 0 for each in self.sizes(key))

    def preferred(self, key: str) -> int:
        default = int(self.table["default_block_size"]["value"])
        entry, sizes = self.entry(key), self.sizes(key)
        if "preferred" in entry and not (entry.get("exact") and default in sizes):
            return int(entry["preferred"])
        return default if self.takes(key, default) else min(sizes)

    def preferred_by_all(self, keys: list[str]) -> int:
        default = int(self.table["default_block_size"]["value"])
        if len(keys) == 1:
            return self.preferred(keys[0])
        if all(self.takes(key, default) for key in keys):
            return default
        for candidate in sorted({lcm(*some) for some in product(*(self.sizes(key) or [1] for key in keys))}):
            if all(self.takes(key, candidate) for key in keys):
                return candidate
        listed = "; ".join(f"{self.name(key)}: {self.sizes(key)}" for key in keys)
        raise Refusal(
            _STAGE,
            f"ValueError: The attention backends share no supported KV cache block size ({listed}).",
            f"{_WHERE}:741",
        )


def _flash_attn_pages(book: Backends, entry: dict[str, Any]) -> list[int]:
    """FLASH_ATTN's own pages: FA4 with head size 256 on SM10x/11x, or FP8 KV with head size 512 on SM90."""
    cfg, major = book.cfg, book.capability.major
    version = cfg.attention.get("flash_attn_version")
    quantised = book.kv not in ("auto", "float16", "bfloat16", "float32")
    if major == 9 and cfg.head_size == 512 and book.kv in ("fp8", "fp8_e4m3") and version in (None, 3, 4):
        return [64]  # flash_attn.py:306; FA3 is raised to FA4 above head size 256 (fa_utils.py:147)
    if major in (10, 11) and cfg.head_size == 256:
        default = 4 if major == 10 else 2
        fa4 = (version or default) in (3, 4)  # FA3 becomes FA4 on Blackwell (fa_utils.py:122)
        falls_back = (
            bool(cfg.text.get("attn_logit_softcapping"))
            or quantised
            or cfg.is_mm_prefix_lm
            or cfg.rswa_window is not None
            or cfg.dcp > 1
            or cfg.flags.env.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0")
        )
        if fa4 and not falls_back:
            return [128]  # fa_utils.py:14
    return list(entry["sizes"])


def _flash_attn_diffkv_pages(book: Backends, entry: dict[str, Any]) -> list[int]:
    if book.cfg.head_size == 256 and book.capability.major in (10, 11):
        raise Unknown("the value head size that FLASH_ATTN_DIFFKV is built with")
    return list(entry["sizes"])


def _flashinfer_pages(book: Backends, entry: dict[str, Any]) -> list[int]:
    """Pages of 128 and more only with trtllm-gen on SM10x and grouped queries (flashinfer.py:585)."""
    cfg = book.cfg
    large = (
        cfg.num_kv_heads > 0
        and cfg.num_heads // cfg.num_kv_heads > 1
        and cfg.num_heads % cfg.num_kv_heads == 0
        and book.capability.major == 10
        and cfg.attention.get("use_trtllm_attention") is not False
        and book.env.get("artifactory", True)
        and cfg.flags.env.get("VLLM_BATCH_INVARIANT", "0") in ("", "0")
    )
    return [*entry["sizes"], 128, 256, 512, 1024] if large else list(entry["sizes"])


def _glm5_next_indexer_pages(book: Backends, entry: dict[str, Any]) -> list[int]:
    pool = book.cfg.text.get("index_kpool")
    if not isinstance(pool, int):
        raise Unknown("index_kpool of the config")
    return [pool * size for size in entry["sizes"] if not (book.capability.major == 12 and size == 32)]


def _sm90_64_pages(book: Backends, entry: dict[str, Any]) -> list[int]:
    return [64] if book.capability.major == 9 else list(entry["sizes"])


_PAGES = {
    "flash_attn": _flash_attn_pages,
    "triton_flash_attn": _flash_attn_pages,
    "flash_attn_diffkv": _flash_attn_diffkv_pages,
    "flashinfer": _flashinfer_pages,
    "glm5_next_indexer": _glm5_next_indexer_pages,
    "sm90_64": _sm90_64_pages,
}


def _align_hybrid(
    cfg: EngineConfig,
    kv: str,
    kv_layers: Sequence[KvLayer],
    capability: Capability,
    book: Backends,
    backends: list[str],
    sizes: _Sizes,
) -> None:
    """The attention page must hold a whole recurrent state (interface.py:940)."""
    token = _hybrid_token_bytes(cfg, kv, book.name(backends[0]))
    state = state_bytes(cfg)
    if state == 0:
        return
    block = sizes.need_block()
    alignment = max(min(book.sizes(backends[0])), block)
    every_backend = lcm(*(min(some) for key in backends if (some := book.sizes(key))))
    if cfg.use_mla:
        alignment = max(alignment, 128)
    if cfg.mamba_cache_mode == "align":
        alignment = lcm(alignment, prefill_checkpoint_alignment(cfg, kv_layers, capability) or 1)
    needed = alignment * _ceil_div(state, alignment * token)
    needed = every_backend * _ceil_div(needed, every_backend)
    sizes.block = max(block, needed)
    if cfg.mamba_cache_mode == "align":
        sizes.mamba = sizes.block
    page = sizes.block * token
    if page < state:
        raise Refusal(_STAGE, "AssertionError: ", f"{_WHERE}:1120")
    if page != state:
        sizes.mamba_page = page


def _hybrid_token_bytes(cfg: EngineConfig, kv: str, backend: str) -> int:
    heads = 1 if cfg.use_mla else cfg.num_kv_heads
    if cfg.use_mla:
        return mla_token_bytes(kv, cfg.dtype, cfg.head_size)
    if kv.startswith("turboquant_"):
        packed = heads * turboquant_slot(kv, cfg.head_size)
        plain = token_bytes("", "auto", cfg.dtype, heads, cfg.head_size)
        return lcm(packed, plain) if cfg.kv_cache_dtype_skip_layers else packed
    return token_bytes(backend, kv, cfg.dtype, heads, cfg.head_size)


def _align_skipped(cfg: EngineConfig, kv: str, book: Backends, key: str, sizes: _Sizes) -> None:
    """Layers kept at the model's dtype share the block pool with the quantised ones (interface.py:826)."""
    backend, heads = book.name(key), cfg.num_kv_heads
    primary = token_bytes(backend, kv, cfg.dtype, heads, cfg.head_size)
    padded = token_bytes(backend, "auto", cfg.dtype, heads, cfg.head_size)
    if padded < primary:
        raise Refusal(
            _STAGE,
            f"AssertionError: padded-spec per-token page ({padded}B) < primary ({primary}B); a higher-precision "
            "padded spec must not be smaller than the quantized primary.",
            f"{_WHERE}:894",
        )
    if padded == primary:
        return
    smallest, block = min(book.sizes(key)), sizes.need_block()
    alignment = max(smallest, block)
    required = max(padded * smallest, sizes.mamba_page or 0)
    sizes.block = max(block, alignment * _ceil_div(required, alignment * primary))
    sizes.skip_page = sizes.block * primary
    if sizes.mamba_page is not None:
        sizes.mamba_page = sizes.skip_page


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
