"""Plans of models whose layers bind their backend themselves, wholly or in part: there the selector is not asked."""

from __future__ import annotations

from collections.abc import Iterator

from attnfit.engines.vllm.launch.plan import Ctx, Layer, Plan, attention


def mimo_v2_layer(c: Ctx, i: int, swa: bool, index: int | None = None) -> Layer:
    """Sliding and full layers have heads of their own; unequal value heads bind a *_DIFFKV backend (mimo_v2.py:310)."""
    pre = "swa_" if swa else ""
    head, v_head = c.number(f"{pre}head_dim"), c.get(f"{pre}v_head_dim")
    sink = bool(swa and c.get("add_swa_attention_sink_bias", False))
    size = c.number("sliding_window_size") if swa else -1
    backend = None
    if (v_head if v_head is not None else head) != head:
        asked = c.cfg.attention.get("backend") if c.role == "target" else None
        backend = asked if asked and asked.endswith("_DIFFKV") else diffkv(c, head, int(v_head), sink)
    return Layer(
        "Attention",
        i if index is None else index,
        head_size=head,
        heads=c.shard(c.number(f"{pre}num_attention_heads")),
        kv_heads=c.shard_kv(c.number(f"{pre}num_key_value_heads")),
        window=size if size > -1 else None,
        sink=sink,
        backend=backend,
        kv="run" if backend else None,
    )


def diffkv(c: Ctx, head: int, v_head: int, sink: bool) -> str:
    """FLASH_ATTN_DIFFKV where FlashAttention 3 or 4 serves this device, else the Triton one (fa_utils.py:74).

    Supposes the FlashAttention builds that vLLM's own wheel brings.
    """
    capability, given = c.cfg.capability, c.cfg.attention.get("flash_attn_version")
    major = capability.major
    version = {9: 3, 10: 4}.get(major, 2) if given is None else int(given)
    if major >= 10 and version == 3:
        version = 4 if major in (10, 11) else 2
    if version == 3 and major == 9 and (head > 256 or sink):
        version = 4
    if version == 4 and c.cfg.flags.env.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"):
        version = 2
    if version == 4 and major >= 10 and head > 128 and (head, v_head) != (192, 128):
        version = 2
    served = (version == 3 and major == 9) or (version == 4 and major in (9, 10, 11))
    return "FLASH_ATTN_DIFFKV" if served else "TRITON_ATTN_DIFFKV"


def mimo_v2(c: Ctx, p: Plan) -> Iterator[Layer]:
    for i in c.layers(c.number("num_hidden_layers")):
        yield mimo_v2_layer(c, i, c.at("hybrid_layer_pattern", i) == 1)


def minimax_m3_sparse(c: Ctx, i: int) -> Iterator[Layer]:
    """The index cache first, then the layer that binds its own backend (minimax_m3/nvidia/model.py:505)."""
    yield Layer("MiniMaxM3IndexerCache", i, backend="MINIMAX_M3_SPARSE_INDEXER")
    yield Layer(
        "MiniMaxM3SparseAttention",
        i,
        head_size=c.number("head_dim"),
        heads=c.shard(c.number("num_attention_heads")),
        kv_heads=c.shard_kv(c.number("num_key_value_heads")),
        backend="MINIMAX_M3_SPARSE",
        kv="run",
    )


def minimax_m3(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Sparse where sparse_attention_freq is not 0 (minimax_m3/nvidia/model.py:99)."""
    freq = (c.get("sparse_attention_config") or {}).get("sparse_attention_freq")
    for i in c.layers(c.number("num_hidden_layers")):
        if freq is not None and i < len(freq) and freq[i] != 0:
            yield from minimax_m3_sparse(c, i)
        else:
            yield attention(c, p, i)


def inkling(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Never asks: FLASH_ATTN and its own convolution cache (inkling/nvidia/attention.py:180)."""
    local = set(c.get("local_layer_ids") or ())
    for i in c.layers(c.number("num_hidden_layers")):
        pre = "swa_" if i in local else ""
        head, kv = c.number(f"{pre}head_dim"), c.number(f"{pre}num_key_value_heads")
        yield Layer("InklingConvState", i, backend="INKLING_SCONV_SWA")
        yield Layer(
            "InklingAttention",
            i,
            head_size=head,
            heads=c.shard(c.number(f"{pre}num_attention_heads")),
            kv_heads=c.shard_kv(kv),
            backend="FLASH_ATTN",
            kv="run",
        )


def step5(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Never asks: sliding layers bind FLASH_ATTN, full ones sparse attention and two caches (nvidia/model.py:1186)."""
    sparse = c.need("sparse_config")
    dsa = not (isinstance(sparse, dict) and sparse.get("enabled") is False)
    types = c.get("layer_types_with_mtp") or c.get("layer_types") or []
    other = c.get("attention_other_setting") or {}
    for i in c.layers(c.number("num_hidden_layers")):
        kind = types[i] if i < len(types) else ("sliding_attention" if i % 2 == 0 else "full_attention")
        own = other if other and other.get("attention_type") == kind and i < len(types) else {}
        slides = kind == "sliding_attention" and c.get("sliding_window") is not None
        heads = own.get("num_attention_heads") or c.number("num_attention_heads")
        if slides and c.get("swa_num_attention_heads") is not None:
            heads = c.number("swa_num_attention_heads")
        yield Layer(
            "Attention",
            i,
            head_size=int(own.get("head_dim") or c.size(["head_dim", "hidden_size/num_attention_heads"])),
            heads=c.shard(int(heads)),
            kv_heads=c.shard_kv(int(own.get("num_attention_groups") or c.number("num_attention_groups"))),
            window=c.number("sliding_window") if slides else None,
            backend="STEP5_DSA" if dsa and not slides else "FLASH_ATTN",
            kv="run",
        )
        if dsa and not slides:
            yield Layer("Step5SparseSummaryCacheLayer", i, backend="STEP5_CSA_SUMMARY")
            yield Layer("Step5CSATailRing", i, backend="STEP5_CSA_TAIL_RING")


PLANS = {f.__name__: f for f in (mimo_v2, minimax_m3, inkling, step5)}
