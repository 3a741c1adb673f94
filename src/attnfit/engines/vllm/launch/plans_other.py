"""Plans whose layers differ by number, by a list of their own, or bind their backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attnfit.engines.vllm.launch.plan import Ctx, Layer, Plan, attention, decoder, window
from attnfit.engines.vllm.launch.state import Unknown


def llama4(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Chunked local attention except where no_rope_layers is 0 (llama4.py:251)."""
    for i in c.layers(c.number("num_hidden_layers")):
        nope = c.at("no_rope_layers", i) == 0
        chunked = bool(not nope and c.get("attention_chunk_size"))
        yield attention(c, {**p, "class": "ChunkedLocalAttention" if chunked else "Attention"}, i)


def per_layer(c: Ctx, i: int, key: str) -> Any:
    """config.per_layer_config[i].key where the checkpoint is heterogeneous, else None (transformers 5)."""
    table = c.get("per_layer_config")
    if isinstance(table, dict):
        entry = table.get(str(i), table.get(i))
    else:
        entry = table[i] if isinstance(table, list) and i < len(table) else None
    return entry.get(key) if isinstance(entry, dict) else None


def gemma4_layer(c: Ctx, p: Plan, i: int, index: int | None = None) -> Layer:
    """Full attention layers have a head size and KV heads of their own (configuration_gemma4.py)."""
    layer = attention(c, p, i, index)
    if c.at("layer_types", i) != "full_attention":
        return layer
    head = per_layer(c, i, "head_dim") or c.get("global_head_dim", 512)
    kv = per_layer(c, i, "num_key_value_heads")
    if kv is None and c.get("attention_k_eq_v", True):
        kv = c.get("num_global_key_value_heads")
    return layer._replace(head_size=int(head), kv_heads=layer.kv_heads if kv is None else c.shard_kv(int(kv)))


def gemma4(c: Ctx, p: Plan) -> Iterator[Layer]:
    for i in c.layers(c.number("num_hidden_layers")):
        yield gemma4_layer(c, p, i)


def exaone_moe_window(c: Ctx, i: int, mtp: bool = False) -> int | None:
    """exaone_moe.py:200."""
    types, windows = c.get("layer_types"), c.get("sliding_windows")
    if mtp:
        types, windows = c.get("mtp_layer_types") or types, c.get("mtp_sliding_windows") or windows
    if not isinstance(types, list) or i >= len(types):
        raise Unknown(f"layer_types[{i}] in config.json")
    if types[i] == "full_attention":
        return None
    value = windows[i] if isinstance(windows, list) and i < len(windows) else c.get("sliding_window")
    return None if value is None else int(value)


def exaone_moe(c: Ctx, p: Plan) -> Iterator[Layer]:
    for i in c.layers(c.number("num_hidden_layers")):
        yield attention(c, p, i)._replace(window=exaone_moe_window(c, i))


def laguna_layer(c: Ctx, p: Plan, i: int, index: int | None = None) -> Layer:
    """Heads per layer, sinks on sliding layers when enabled (laguna.py:476)."""
    types = c.get("layer_types")
    sliding = types is not None and c.at("layer_types", i) == "sliding_attention"
    heads = c.get("num_attention_heads_per_layer")
    total = int(heads[i]) if isinstance(heads, list) and i < len(heads) else c.number("num_attention_heads")
    layer = attention(c, p, i, index)._replace(heads=c.shard(total))
    return layer._replace(sink=bool(sliding and c.get("swa_attention_sink_enabled", False)))


def laguna(c: Ctx, p: Plan) -> Iterator[Layer]:
    for i in c.layers(c.number("num_hidden_layers")):
        yield laguna_layer(c, p, i)


