"""Plans of models that mix attention with recurrent (state-space, linear, convolution) layers."""

from __future__ import annotations

from collections.abc import Iterator

from attnfit.engines.vllm.launch.plan import Ctx, Layer, Plan, attention
from attnfit.engines.vllm.launch.state import Unknown

#: recurrent layer classes: their backend's name and the MambaAttentionBackendEnum member
STATES = {
    "MambaMixer": ("MAMBA1_ATTN", "MAMBA1"),
    "MambaMixer2": ("MAMBA2_ATTN", "MAMBA2"),
    "ShortConv": ("SHORT_CONV_ATTN", "SHORT_CONV"),
    "QwenGatedDeltaNetAttention": ("GDN_ATTN", "GDN_ATTN"),
    "OlmoHybridGatedDeltaNetAttention": ("GDN_ATTN", "GDN_ATTN"),
    "KimiGatedDeltaNetAttention": ("GDN_ATTN", "GDN_ATTN"),
}


def state(cls: str, i: int) -> Layer:
    backend, mamba = STATES[cls]
    return Layer(cls, i, backend=backend, mamba=mamba)


def by_type(c: Ctx, p: Plan) -> Iterator[Layer]:
    """`of` says what each entry of the layer list builds: a recurrent class, "attention", both, or nothing."""
    of: dict[str, list[str]] = p["of"]
    kinds = layer_list(c, p)
    for i in c.layers(len(kinds) if p.get("as_listed") else c.number("num_hidden_layers")):
        if i >= len(kinds):
            raise Unknown(f"the type of layer {i} in config.json ({c.architecture} needs it)")
        built = of.get(kinds[i], of.get("*"))
        if built is None:
            raise Unknown(f"what {c.architecture} builds for layer type {kinds[i]!r}")
        for what in built:
            yield attention(c, p, i) if what == "attention" else state(what, i)


_PATTERN = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}  # configuration_nemotron_h.py


def layer_list(c: Ctx, p: Plan) -> list[str]:
    """The layer types, one per decoder layer, under the name this class reads."""
    keys = p.get("lists", ["layer_types"])
    for key in keys:
        value = c.get(key)
        if isinstance(value, str):
            return [_PATTERN.get(letter, letter) for letter in value]
        if isinstance(value, list) and value:
            legacy = {"mamba": "linear_attention", "attention": "full_attention", "mamba2": "linear_attention"}
            return [legacy.get(str(item), str(item)) for item in value]
    if "period" in p:  # Jamba: attention every attn_layer_period layers
        every, offset = c.number("attn_layer_period"), c.number("attn_layer_offset")
        return [
            "full_attention" if i % every == offset else "linear_attention"
            for i in c.all(c.number("num_hidden_layers"))
        ]
    raise Unknown(f"{keys[0]} in config.json ({c.architecture} needs it)")


def both(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Falcon-H1: attention and Mamba side by side; the Mamba layer's number is shifted (falcon_h1.py:313)."""
    total = c.number("num_hidden_layers")
    for i in c.layers(total):
        yield attention(c, p, i)
        yield state("MambaMixer2", total + i)


def recurrent(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Mamba without attention."""
    for i in c.layers(c.number("num_hidden_layers")):
        yield state(p["class"], i)


def lfm2(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Full attention or a short convolution (lfm2.py:430); a bidirectional model has no convolution cache."""
    bidirectional = bool(p.get("bidirectional"))
    types = c.listed("layer_types")
    for i in c.layers(c.number("num_hidden_layers")):
        if i >= len(types):
            raise Unknown(f"layer_types[{i}] in config.json")
        if types[i] == "full_attention":
            layer = attention(c, p, i)
            encoder = layer._replace(cls="EncoderOnlyAttention", attn_type="encoder_only", early=True)
            yield encoder if bidirectional else layer
        elif not bidirectional:
            yield state("ShortConv", i)


def zamba2(c: Ctx, p: Plan) -> Iterator[Layer]:
    """The shared attention blocks first, then the Mamba layers (zamba2.py:724); no pipeline parallelism."""
    kinds = layer_list(c, {"lists": ["layers_block_type", "layer_types"]})
    hybrids, blocks = sum(kind == "hybrid" for kind in kinds), c.number("num_mem_blocks")
    heads = c.shard(c.number("num_attention_heads"))
    for block in c.all(blocks):
        first = block * (hybrids + blocks - 1) // blocks
        for number in range(len(range(block, hybrids, blocks))):
            yield Layer(
                "Attention",
                first + number,
                head_size=c.number("attention_head_dim"),
                heads=heads,
                kv_heads=heads,
                quantised=False,
            )
    for i in range(len(kinds)):
        yield state("MambaMixer2", hybrids + i)


def qwen4_sparse(c: Ctx, i: int) -> Iterator[Layer]:
    """Two state caches of the indexer, then the layer that binds its own backend (qwen4_exp/nvidia/qsa.py:480)."""
    yield Layer("QSAKeyStateCache", i, backend="QWEN4_EXP_EXP_QSA_STATE")
    yield Layer("QSACompressedKeyCache", i, backend="QWEN4_EXP_EXP_QSA_STATE")
    yield Layer(
        "Qwen4ExpQSAAttention",
        i,
        head_size=c.number("head_dim"),
        heads=c.shard(c.number("num_attention_heads")),
        kv_heads=c.shard_kv(c.number("num_key_value_heads")),
        backend="QWEN4_EXP_QSA_TRITON",
        kv="run",
    )


def qwen4(c: Ctx, p: Plan) -> Iterator[Layer]:
    """Gated delta net, full attention, or sparse attention; some layers hold an n-gram cache (nvidia/model.py:219)."""
    ple = set(c.get("ple_layer_ids") or ())
    for i in c.layers(c.number("num_hidden_layers")):
        kind = c.at("layer_types", i)
        if i + 1 in ple:
            yield Layer("Qwen4ExpPLELayer", i, backend="PLE_SHORT_CONV_ATTN", mamba="SHORT_CONV")
        if kind == "linear_attention":
            yield state("QwenGatedDeltaNetAttention", i)
        elif c.get("indexer_n_heads") is None:
            yield attention(c, p, i)
        else:
            yield from qwen4_sparse(c, i)


PLANS = {f.__name__: f for f in (by_type, both, recurrent, lfm2, zamba2, qwen4)}