def nemotron_nas(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Blocks may have no attention; KV heads are given per block (nemotron_nas.py:134)."""
    blocks = c.listed("block_configs")
    for i in c.layers(c.number("num_hidden_layers")):
        block = blocks[i].get("attention") if i < len(blocks) and isinstance(blocks[i], dict) else None
        if not isinstance(block, dict):
            raise Unknown(f"block_configs[{i}].attention in config.json")
        if block.get("no_op"):
            continue
        group = block.get("n_heads_in_group")
        if not isinstance(group, int) or group < 1:
            raise Unknown(f"block_configs[{i}].attention.n_heads_in_group in config.json")
        yield attention(c, p, i)._replace(kv_heads=c.shard_kv(c.number("num_attention_heads") // group))


def step3p5_type(c: Ctx, i: int) -> str:
    """Layer types go on into the MTP layers (step3p5.py:65)."""
    types = [*c.listed("layer_types"), *(c.get("mtp_layer_types") or [])]
    if i >= len(types):
        raise Unknown(f"layer_types[{i}] in config.json")
    return str(types[i])


def step3p5_layer(c: Ctx, p: Plan, i: int) -> Layer:
    kind = step3p5_type(c, i)
    heads = None
    if kind == "sliding_attention":
        heads = c.get("num_sliding_attention_heads")
        other = c.get("attention_other_setting") or {}
        if not heads and other.get("attention_type") == kind:
            heads = other["num_attention_heads"]
    heads = heads or per_layer(c, i, "num_attention_heads") or c.number("num_attention_heads")
    layer = Layer(
        "Attention",
        i,
        head_size=c.size(["head_dim", "hidden_size/num_attention_heads"]),
        heads=c.shard(int(heads)),
        kv_heads=c.shard_kv(c.number("num_attention_groups")),
    )
    sliding = c.get("sliding_window") if kind == "sliding_attention" else None
    return layer._replace(window=None if sliding is None else int(sliding))


def step3p5(c: Ctx, p: Plan) -> Iterator[Layer]:
    for i in c.layers(c.number("num_hidden_layers")):
        yield step3p5_layer(c, p, i)


def plamo3(c: Ctx, p: Plan) -> Iterator[Layer]:
    """A window per layer, given as a list (plamo3.py:206)."""
    for i in c.layers(c.number("num_hidden_layers")):
        value = c.at("interleaved_sliding_window", i)
        yield attention(c, p, i)._replace(window=None if value is None else int(value))


def domyn_edge(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Head sizes and windows per layer (domyn_edge.py:165)."""
    for i in c.layers(c.number("num_hidden_layers")):
        left = c.at("window_sizes", i)
        size = left[0] if isinstance(left, list) and left else None
        head = per_layer(c, i, "head_dim") or c.number("head_dim")
        if not isinstance(size, int):
            raise Unknown(f"window_sizes[{i}] in config.json")
        yield attention(c, {**p, "head": [str(head)]}, i)._replace(window=size + 1 if size > 0 else None)


def dory(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Recurrent layers keep a cache per loop (dory.py:97); no pipeline split."""
    first, loops = c.number("n_input_layers"), c.number("n_recurrent_loops")
    last, total = first + c.number("n_recurrent_layers"), c.number("num_hidden_layers")
    own = c.get("recurrent_kv_cache_mode") == "per_loop"
    for i in c.all(total):
        if c.at("layer_types", i) == "mlp":
            continue
        for loop in c.all(loops if own and first <= i < last else 1):
            yield attention(c, p, i, i + loop * total)


def loopcoder(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Each layer is built once per loop, numbered past the last layer; later loops slide (iquest_loopcoder.py:131)."""
    total, size = c.number("num_hidden_layers"), int(c.get("loop_window_size", 64))
    for i in c.layers(total):
        for loop in c.all(int(c.get("loop_num", 2))):
            layer = attention(c, {**p, "window": None}, i, i + loop * total)
            yield layer if loop == 0 else layer._replace(window=size)


def hrm_text(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Two stacks of non-causal layers, one cache per step a layer is used in (hrm_text.py:180)."""
    high, low = c.number("H_cycles"), c.number("L_cycles")
    for steps in (high * low, high):
        for i in c.all(c.number("num_layers_per_stack")):
            for _ in c.all(steps):
                yield attention(c, p, i)


def chatglm(c: Ctx, p: Plan) -> Iterator[Layer]:
    """KV heads by multi_query_attention (chatglm.py:60)."""
    kv = "multi_query_group_num" if c.need("multi_query_attention") else "num_attention_heads"
    yield from decoder(c, {**p, "kv": [kv], "layers": ["num_layers", "num_hidden_layers"]})


def cohere(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Cohere 1 never slides; later ones slide one token further than they say (commandr.py:235)."""
    slides = c.get("model_type") != "cohere"
    rule = {"types": "sliding_attention", "plus": 1, "needed": True}
    yield from decoder(c, {**p, "window": rule if slides else None})


def dbrx(c: Ctx, p: Plan) -> Iterator[Layer]:
    """KV heads stand in attn_config (dbrx.py:205)."""
    kv = (c.get("attn_config") or {}).get("kv_n_heads")
    if not isinstance(kv, int):
        raise Unknown("attn_config.kv_n_heads in config.json")
    yield from decoder(c, {**p, "kv": [str(kv)]})


def falcon(c: Ctx, p: Plan) -> Iterator[Layer]:
    """falcon.py:115."""
    old = "1" if c.get("multi_query") else "num_attention_heads"
    kv = "num_kv_heads" if c.get("new_decoder_architecture") else old
    yield from decoder(c, {**p, "kv": [kv]})


def muse_spark(c: Ctx, p: Plan) -> Iterator[Layer]:
    for i in c.layers(c.number("num_hidden_layers")):
        yield attention(c, p, i)._replace(window=window(c, {"types": "sliding_attention", "needed": True}, i))


def transformers(c: Ctx, p: Plan) -> Iterator[Layer]:
    """The Transformers modelling backend: one layer per decoder layer (models/transformers/base.py:640)."""
    cfg = c.cfg
    if cfg.use_mla:
        raise Unknown("whether the Transformers backend fuses this model as MLA")
    if not c.causal():
        raise Unknown("whether the Transformers backend takes this model for an encoder")
    layer_types = c.get("layer_types")
    for i in c.layers(c.number("num_hidden_layers")):
        head = per_layer(c, i, "head_dim") or cfg.head_size
        kv, heads = per_layer(c, i, "num_key_value_heads"), per_layer(c, i, "num_attention_heads")
        sliding = isinstance(layer_types, list) and i < len(layer_types) and layer_types[i] == "sliding_attention"
        size = c.get("sliding_window") if sliding else None
        yield Layer(
            "Attention",
            i,
            head_size=int(head),
            heads=cfg.num_heads if heads is None else c.shard(int(heads)),
            kv_heads=cfg.num_kv_heads if kv is None else c.shard_kv(int(kv)),
            window=None if size is None else int(size),
        )


PLANS = {
    f.__name__: f
    for f in (
        llama4,
        gemma4,
        exaone_moe,
        laguna,
        nemotron_nas,
        step3p5,
        plamo3,
        domyn_edge,
        dory,
        loopcoder,
        chatglm,
        cohere,
        dbrx,
        falcon,
        hrm_text,
        muse_spark,
        transformers,
    )
}
